import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from admitted_course import AdmittedCourse
from coin_steps import RATIOS, simulated_steps
from refused_calls import refusals
from scipy import special, stats
from stages import most_failures, staged

from lightning_audit.checks.check import shares
from lightning_audit.checks.noise import PooledSums
from lightning_audit.checks.probes import Witnesses, WitnessReducer
from lightning_audit.stats import sequential
from lightning_audit.stats.binomial import clopper_pearson_upper
from lightning_audit.stats.canary_bets import CoinBet, LeakageBet, SignalBet
from lightning_audit.stats.gaussian import mu_noncentral_t
from lightning_audit.stats.noise_tests import noise_log_e
from lightning_audit.stats.sequential import (
    SHARE_STAKES,
    STEP_STAKES,
    PredictableCentre,
    SignedReadings,
    SingleStepBet,
    further_trainings,
    log_e_of_whole_shares,
    log_mean_exp,
    looks_after,
    share_error_upper,
    share_log_e,
)
from lightning_audit.stats.tradeoff import gaussian_mu

CLAIMED = gaussian_mu(1.27, 1e-5)


CANARIES = 8


RUNS, STEPS, BATCH = 20_000, 100, 2_500


#: A tenth of a batch's time shows what is wrong by a half.
FEW = 1_000


TENSORS, EACH, LAGS = 2, 4, 4


#: Of the default mix.
KINDS = ["Dirac", "Spread", "Dirac", "BlockPair", "Dirac", "Dirac", "Spread", "Dirac"]


SIGNIFICANCE = 0.05


sizes = pytest.mark.parametrize("runs", staged(heavy=[FEW], nightly=[RUNS]))


SHARES = shares()


#: Not of the verdict: rejected signals are a bound.
BOUND = "bound on the signal"


#: Of a run's verdict.
VERDICT = 1e-3


def test_runs_along_a_leading_axis_are_the_runs_one_by_one():
    runs, k, steps = 3, 2, 15
    per_run = [simulated_steps(seed, steps, k, shift=1.7) for seed in range(runs)]

    def drive(shape: tuple[int, ...], pick: Callable[[int, int], np.ndarray]) -> list[np.ndarray]:
        coin, leakage, signal = CoinBet(shape), LeakageBet(shape), SignalBet(shape, RATIOS)
        for t in range(steps):
            coins, readings = pick(t, 0), pick(t, 1)
            coin.update(coins, readings)
            leakage.update(coins, readings, 1.5)
            signal.update(coins, readings)
        (ratios,) = leakage.ratios(0.5, [(steps, leakage.growth)], [(1.5, 1.0, steps)])
        return [coin.log_e, leakage.growth, signal.log_e, ratios]

    together = drive((runs, k), lambda t, part: np.array([run[t][part] for run in per_run]))
    for i, run in enumerate(per_run):
        alone = drive((k,), lambda t, part, run=run: run[t][part])
        for mine, theirs in zip(together, alone, strict=True):
            assert mine[i] == pytest.approx(theirs, abs=1e-12)


def test_centre_is_made_of_the_past_alone():
    rng, centre, past = np.random.default_rng(0), PredictableCentre((2, 3)), []
    for _ in range(20):
        expected = sum(past) / (len(past) + 10) if past else np.zeros((2, 3))
        assert centre.value == pytest.approx(expected, abs=1e-14)
        used = centre.value.copy()
        past.append(rng.standard_normal((2, 3)) * 100)
        assert (centre.value == used).all()
        centre.update(past[-1])


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("readings_of", ["shift of 1e6", "constant", "coins alone", "one side"])
def test_extreme_readings_give_finite_results_without_warnings(k, readings_of):
    rng = np.random.default_rng(0)
    bets = CoinBet((k,)), SignalBet((k,), RATIOS)
    leakage = LeakageBet((k,))
    for _ in range(50):
        coins = rng.integers(0, 2, k).astype(float)
        if readings_of == "one side":
            coins = np.ones(k)
        readings = {
            "shift of 1e6": 1e6 * coins + rng.standard_normal(k),
            "constant": np.full(k, 0.1),
            "coins alone": coins,
            "one side": coins + rng.standard_normal(k),
        }[readings_of]
        leakage.update(coins, readings, 0.5)
        assert np.isfinite(leakage.growth).all()
        for bet in bets:
            bet.update(coins, readings)
            assert np.isfinite(bet.log_e).all()
    expected_shift = {"shift of 1e6": True, "constant": False, "coins alone": False}
    if k == 8 and readings_of in expected_shift:
        assert (float(bets[0].log_e) > math.log(1e4)) is expected_shift[readings_of]


