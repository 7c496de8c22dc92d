import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from scipy import optimize, special, stats

from lightning_audit.stats.sampling_tests import (
    OVERLAP_TILTS,
    RATE_RATIOS,
    REPEAT_STAKE,
    VARIANCES,
    DivisorTest,
    PoissonBatchBets,
    RepeatBet,
    favoured_log_e,
    largest_interval_probability,
    overlap_log_e,
    rate_log_e,
)
from lightning_audit.stats.sequential import log_mean_exp

Draw = Callable[[np.random.Generator, int], np.ndarray]
RECORDS, SIZE, EPOCH = 512, 16, 32


@pytest.mark.parametrize(("low", "high"), [(1, 1), (8, 8), (5, 9), (0, 3), (28, 30), (30, 30)])
def test_largest_probability_of_an_interval_is_that_of_the_best_of_all_rates(low, high):
    rates = np.linspace(0, 1, 20_001)
    naive = (stats.binom.cdf(high, 30, rates) - stats.binom.cdf(low - 1, 30, rates)).max()
    assert largest_interval_probability(30, low, high) == pytest.approx(naive, rel=1e-6)


@pytest.mark.parametrize(
    ("records", "marked", "drawn"), [(30, 7, 5), (30, 29, 12), (10, 10, 4), (8, 3, 8), (9, 4, 0)]
)
def test_overlap_has_mean_one_under_the_hypergeometric_law(records, marked, drawn):
    law = stats.hypergeom(records, marked, drawn)
    x = np.arange(drawn + 1)
    naive = (OVERLAP_TILTS[:, None] ** x * law.pmf(x)).sum(axis=1)
    for overlap in (max(0, drawn + marked - records), min(drawn, marked)):
        got = overlap_log_e(records, marked, drawn, overlap, OVERLAP_TILTS)
        assert got == pytest.approx(overlap * np.log(OVERLAP_TILTS) - np.log(naive), abs=1e-12)


def test_overlap_stays_exact_for_a_million_records():
    got = overlap_log_e(10**6, 5 * 10**5, 1000, 500, np.array([0.5]))
    # The draw is so small a part that it is all but binomial.
    assert got[0] == pytest.approx(500 * math.log(0.5) - 1000 * math.log(0.75), rel=1e-3)


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_bet_on_the_rate_has_mean_one_at_the_rate_and_less_below(rate):
    hits = np.arange(41)
    log_e = np.array([rate_log_e(40, int(k), rate) for k in hits])
    for true in (0.2 * rate, 0.7 * rate, rate):
        mean = (stats.binom.pmf(hits, 40, true)[:, None] * np.exp(log_e)).sum(axis=0)
        assert (mean <= 1 + 1e-12).all()
        if true == rate:
            assert mean == pytest.approx(np.ones(len(RATE_RATIOS)))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_bet_on_the_size_has_mean_one_at_most_whatever_the_rate(rate):
    for true in np.linspace(0.5 * rate, 0.5, 12):
        mean = np.zeros(2)
        for size in range(61):
            bets = PoissonBatchBets(60)
            bets.update(np.arange(round(60 * rate)))
            bets.update(np.arange(size))
            mean += stats.binom.pmf(size, 60, true) * np.exp(bets.wealth[:2])
        assert (mean <= 1 + 1e-9).all()


def poisson(rng: np.random.Generator, _: int) -> np.ndarray:
    return np.flatnonzero(rng.random(RECORDS) < SIZE / RECORDS)


def unequal(rng: np.random.Generator, _: int) -> np.ndarray:
    """Each record has a rate of its own, none above a tenth."""
    return np.flatnonzero(rng.random(RECORDS) < np.linspace(0, 0.1, RECORDS))