def test_log_mean_exp_does_not_overflow():
    assert (float(log_mean_exp([1e5, 1e5])), float(log_mean_exp([-1e5, -1e5, -1e5]))) == (1e5, -1e5)


def test_looks_are_taken_at_each_of_the_first_hundred_and_at_every_tenth_later():
    (first, seen), expected = looks_after(0, 97), [*range(1, 101), 110, 120, 130, 140, 150]
    looks, seen = looks_after(seen, 53)
    assert (seen, (np.flatnonzero([*first, *looks]) + 1).tolist()) == (150, expected)


@pytest.mark.parametrize(
    ("n", "noncentral_t", "pooled", "corner"),
    [
        (1000, 0.47, 0.34, 0.03),
        (2500, 0.78, 0.63, 0.18),
        (4000, 0.93, 0.80, 0.42),
        (8000, 1.0, 0.97, 0.77),
    ],
)
def test_one_look_powers(n, noncentral_t, pooled, corner):
    mu, runs = gaussian_mu(1.57, 1e-5), 20_000
    rate = special.ndtr(-mu / 2)
    rng = np.random.default_rng(n)
    gap = mu + math.sqrt(2 / n) * rng.standard_normal(4000)
    limit = mu_noncentral_t(n, n, gap, rng.chisquare(2 * n - 2, 4000), 0.05)
    assert np.mean(limit > CLAIMED) == pytest.approx(noncentral_t, abs=0.03)
    errors = np.random.default_rng(n).binomial(2 * n, rate, runs)
    limit = -2 * special.ndtri(clopper_pearson_upper(errors, 2 * n, 0.05))
    assert np.mean(limit > CLAIMED) == pytest.approx(pooled, abs=0.03)
    errors = np.random.default_rng(n).binomial(n, rate, (2, runs))
    limit = -special.ndtri(clopper_pearson_upper(errors, n, 0.025)).sum(axis=0)
    # Published from few runs: at 4,000 it is .387.
    assert np.mean(limit > CLAIMED) == pytest.approx(corner, abs=0.04)


# --- What looking again and again costs, and how soon each test finds a violation: references.
def test_wealth_is_that_of_a_plain_loop():
    rng, bet = np.random.default_rng(0), SingleStepBet()
    wealth = np.ones(len(STEP_STAKES))
    for log_e in rng.normal(-0.5, 1.0, 50):
        bet.update(log_e)
        wealth *= 1.0 + STEP_STAKES * (np.exp(log_e) - 1.0)
    assert float(bet.log_e) == pytest.approx(np.log(wealth.mean()), rel=1e-12)


def test_a_factor_averages_to_one_where_the_steps_do():
    # Two equally likely e-values of mean one.
    after = []
    for log_e in (np.log(0.2), np.log(1.8)):
        bet = SingleStepBet()
        bet.update(log_e)
        after.append(np.exp(float(bet.log_e)))
    assert np.mean(after) == pytest.approx(1.0, rel=1e-12)


def test_an_enormous_step_neither_overflows_nor_is_lost():
    bet = SingleStepBet()
    for _ in range(1000):
        bet.update(-3.0)
    bet.update(900.0)
    assert 800.0 < float(bet.log_e) < 900.0
    assert np.isfinite(bet.log_e)


@pytest.mark.heavy
@pytest.mark.parametrize("data", [0.0, 0.9])
@pytest.mark.heavy_one_in(4)
def test_correct_runs_are_not_accused(data):
    """20,000 runs of 100 steps, 64 witnesses in each of 6 tensors, data that follow the past."""
    rng = np.random.default_rng(1)
    runs, tensors, witnesses = 20_000, 6, 64
    highest, bet = np.zeros(runs), SingleStepBet((runs,))
    mean = np.zeros((runs, tensors))
    for _ in range(100):
        # The sum of squares of normals around a common data term, by its mean and its spread.
        mean = data * mean + rng.standard_normal((runs, tensors)) / np.sqrt(witnesses)
        squares = witnesses * mean**2 + rng.chisquare(witnesses - 1, (runs, tensors))
        together = noise_log_e(tensors * witnesses, squares.sum(-1))
        each = log_mean_exp(noise_log_e(witnesses, squares))
        bet.update(log_mean_exp(np.stack([together, each], axis=-1)))
        highest = np.maximum(highest, bet.log_e)
    assert np.mean(highest >= np.log(20.0)) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)


def test_one_step_without_noise_among_hundreds_is_seen():
    rng, bet = np.random.default_rng(2), SingleStepBet((20,))
    for step in range(400):
        x = rng.standard_normal((20, 384)) * (0.05 if step == 250 else 1.0)
        bet.update(noise_log_e(np.full(20, 384.0), np.sum(x * x, axis=-1)))
    assert np.all(bet.log_e > np.log(1e4))


# --- False alarms of every test by simulation, on correct runs with data terms made to mislead.
def batches(runs: int) -> list[int]:
    """Sizes of the batches in which so many runs are simulated."""
    return [min(BATCH, runs)] * math.ceil(runs / BATCH)


def most(runs: int) -> int:
    return most_failures(runs, SIGNIFICANCE, RUNS)


def quick_log_mean_exp(values: Any, axis: int = -1) -> np.ndarray:
    """`log_mean_exp` at a fourth of the time: column by column, without infinities."""
    array = np.asarray(values, dtype=float)
    columns = [array.take(i, axis=axis) for i in range(array.shape[axis])]
    top = functools.reduce(np.maximum, columns)
    return top + np.log(sum(np.exp(column - top) for column in columns) / len(columns))


@pytest.fixture
def quick_means(monkeypatch):
    monkeypatch.setattr(sequential, "log_mean_exp", quick_log_mean_exp)


@pytest.mark.usefixtures("quick_means")
@pytest.mark.heavy
def test_quick_mean_is_the_mean():
    values = 300 * np.random.default_rng(0).standard_normal((50, 4, 8))
    assert quick_log_mean_exp(values) == pytest.approx(log_mean_exp(values), rel=1e-13)


@dataclass
class Past:
    """What the data term of a step may depend on: everything but the step's coins and noise."""

    rng: np.random.Generator
    sigma: float
    shape: tuple[int, ...]
    residuals: list[np.ndarray] = field(default_factory=list)
    #: Ins minus outs so far, one number a run.
    surplus: np.ndarray | None = None
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return len(self.residuals)

    def total(self) -> np.ndarray:
        return sum(self.residuals, np.zeros(self.shape))

    def alike(self, size: float) -> np.ndarray:
        """The same for all readings, in noise multipliers."""
        return np.full(self.shape, size * self.sigma)


def in_common(values: np.ndarray, past: Past) -> np.ndarray:
    """One number a run, for all of its readings."""
    return np.broadcast_to(values.reshape(-1, *(1 for _ in past.shape[1:])), past.shape)


def walk(past: Past) -> np.ndarray:
    """The last residual again: differences at lag one are pure noise."""
    return past.residuals[-1] if past.residuals else np.zeros(past.shape)


def heavy_tails(past: Past) -> np.ndarray:
    own = past.rng.standard_t(3, past.shape)
    shared = in_common(past.rng.standard_t(3, past.shape[0]), past)
    return 3 * past.sigma / math.sqrt(3) * (own + shared) / math.sqrt(2)


def spread(past: Past, size: float) -> np.ndarray:
    return size * past.sigma * past.rng.standard_normal(past.shape)


def against_the_coins(past: Past) -> np.ndarray:
    """A level that steps down once more canaries were in, and up once more were out."""
    surplus = np.zeros(past.shape[0]) if past.surplus is None else past.surplus
    return in_common(-3 * past.sigma * np.sign(surplus), past)