POISSON = {
    "equal": poisson,
    "unequal": unequal,
    # A third of the data set is trained on, at rate one half.
    "of a part": lambda rng, t: np.flatnonzero(rng.random(RECORDS // 3) < 0.5),
    "drifting": lambda rng, t: np.flatnonzero(rng.random(RECORDS) < 0.02 + 0.02 * (t // EPOCH % 2)),
}


class Shuffled:
    """Every record once in an epoch, in batches of Poisson sizes, so that no size tells."""

    def __init__(self) -> None:
        self.left = np.zeros(0, dtype=np.int64)

    def __call__(self, rng: np.random.Generator, t: int) -> np.ndarray:
        size = rng.binomial(RECORDS, SIZE / RECORDS)
        if len(self.left) < size:
            self.left = rng.permutation(RECORDS)
        batch, self.left = self.left[:size], self.left[size:]
        return batch


class SeededEachEpoch:
    """A Poisson sampler whose generator starts again in each epoch."""

    def __call__(self, _: np.random.Generator, t: int) -> np.ndarray:
        return poisson(np.random.default_rng(t % EPOCH), 0)


def highest(draw: Draw, seed: int, steps: int, floor: float = math.inf) -> tuple[float, int, str]:
    """The largest log e-value, the batch at which it passed ``floor``, and what showed it."""
    rng, bets, top = np.random.default_rng(seed), PoissonBatchBets(RECORDS), 0.0
    for t in range(steps):
        if t % EPOCH == 0:
            bets.start_epoch()
        bets.update(draw(rng, t))
        top = max(top, bets.log_e)
        if top >= floor:
            break
    return top, t + 1, bets.NAMES[int(bets.wealth.argmax())]


@pytest.mark.heavy
@pytest.mark.parametrize("draw", POISSON.values(), ids=POISSON)
def test_poisson_sampling_of_any_rates_alarms_in_less_than_its_significance(draw):
    tops = np.array([highest(draw, seed, 100)[0] for seed in range(200)])
    # Nominal .05; 17 of 200 is three standard errors above it.
    assert (tops >= math.log(20)).sum() <= 17
    assert tops.max() < math.log(1e5)


@pytest.mark.parametrize(
    ("make", "what", "at_most"),
    [
        (lambda: lambda rng, _: rng.choice(RECORDS, SIZE, replace=False), "size", 12),
        (Shuffled, "unseen", 16),
        (SeededEachEpoch, "repeated", EPOCH + 3),
    ],
)
def test_other_sampling_is_found_in_few_batches_and_named(make, what, at_most):
    for seed in range(5):
        top, batches, seen = highest(make(), seed, 100, floor=math.log(1e5))
        assert (top >= math.log(1e5), seen) == (True, what)
        assert batches <= at_most


def after_epochs(draw: Draw, epochs: int) -> PoissonBatchBets:
    rng, bets = np.random.default_rng(0), PoissonBatchBets(RECORDS)
    for t in range(epochs * EPOCH):
        if t % EPOCH == 0:
            bets.start_epoch()
        bets.update(draw(rng, t))
    return bets


def test_favoured_records_are_found_by_the_rate_of_those_that_came_before():
    # The expected size is right, but only a quarter of the records is ever drawn.
    bets = after_epochs(
        lambda rng, _: np.flatnonzero(rng.random(RECORDS // 4) < 4 * SIZE / RECORDS), 4
    )
    (all_records, seen) = (rate_log_e(*map(int, row), SIZE / RECORDS) for row in bets.counts)
    assert log_mean_exp(all_records) < 5
    assert log_mean_exp(seen) > math.log(1e5)


def test_wrong_sampling_after_a_long_healthy_time_is_not_paid_for_by_repetition_bets():
    # All but the first epoch's batches were bet on, and each lost the stake at most.
    wealth = after_epochs(poisson, 10).wealth[4]
    assert wealth >= 9 * EPOCH * math.log(1 - REPEAT_STAKE) - 1e-9


def test_of_more_records_than_are_watched_evenly_spaced_ones_stand_for_all(monkeypatch):
    monkeypatch.setattr("lightning_audit.stats.sampling_tests.WATCHED", 200)
    bets = PoissonBatchBets(RECORDS)
    order = np.random.default_rng(0).permutation(RECORDS)
    bets.start_epoch()
    for start in range(0, RECORDS, SIZE):
        bets.update(order[start : start + SIZE])
    assert bets.wealth[2] > math.log(1e5)


# --- The divisor's e-process: against scipy, in expectation, and on divided sums.
@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_it_is_the_ratio_of_likelihoods(scale):
    rng = np.random.default_rng(0)
    test, noise, n = DivisorTest(), 0.8, 25
    steps = []
    for _ in range(4):
        sums = 3 * rng.normal(size=n)
        released, ratios = sums + scale * noise * rng.normal(size=n), (rng.uniform(0.5, 1.5), 1.1)
        test.update(released, sums, noise, ratios)
        steps.append((released / noise, sums / noise, ratios))

    def loglik(std: float, which: slice = slice(None)) -> float:
        return float(sum(stats.norm.logpdf(y, s, std).sum() for y, s, _ in steps[which]))

    def largest(which: slice, low: float) -> float:
        found = optimize.minimize_scalar(
            lambda std: -loglik(std, which), bounds=(low, 50.0), method="bounded"
        )
        return max(-found.fun, loglik(low, which))

    def learned(ratio_at: Callable[[tuple[float, ...]], float]) -> float:
        """With the variance that the steps before show."""
        total, variance = 0.0, 1.0
        for y, s, r in steps:
            gap = ratio_at(r) * y - s
            total += stats.norm.logpdf(gap, 0, np.sqrt(variance)).sum() + n * np.log(ratio_at(r))
            variance = 0.9 * variance + 0.1 * np.mean(gap**2)
        return float(total)

    null = max(
        sum(largest(slice(t, t + 1), 1.0) for t in range(4)),
        largest(slice(None), 1e-3),
        learned(lambda _: 1.0),
    )

    def stated(i: int, std: float) -> float:
        logs = [stats.norm.logpdf(r[i] * y, s, std).sum() + n * np.log(r[i]) for y, s, r in steps]
        return float(sum(logs))

    other = [stated(i, np.sqrt(g)) for i in range(2) for g in VARIANCES]
    other += [learned(lambda r, i=i: r[i]) for i in range(2)]
    expected = special.logsumexp(other) - np.log(len(other)) - null
    assert test.log_e == pytest.approx(expected, abs=1e-4)


def _after(kind: str, seed: int, data: float = 2.0, steps: int = 40) -> DivisorTest:
    """A test after steps whose batches are Poisson, and whose gradient is divided by ``kind``."""
    rng, test, n, mean = np.random.default_rng(seed), DivisorTest(), 60, 16
    direction = rng.normal(size=n)
    for _ in range(steps):
        records = max(int(rng.poisson(mean)), 1)
        whole = data * records / mean * direction + rng.normal(size=n)
        divisor = {"stated": 1.0, "records": records / mean, "length": np.linalg.norm(whole)}[kind]
        test.update(whole / divisor, np.zeros(n), 1.0, (records / mean, (records + 1) / mean))
    return test


@pytest.mark.parametrize("seed", range(10))
def test_only_what_is_divided_by_the_records_shrinks_with_them(seed):
    assert not _after("stated", seed).shrinks_with_divisor
    assert not _after("length", seed).shrinks_with_divisor


def test_noise_that_is_divided_by_the_records_shrinks_with_them():
    rng, test, n = np.random.default_rng(0), DivisorTest(), 60
    for step in range(20):
        assert not (step < 8 and test.shrinks_with_divisor)  # too few to tell
        records = int(rng.poisson(16))
        test.update(rng.normal(size=n) * 16 / records, np.zeros(n), 1.0, (records / 16,))
    assert test.shrinks_with_divisor


def test_data_that_grow_with_the_batch_hide_the_divisor():
    # Divided by the records, sums that are far louder than the noise have one length.
    assert not _after("records", 0, data=100.0).shrinks_with_divisor


def test_nothing_is_said_without_a_step_or_a_divisor():
    test = DivisorTest()
    assert test.log_e == 0.0
    test.update(np.zeros(3), np.zeros(3), 1.0, ())
    test.update(np.zeros(0), np.zeros(0), 1.0, (0.5,))
    assert test.log_e == 0.0


def e_values_of_a_step(y: np.ndarray, s: np.ndarray, ratio: float) -> np.ndarray:
    """E-values after one step of noise 1, of many runs ``[runs, n]``, by a plain formula."""
    n = y.shape[1]
    plain, left = np.sum((y - s) ** 2, axis=1), np.sum((ratio * y - s) ** 2, axis=1)
    variance = np.maximum(plain / n, 1.0)
    step_null = -0.5 * (n * np.log(variance) + plain / variance)
    null = np.max([step_null, -0.5 * n * (np.log(plain / n) + 1.0), -0.5 * plain], axis=0)
    # The variance that the past shows is 1 in the first step.
    tried = np.append(VARIANCES, 1.0)
    other = n * np.log(ratio) - 0.5 * n * np.log(tried) - 0.5 * left[:, None] / tried
    values = np.exp(other - null[:, None]).mean(axis=1)
    for i in range(20):
        test = DivisorTest()
        test.update(y[i], np.broadcast_to(s, y.shape)[i], 1.0, (ratio,))
        assert values[i] == pytest.approx(np.exp(test.log_e), rel=1e-9)
    return values


@pytest.mark.parametrize("ratio", [0.9, 1.05, 1.5])
@pytest.mark.parametrize(
    ("data", "scale"),
    [
        *((None, scale) for scale in (0.3, 1.0, 1.2, 2.0)),  # the sum is known
        *((data, scale) for data in (0.5, 2.0) for scale in (1.0, 1.2, 2.0)),
    ],
)
def test_a_stated_divisor_costs_at_most_one_on_average(data, scale, ratio):
    rng = np.random.default_rng(1 if data is None else 3)
    sums = (data or 1.0) * rng.normal(size=3)
    noisy = sums + scale * rng.normal(size=(10_000, 3))
    values = e_values_of_a_step(noisy, sums if data is None else np.zeros(3), ratio)
    assert np.mean(values) <= 1 + 3 * np.std(values) / np.sqrt(len(values))


@pytest.mark.parametrize("scale", [0.02, 0.5, 1.0])
def test_a_realised_batch_size_is_seen_in_two_steps(scale):
    rng, test = np.random.default_rng(2), DivisorTest()
    for size in (11, 21):
        sums = rng.normal(size=384)
        test.update((sums + scale * rng.normal(size=384)) * 16 / size, sums, 1.0, (size / 16,))
    assert test.log_e > 12


# --- Batches that come again, and records that are favoured: found, and not found by chance.
def batches(records: int, rate: float, count: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(np.flatnonzero(rng.random(records) < rate)) for _ in range(count)]


def bet_on(drawn: list[tuple[int, ...]], records: int, rate: float) -> RepeatBet:
    bet = RepeatBet(records)
    for batch in drawn:
        bet.update(batch, len(batch), rate)
    return bet


def test_the_chance_of_an_earlier_batch_is_the_largest_at_any_rate_up_to_the_stated_one():
    records, rate = 6, 0.3
    known = [(0, 1), (2,), (1, 4, 5), (0, 3)]
    bet = bet_on(known, records, rate)
    rates = np.linspace(1e-4, rate, 4001)
    each = [max(rates ** len(b) * (1 - rates) ** (records - len(b))) for b in known]
    assert bet._chance(rate) == pytest.approx(sum(each), rel=1e-6)
    for own in rates[::400]:
        drawn = sum(
            own**size * (1 - own) ** (records - size)
            for size in range(records + 1)
            for chosen in combinations(range(records), size)
            if chosen in known
        )
        assert drawn <= bet._chance(rate) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("records", "rate", "stated", "count"),
    [
        (1797, 0.001, 0.002, 2000),
        (1797, 0.001, 0.01, 300),
        (100, 0.01, 0.1, 50),
        (60, 0.02, 0.2, 300),
    ],
)
def test_a_loader_that_draws_less_than_stated_is_not_accused(records, rate, stated, count):
    """Proved in the class' docstring; before, 20 of 20 of each were accused."""
    for seed in range(20):
        bet = RepeatBet(records)
        for batch in batches(records, rate, count, seed):
            bet.update(batch, len(batch), stated)
            assert bet.log_e < math.log(1000.0)


def test_empty_batches_never_count_as_repeated():
    bet = bet_on([()] * 500, 100, 0.1)
    assert (bet.again, bet.log_e) == (0, pytest.approx(0.0))


def test_batches_that_come_again_are_found_at_once():
    drawn = batches(1000, 0.03, 30)
    bet = bet_on(drawn + drawn[:1], 1000, 0.03)
    assert bet.again == 1
    assert bet.log_e > 20.0


@pytest.mark.parametrize(("records", "rate"), [(5, 0.2), (12, 0.1), (200, 0.05), (40, 0.6)])
def test_new_batches_keep_the_mean_at_most_one(records, rate):
    # By simulation; proved in the class' docstring. Small data sets, where batches do come again.
    e = [
        math.exp(bet_on(batches(records, rate, 40, seed), records, rate).log_e)
        for seed in range(300)
    ]
    assert np.mean(e) < 1.0 + 3.0 * np.std(e) / math.sqrt(len(e)) + 1e-9
    assert max(e) < 50.0


@pytest.mark.parametrize("rate", [0.005, 0.1, 0.6])
def test_favoured_records_are_not_found_where_none_are(rate):
    rng = np.random.default_rng(1)
    e = [math.exp(favoured_log_e(rng.binomial(50, rate, 300), 50, rate)) for _ in range(500)]
    assert np.mean(e) < 1.0 + 3.0 * np.std(e) / math.sqrt(len(e))
    assert max(e) < 100.0


@pytest.mark.parametrize("favoured", [1, 30, 300])
def test_favoured_records_are_found_however_few_unless_all_are_taken(favoured):
    rng = np.random.default_rng(1)
    counts = rng.binomial(200, 0.02, 3000)
    counts[:favoured] = rng.binomial(200, 0.5, favoured)
    assert favoured_log_e(counts, 200, 0.02) > 20.0
    assert favoured_log_e(np.full(10, 5), 5, 1.0) == favoured_log_e(np.zeros(0), 5, 0.1) == 0.0