DATA_TERMS: dict[str, Callable[[Past], np.ndarray]] = {
    "nothing": lambda past: np.zeros(past.shape),
    "offset": lambda past: past.memory.setdefault("offset", spread(past, 1.5)),
    "drift": lambda past: 0.9 * np.mean(past.residuals[-5:] or [np.zeros(past.shape)], axis=0),
    "walk": walk,
    # The tests' own centre: what is left of a residual is pure noise.
    "centre": lambda past: past.total() / (past.steps + PredictableCentre.PRIOR),
    "descent": lambda past: -0.3 * past.total(),
    "sinusoid": lambda past: past.alike(0.03 * past.steps * math.sin(past.steps / 5)),
    "heavy tails": heavy_tails,
    "loud then quiet": lambda past: spread(past, 3 * (past.steps < 30)),
    "quiet then loud": lambda past: spread(past, 3 * (past.steps >= 30)),
    "against the coins": against_the_coins,
    "decaying noise": lambda past: np.zeros(past.shape),
    # Far apart compared with the noise: the coins may split them exactly.
    "two values": lambda past: 100 * past.sigma * past.rng.integers(0, 2, past.shape),
    "three values in common": lambda past: in_common(
        40 * past.sigma * past.rng.integers(-1, 2, past.shape[0]), past
    ),
    "rare and skewed": lambda past: 50 * past.sigma * (past.rng.random(past.shape) < 0.02),
    "parity": lambda past: past.alike(30 * (past.steps % 2)),
    # One of two values, by what the residuals of the past add up to.
    "follows": lambda past: -20 * past.sigma * np.sign(past.total()),
    # Half a signal up or down, by the sign of the last residual: as small as the coin.
    "echoes": lambda past: 0.5 * np.sign(walk(past)),
}


def multipliers(term: str, sigma: float) -> list[float]:
    if term == "decaying noise":
        return [max(sigma * 0.98**t, 0.3 * sigma) for t in range(STEPS)]
    return [sigma] * STEPS


class ManyPooled:
    """`checks.noise_size.PooledSums`, for many runs at once."""

    def __init__(self, runs: int, counts: np.ndarray) -> None:
        self._counts = counts
        self._count = 0.0
        self._squares = np.zeros((runs, len(counts)))
        self._pooled = np.zeros((2, runs))
        self._recent = np.ones((runs, len(counts)))

    def update(self, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen = self._recent < 1.0
        self._pooled += (chosen * self._counts).sum(axis=-1), (chosen * squares).sum(axis=-1)
        self._count += 1
        self._squares += squares
        self._recent = 0.9 * self._recent + 0.1 * np.minimum(squares / self._counts, 2.0)
        units = quick_log_mean_exp(noise_log_e(self._count * self._counts, self._squares))
        return noise_log_e(*self._pooled), units


class ManyWitnesses:
    """`checks.witnesses.WitnessReducer` and the checks it feeds, for many runs at once.

    Every tensor has ``EACH`` coordinates, the same flat ones, so tensors are partners.
    """

    def __init__(self, runs: int) -> None:
        self._centre = PredictableCentre((runs, TENSORS, EACH))
        self._variance = np.ones((runs, TENSORS))
        self._pooled = ManyPooled(runs, np.full(TENSORS, float(EACH)))
        self._lag = np.zeros((2, runs, LAGS))
        self._broadcast, self._pair = np.zeros((2, runs)), np.zeros((2, runs))
        self._past: list[np.ndarray] = []

    def update(self, readings: np.ndarray, sigma: float) -> dict[str, np.ndarray]:
        residual = (readings - self._centre.value) / sigma
        squares = (residual**2).sum(axis=-1)
        pooled, units = self._pooled.update(squares)
        use = self._variance < np.maximum(1.25, 1.05 * self._variance.min(axis=-1, keepdims=True))
        use &= bool(self._past)  # nothing is known of a tensor at the first step
        for lag, past in enumerate(reversed(self._past[-LAGS:])):
            gap = ((past - readings) / sigma * use[..., None]) ** 2
            self._lag[0, :, lag] += EACH * use.sum(axis=-1)
            self._lag[1, :, lag] += gap.sum(axis=(-1, -2))
        self._within_step(residual, use)
        self._past = [*self._past[-LAGS + 1 :], readings]
        self._centre.update(readings)
        self._variance = 0.9 * self._variance + 0.1 * np.minimum(squares / EACH, 4.0)
        return {
            "noise": pooled,
            "noise.tensor": units,
            "reuse.lag": quick_log_mean_exp(noise_log_e(*self._lag)),
            "reuse.broadcast": noise_log_e(*self._broadcast),
            "reuse.pair": noise_log_e(*self._pair),
        }

    def _within_step(self, residual: np.ndarray, use: np.ndarray) -> None:
        flat = residual.reshape(len(residual), -1)
        mask = np.repeat(use, EACH, axis=-1).astype(float)
        number, total = np.cumsum(mask, axis=-1), np.cumsum(flat * mask, axis=-1)
        later = mask[:, 1:] * (number[:, :-1] > 0)
        gap = (flat[:, 1:] - total[:, :-1] / np.maximum(number[:, :-1], 1)) * later
        self._broadcast += later.sum(axis=-1), (gap**2).sum(axis=-1)
        both = use[:, 1:] & use[:, :-1]
        gaps = ((residual[:, 1:] - residual[:, :-1]) ** 2).sum(axis=-1) * both
        self._pair += EACH * both.sum(axis=-1), gaps.sum(axis=-1)


class ManyCanaries:
    """The checks that see canaries, for many runs at once."""

    def __init__(self, runs: int, sigma: float) -> None:
        shape = (runs, CANARIES)
        self._centre = PredictableCentre(shape)
        self._pooled = ManyPooled(runs, np.ones(CANARIES))
        self.coin = CoinBet(shape, initial_scale=sigma, groups=KINDS)
        self.leakage = AdmittedCourse(shape, planned=STEPS)
        self.signal = SignalBet(shape, np.array([1.0]), sigma)

    def update(self, coins: np.ndarray, readings: np.ndarray, sigma: float) -> dict[str, Any]:
        residual = readings - coins
        pooled, units = self._pooled.update(((residual - self._centre.value) / sigma) ** 2)
        self._centre.update(residual)
        self.coin.update(coins, readings)
        self.leakage.update(coins, readings, sigma)
        self.signal.update(coins, readings)
        return {
            "noise.canary": quick_log_mean_exp(np.stack([pooled, units], axis=-1)),
            "sensitivity": self.coin.log_e,
            "epsilon": self.leakage.log_e,
            BOUND: self.signal.log_e[..., 0],
        }


def correct_run(
    rng: np.random.Generator, runs: int, term: str, sigma: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """Coins, canary readings, witness readings and noise multiplier, step by step."""
    canaries = Past(rng, sigma, (runs, CANARIES))
    witnesses = Past(rng, sigma, (runs, TENSORS, EACH))
    for now in multipliers(term, sigma):
        coins = rng.integers(0, 2, (runs, CANARIES)).astype(float)
        for past in (canaries, witnesses):
            past.residuals.append(DATA_TERMS[term](past) + (now * rng.standard_normal(past.shape)))
        yield coins, canaries.residuals[-1] + coins, witnesses.residuals[-1], now
        signs = (2 * coins - 1).sum(axis=-1)
        canaries.surplus = signs if canaries.surplus is None else canaries.surplus + signs


#: Tests of the record; those of the sampler are in `test_batch_bets.py`, those of the noise itself
#: in `tests/checks/test_noise.py` and those of their bets.
ELSEWHERE = {
    *("reuse.recurrence", "reuse.forecast", "reuse.entries", "noise.shape", "noise.entries"),
    *("noise.whole", "batch_normalised"),
}


OF_STEPS = [n for n in SHARES if not n.startswith("sampling.") and n not in ELSEWHERE]


def false_alarms(runs: int, term: str, sigma: float) -> tuple[dict[str, int], dict[str, int]]:
    """Correct runs of so many in which each test alarms, and any at its share.

    At .05 each, the union at the shares of .05; and each at its share of the verdict's level.
    """
    alone: dict[str, int] = dict.fromkeys([*OF_STEPS, BOUND, "union"], 0)
    shared: dict[str, int] = dict.fromkeys([*OF_STEPS, "union"], 0)
    for batch, size in enumerate(batches(runs)):
        rng = np.random.default_rng([list(DATA_TERMS).index(term), round(10 * sigma), batch])
        canary, witness = ManyCanaries(size, sigma), ManyWitnesses(size)
        highest = {name: np.zeros(size) for name in (*OF_STEPS, BOUND)}
        for coins, readings, seen, now in correct_run(rng, size, term, sigma):
            log_e = canary.update(coins, readings, now) | witness.update(seen, now)
            for name, values in log_e.items():
                highest[name] = np.maximum(highest[name], values)
        for name, values in highest.items():
            alone[name] += int(np.sum(values >= -math.log(SIGNIFICANCE)))
        for counts, level in ((alone, SIGNIFICANCE), (shared, VERDICT)):
            alarms = {name: highest[name] >= -math.log(SHARES[name] * level) for name in OF_STEPS}
            counts["union"] += int(np.any(list(alarms.values()), axis=0).sum())
        for name, found in alarms.items():
            shared[name] += int(found.sum())
    return alone, shared


@pytest.mark.usefixtures("quick_means")
@pytest.mark.heavy
@sizes
@pytest.mark.parametrize("sigma", [0.7, 3.0])
@pytest.mark.parametrize("term", list(DATA_TERMS))
@pytest.mark.heavy_one_in(12)
def test_no_test_alarms_in_more_than_its_share_of_correct_runs(term, sigma, runs, record_property):
    alone, shared = false_alarms(runs, term, sigma)
    rates = {name: number / runs for name, number in alone.items()}
    record_property("rates", rates)
    print(f"\n{term} sigma={sigma}", rates, {k: n for k, n in shared.items() if n})  # with -rP
    assert set(rates) == {*OF_STEPS, BOUND, "union"}
    assert {name: number for name, number in alone.items() if number > most(runs)} == {}
    levels = {name: SHARES.get(name, 1.0) * VERDICT for name in shared}
    highest = {name: stats.binom.isf(1e-5, runs, level) for name, level in levels.items()}
    assert {name: number for name, number in shared.items() if number > highest[name]} == {}


@pytest.mark.usefixtures("quick_means")
@pytest.mark.heavy
def test_witnesses_of_many_runs_are_reduced_as_those_of_one():
    index = {j: np.arange(EACH, dtype=np.int64) for j in range(TENSORS)}
    rng = np.random.default_rng(0)
    many, reducer = ManyWitnesses(2), WitnessReducer(Witnesses(index), lags=LAGS)
    lags, pair, broadcast = np.zeros((2, LAGS)), np.zeros(2), np.zeros(2)
    pooled = PooledSums(TENSORS)
    for t in range(40):
        # A tensor that is loud for a while, so that the choice of quiet ones matters.
        loud = np.array([[1.0], [4.0 if 10 < t < 20 else 1.0]])
        readings = loud * rng.standard_normal((2, TENSORS, EACH))
        log_e = many.update(readings, 1.3)
        sums = {
            name: column[0] for name, column in reducer.reduce(readings[1].ravel(), 1.3).items()
        }
        lags += sums["lag_count"], sums["lag_squares"]
        pair += sums["pair_count"], sums["pair_squares"]
        broadcast += sums["broadcast_count"], sums["broadcast_squares"]
        of_pooled = pooled.update(np.full(TENSORS, float(EACH)), sums["tensor_squares"])
        together, *each = noise_log_e(*of_pooled)[0]
        assert log_e["noise"][1] == pytest.approx(together)
        assert log_e["noise.tensor"][1] == pytest.approx(float(log_mean_exp(each)))
        assert log_e["reuse.lag"][1] == pytest.approx(float(log_mean_exp(noise_log_e(*lags))))
        assert log_e["reuse.pair"][1] == pytest.approx(float(noise_log_e(*pair)))
        assert log_e["reuse.broadcast"][1] == pytest.approx(float(noise_log_e(*broadcast)))


@pytest.mark.usefixtures("quick_means")
@pytest.mark.heavy
@sizes
@pytest.mark.parametrize("sigma", [0.7, 3.0])
@pytest.mark.parametrize("true_ratio", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("term", ["nothing", "against the coins", "decaying noise"])
@pytest.mark.heavy_one_in(6)
def test_lower_ratio_covers_that_of_a_gaussian_mechanism(true_ratio, sigma, term, runs):
    missed = 0
    for batch, size in enumerate(batches(runs)):
        rng = np.random.default_rng([round(10 * true_ratio), round(10 * sigma), batch])
        course, refused = AdmittedCourse((size, CANARIES)), np.zeros(size, dtype=bool)
        for coins, readings, _, now in correct_run(rng, size, term, sigma):
            course.update(coins, readings + (true_ratio - 1) * coins, now, mu=true_ratio / now)
            refused |= course.refused(SIGNIFICANCE)
        missed += int(refused.sum())
    print(f"\n{term} sigma={sigma} ratio={true_ratio}: {missed / runs}")
    assert missed <= most(runs)


def randomized_response(rng: np.random.Generator, coins: np.ndarray) -> np.ndarray:
    return np.where(rng.random(coins.shape) < math.e / (1 + math.e), coins, 1 - coins)


def laplace(rng: np.random.Generator, coins: np.ndarray) -> np.ndarray:
    return coins + rng.laplace(size=coins.shape)


@pytest.mark.usefixtures("quick_means")
@pytest.mark.heavy
@sizes
@pytest.mark.parametrize(
    ("mechanism", "mu"),
    # The balanced point of the trade-off curve: error rates exp(-1/2)/2 and 1/(1 + e).
    [(laplace, 1.0301), (randomized_response, 1.2320)],
)
@pytest.mark.parametrize("k", [1, CANARIES])
def test_lower_ratio_covers_mechanisms_that_are_not_gaussian(mechanism, mu, k, runs):
    missed, positive = 0, 0
    for batch, size in enumerate(batches(runs)):
        rng = np.random.default_rng([k, batch])
        course, refused = AdmittedCourse((size, k)), np.zeros(size, dtype=bool)
        for _ in range(STEPS):
            coins = rng.integers(0, 2, (size, k)).astype(float)
            course.update(coins, mechanism(rng, coins), 1.0, mu=mu + 1e-4)
            refused |= course.refused(SIGNIFICANCE)
        looks, claims = [(STEPS, course.bet.growth)], [(1.0, 1.0, STEPS)]
        (lower,) = course.bet.ratios(SIGNIFICANCE, looks, claims)
        missed += int(refused.sum())
        positive += int(np.sum(lower > 0))
    print(f"\n{mechanism.__name__} k={k}: missed {missed / runs}, positive {positive}")
    assert missed <= most(runs)
    if k == CANARIES:
        assert positive > 0.9 * runs  # the bound says something


# --- Bets on shares of right guesses, against recipe R6 of the lab, naive twins and simulations.
@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.76, {10: 0.3185, 30: 0.9791, 100: 1.2717, 300: 1.3644}),
        (1.0, {10: 1.2937, 30: 2.6208, 100: 3.7760, 300: 4.6575}),
    ],
)
def test_the_product_of_shares_gives_the_bounds_of_the_lab(share, expected):
    for trainings, mu in expected.items():
        rate = float(special.ndtr(-mu / 2))  # the claim that is just rejected at 0.05
        values = share_log_e([share] * trainings, rate, [np.inf])
        assert values[-1] == pytest.approx(math.log(20), abs=5e-3)


@pytest.mark.parametrize("rate", [0.1, 0.45])
def test_log_e_is_the_mean_of_products(rate):
    right = np.random.default_rng(0).random(12)
    wealth = [
        math.prod(
            w / (1 - rate) if np.isinf(k) else (1 + k * w) / (1 + k * (1 - rate)) for w in right
        )
        for k in SHARE_STAKES
    ]
    assert share_log_e(right, rate)[-1] == pytest.approx(math.log(np.mean(wealth)), abs=1e-12)


def test_whole_shares_are_counts_in_any_order():
    right = np.repeat([1.0, 0.0], [40, 3])
    for order in (right, right[::-1]):
        assert share_log_e(order, 0.3)[-1] == pytest.approx(
            float(log_e_of_whole_shares(3, 43, 0.3)), abs=1e-12
        )
    assert float(log_e_of_whole_shares(0, 0, 0.3)) == pytest.approx(0)


def test_the_limit_is_the_rate_at_which_the_e_value_reaches_its_goal():
    right = np.random.default_rng(1).beta(8, 3, 60)
    upper = share_error_upper(right, 0.05)
    assert share_log_e(right, upper)[-1] == pytest.approx(math.log(20), abs=1e-6)
    assert upper > 1 - right.mean()
    assert share_error_upper([], 0.05) == 1.0


def test_further_trainings_like_those_so_far_refute():
    more = further_trainings(np.full(40, 0.75), 0.3, 1e-3)
    assert share_log_e(np.full(40 + more, 0.75), 0.3)[-1] >= math.log(1e3)
    assert further_trainings(np.full(400, 0.75), 0.3, 1e-3) == 0
    assert further_trainings(np.full(40, 0.5), 0.3, 1e-3) is None
    assert further_trainings([], 0.3, 1e-3) is None


@pytest.mark.parametrize("dependence", [0.0, 0.7, 1.0])
def test_it_seldom_refutes_a_true_claim_if_coins_of_a_training_depend(dependence):
    # By simulation. All canaries of a training err together with this probability.
    runs, rng, rate = 400, np.random.default_rng(2), 0.3
    shape = (runs, 150, 8)
    wrong = rng.random(shape) < rate
    wrong = np.where((rng.random(shape[:2]) < dependence)[..., None], wrong[..., :1], wrong)
    failures = sum(share_log_e(1 - row.mean(axis=1), rate).max() >= math.log(20) for row in wrong)
    assert failures <= most_failures(runs, 0.05, 4000)


test_bad_arguments_are_refused = refusals(
    (lambda: share_log_e([1.2], 0.3), "right="),
    (lambda: share_log_e([[0.5]], 0.3), "right="),
    (lambda: share_log_e([0.5], 1.0), "rate=1.0"),
    (lambda: share_error_upper([0.5], 0.0), "significance=0.0"),
    (lambda: further_trainings([0.5], 0.3, 2.0), "significance=2.0"),
)


# --- Statistics of the readings with their coins' signs: against plain sums over all of them.
def test_statistics_are_those_of_all_signed_readings_together():
    signed, centre, rows = SignedReadings(3), PredictableCentre((3,)), []
    for coins, readings in simulated_steps(0, 40, 3):
        rows.append((2 * coins - 1) * (readings - centre.value - 0.5) / 1.5)
        centre.update(readings - coins)
        signed.update(coins, readings, 1.5)
    y = np.concatenate(rows)
    number, mean, squares = signed.statistics
    assert number == len(y) == 120
    assert mean == pytest.approx(y.mean(), abs=1e-12)
    assert squares == pytest.approx(((y - y.mean()) ** 2).sum(), rel=1e-10)


def test_steps_from_another_noise_multiplier_on_are_left_out():
    signed = SignedReadings(2)
    first, *others = simulated_steps(1, 5, 2)
    signed.update(*first, 1.5)
    before = signed.statistics
    for sigma, step in zip((1.4, 1.5, 1.5, 1.5), others, strict=True):
        signed.update(*step, sigma)
    assert signed.frozen
    assert (signed.noise_multiplier, signed.statistics) == (1.5, before)


def test_readings_that_agree_have_no_spread_below_zero():
    signed = SignedReadings(1)
    signed.update(np.array([1.0]), np.array([0.3]), 1.0)
    assert signed.statistics == (1, pytest.approx(-0.2), 0.0)
    assert SignedReadings(1).statistics == (0, 0.0, 0.0)
