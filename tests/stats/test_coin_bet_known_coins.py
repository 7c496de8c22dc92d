"""The betting tests with coins of a known probability that is not one half."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from admitted_course import AdmittedCourse
from coin_steps import RATIOS, mean_over_coins
from scipy import stats

from lightning_audit.stats.canary_bets import COIN_SLOPES, CoinBet, LeakageBet, SignalBet
from lightning_audit.stats.gaussian import mu_noncentral_t
from lightning_audit.stats.power import sensitivity_power, steps_needed

PROBABILITIES = [0.1, 0.3, 0.5, 0.9]
SHARE = 1e-4


def steps_of(
    p: float, seed: int, steps: int, shape: tuple[int, ...], shift: float = 1.0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        coins = (rng.random(shape) < p).astype(float)
        yield coins, shift * coins + 0.3 + rng.standard_normal(shape)


# ------------------------------------------------------------------ naive twins


@pytest.mark.parametrize("p", PROBABILITIES)
def test_coin_bet_pays_the_probabilities_that_it_gives(p: float) -> None:
    k, signal = 3, 1.0078125
    bet = CoinBet((k,), signal, initial_scale=1.5, coin_probability=p)
    wealth = [1.0] * len(COIN_SLOPES)
    past: list[np.ndarray] = []
    squares, number = 20 * 1.5**2, 20.0
    for coins, readings in steps_of(p, 1, 40, (k,)):
        scale = math.sqrt(squares / number)
        residuals = readings - signal * coins
        pooled = float(np.mean(past)) if past else 0.0
        for i in range(k):
            centred = residuals[i] - (sum(r[i] for r in past) + 10 * pooled) / (len(past) + 10)
            for j, a in enumerate(COIN_SLOPES):
                tilt = math.exp(a * centred / scale + (p - 0.5) * a * a)
                says_in = p * tilt / (1 - p + p * tilt)
                wealth[j] *= says_in / p if coins[i] else (1 - says_in) / (1 - p)
            squares, number = squares + centred**2, number + 1
        past.append(residuals)
        bet.update(coins, readings)
    assert float(bet.log_e) == pytest.approx(math.log(sum(wealth) / len(wealth)), abs=1e-11)


def test_a_tenth_of_a_coin_bet_is_on_the_groups_in_equal_parts() -> None:
    groups = ["Dirac", "Spread", "Dirac", "BlockPair"]
    bet = CoinBet((4,), groups=groups)
    wealth = np.ones((len(COIN_SLOPES), 4))
    past: list[np.ndarray] = []
    squares, number = 20.0, 20.0
    for coins, readings in steps_of(0.5, 3, 40, (4,), shift=2.0):
        residuals = readings - coins
        pooled = float(np.mean(past)) if past else 0.0
        total = np.sum(past, axis=0) if past else np.zeros(4)
        centred = residuals - (total + 10 * pooled) / (len(past) + 10)
        says_in = stats.logistic.cdf(np.outer(COIN_SLOPES, centred) / math.sqrt(squares / number))
        wealth *= np.where(coins == 1, says_in, 1 - says_in) / 0.5
        squares, number = squares + float(centred @ centred), number + 4
        past.append(residuals)
        bet.update(coins, readings)
    of_groups = [
        np.mean(np.prod(wealth[:, np.array(groups) == name], axis=1)) for name in set(groups)
    ]
    expected = 0.9 * np.mean(np.prod(wealth, axis=1)) + 0.1 * np.mean(of_groups)
    assert float(bet.log_e) == pytest.approx(math.log(expected), abs=1e-11)


def test_one_group_is_all_canaries_together() -> None:
    bets = CoinBet((3,)), CoinBet((3,), groups=["Spread"] * 3)
    for coins, readings in steps_of(0.5, 4, 20, (3,), shift=2.0):
        for bet in bets:
            bet.update(coins, readings)
        assert bets[0].log_e == bets[1].log_e


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan])
def test_a_coin_that_is_none_is_refused(p: float) -> None:
    makers: list[Callable[[], object]] = [
        lambda: CoinBet((1,), coin_probability=p),
        lambda: LeakageBet((1,), p),
        lambda: SignalBet((1,), RATIOS, 1.0, p),
        lambda: sensitivity_power(1, 10, 2.0, 1.0, coin_probability=p),
    ]
    for make in makers:
        with pytest.raises(ValueError, match=r"^coin_probability="):
            make()


# ------------------------------------------------------------------ laws


@pytest.mark.parametrize("p", [0.01, *PROBABILITIES])
@pytest.mark.parametrize("residuals", [[0.0], [1e4], [-3.0, 2.0], [0.4, -1e3, 7.0]])
def test_coin_bet_gains_nothing_over_the_coins_and_loses_below_the_signal(
    p: float, residuals: list[float]
) -> None:
    assert mean_over_coins(np.array(residuals), 1.0, p=p) == pytest.approx(1, abs=1e-9)
    for shift in (-3.0, 0.0, 0.9):
        assert mean_over_coins(np.array(residuals), shift, p=p) <= 1 + 1e-9


@pytest.mark.parametrize("p", [0.01, *PROBABILITIES])
@pytest.mark.parametrize("data_term", [0.0, -0.7, 4.0])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_leakage_bets_gain_nothing_at_the_true_ratio(
    p: float, data_term: float, ratio: float
) -> None:
    sigma, z = 0.7, np.linspace(-9.0, 9.0, 400_001)
    density = stats.norm.pdf(z) * (z[1] - z[0])
    wealth = np.zeros(11)
    for coin, side in ((0.0, 1 - p), (1.0, p)):
        course = AdmittedCourse((len(z), 1), p)
        readings = coin * ratio + data_term + sigma * z
        course.update(np.full((len(z), 1), coin), readings[:, None], sigma, mu=ratio / sigma)
        wealth = wealth + side * (density @ course.factors)
    assert (wealth <= 1 + 1e-5).all()  # within the sum that stands in for the integral
    if data_term == 0.0 and ratio == 1.0:
        assert wealth == pytest.approx(1, abs=0.01)  # little is given away at the claim itself


# ------------------------------------------------------------------ false alarms


def rare_bursts(rng: np.random.Generator, level: np.ndarray) -> np.ndarray:
    return 10.0 * (rng.random(level.shape) < 0.02)


def against_the_coins(rng: np.random.Generator, level: np.ndarray) -> np.ndarray:
    return -3.0 * np.sign(level)


DATA_TERMS = {
    "nothing": lambda rng, level: np.zeros(level.shape),
    "rare bursts": rare_bursts,
    "skewed": lambda rng, level: rng.exponential(1.5, level.shape),
    "against the coins": against_the_coins,
}


def false_alarms(p: float, term: str, runs: int, steps: int = 100) -> dict[str, float]:
    """Share of sound runs of one canary in which a test ever alarms at .05."""
    rng = np.random.default_rng([round(100 * p), list(DATA_TERMS).index(term)])
    shape = (runs, 1)
    coin, leakage = CoinBet(shape, coin_probability=p), AdmittedCourse(shape, p)
    signal = SignalBet(shape, np.array([1.0]), coin_probability=p)
    best, level = np.zeros((3, runs)), np.zeros(shape)
    for _ in range(steps):
        coins = (rng.random(shape) < p).astype(float)
        readings = coins + DATA_TERMS[term](rng, level) + rng.standard_normal(shape)
        coin.update(coins, readings)
        leakage.update(coins, readings, 1.0)
        level += coins - p
        signal.update(coins, readings)
        best = np.maximum(best, [coin.log_e, leakage.log_e, signal.log_e[..., 0]])
    shares = np.mean(best >= -math.log(0.05), axis=1)
    return dict(zip(("coin", "leakage", "signal"), shares.tolist(), strict=True))


@pytest.mark.parametrize("p", PROBABILITIES)
@pytest.mark.parametrize(
    ("runs", "terms"),
    [
        (1500, ["nothing", "rare bursts"]),
        pytest.param(10_000, list(DATA_TERMS), marks=pytest.mark.heavy),
    ],
)
def test_sound_runs_alarm_no_oftener_than_the_significance(
    p: float, runs: int, terms: list[str]
) -> None:
    highest = 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    for term in terms:
        rates = false_alarms(p, term, runs)
        assert max(rates.values()) <= highest, (term, rates)


GROUPS = ["Dirac", "Spread", "Dirac", "BlockPair", "Dirac", "Dirac", "Spread", "Dirac"]


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize(
    ("runs", "terms"),
    [
        (1500, ["skewed"]),
        pytest.param(2500, list(DATA_TERMS), marks=pytest.mark.heavy),
        pytest.param(10_000, list(DATA_TERMS), marks=pytest.mark.nightly),
    ],
)
def test_a_bet_on_groups_alarms_no_oftener_than_the_significance(
    p: float, runs: int, terms: list[str]
) -> None:
    highest = 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    # The kinds differ in their signal, none adds more than it may, and one is much louder.
    signal = np.array([1.0, 1.0, 0.5, 0.9, 1.0, 1.0, 1.0, 0.0])
    loudness = np.array([1.0, 0.5, 20.0, 1.0, 1.0, 1.0, 0.5, 1.0])
    for term in terms:
        rng = np.random.default_rng([round(100 * p), list(DATA_TERMS).index(term), 1])
        shape = (runs, len(GROUPS))
        bet = CoinBet(shape, coin_probability=p, groups=GROUPS)
        best, level = np.zeros(runs), np.zeros(shape)
        for _ in range(60):
            coins = (rng.random(shape) < p).astype(float)
            term_now = loudness * DATA_TERMS[term](rng, level)
            bet.update(coins, signal * coins + term_now + rng.standard_normal(shape))
            level += coins - p
            best = np.maximum(best, bet.log_e)
        rate = float(np.mean(best >= -math.log(0.05)))
        assert rate <= highest, (term, rate)


def test_a_skewed_data_term_misleads_the_t_bound_where_coins_are_rare() -> None:
    """Why `fdp_t` is left out for such coins; for fair ones the skewness cancels."""
    runs, readings, nominal = 20_000, 20, 1e-3
    shares = []
    for p in (0.1, 0.5):
        rng = np.random.default_rng(0)
        coins = (rng.random((runs, readings)) < p).astype(float)
        z = coins + rare_bursts(rng, coins) + rng.standard_normal(coins.shape)
        sizes = np.maximum([coins.sum(axis=1), (1 - coins).sum(axis=1)], 1).astype(int)
        inside, outside = np.array([(z * coins).sum(axis=1), (z * (1 - coins)).sum(axis=1)]) / sizes
        within = (z**2).sum(axis=1) - sizes[0] * inside**2 - sizes[1] * outside**2
        limit = mu_noncentral_t(sizes[0], sizes[1], inside - outside, within, nominal)
        both = (coins.min(axis=1) == 0) & (coins.max(axis=1) == 1)
        shares.append(float(np.mean((np.asarray(limit) > 1.0) & both)))
    assert shares[0] > nominal + 3 * math.sqrt(nominal / runs)
    assert shares[1] <= nominal + 3 * math.sqrt(nominal / runs)


# ------------------------------------------------------------------ power


def test_a_fault_of_one_group_is_flagged_in_half_the_steps_and_that_of_all_hardly_later() -> None:
    runs, share = 200, SHARE
    spread = np.array([2.45 if name == "Spread" else 1.0 for name in GROUPS])
    medians = []
    for shift in (spread, np.full(len(GROUPS), 2.0)):
        for groups in (None, GROUPS):
            rng = np.random.default_rng(5)
            bet = CoinBet((runs, len(GROUPS)), groups=groups)
            first = np.full(runs, 200)
            for step in range(100):
                coins = rng.integers(0, 2, (runs, len(GROUPS))).astype(float)
                bet.update(coins, shift * coins + rng.standard_normal(coins.shape))
                found = bet.log_e >= -math.log(share)
                first = np.minimum(first, np.where(found, step + 1, 200))
            medians.append(float(np.median(first)))
    assert medians[1] < 0.55 * medians[0]
    assert medians[3] <= medians[2] + 2


def flagged(p: float, k: int, steps: int, shift: float, runs: int = 1000) -> float:
    bet, found = CoinBet((runs, k), coin_probability=p), np.zeros(runs, dtype=bool)
    for coins, readings in steps_of(p, 7, steps, (runs, k), shift):
        bet.update(coins, readings)
        found |= bet.log_e >= -math.log(SHARE)
    return float(found.mean())


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
@pytest.mark.parametrize(("k", "shift"), [(1, 11.0), (8, 2.0)])
def test_steps_said_to_be_needed_are_enough(p: float, k: int, shift: float) -> None:
    steps = steps_needed(lambda n: sensitivity_power(k, n, shift, 1.0, SHARE, p))
    seen = flagged(p, k, steps, shift)
    assert seen >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 1000)
    # And not many more than are: with half of them a run in twenty is not flagged.
    assert flagged(p, k, steps // 2, shift) < 0.95


def test_a_rare_coin_needs_more_steps_by_its_variance() -> None:
    def steps(p: float) -> int:
        return steps_needed(lambda n: sensitivity_power(8, n, 1.25, 1.0, SHARE, p))

    fair = steps(0.5)
    for p in (0.1, 0.3, 0.9):
        assert steps(p) * 4 * p * (1 - p) == pytest.approx(fair, rel=0.15)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_the_ratio_of_a_known_mu_is_approached_from_below(p: float) -> None:
    runs, steps = 100, 1000
    bet = LeakageBet((runs, 4), p, steps)
    for coins, readings in steps_of(p, 8, steps, (runs, 4), shift=2.0):
        bet.update(coins, readings - 0.3, 1.0)
    (lower,) = bet.ratios(0.05, [(steps, bet.growth)], [(1.0, 1.0, steps)])
    assert np.mean(lower > 2.0) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert np.median(lower) > (1.6 if p in (0.3, 0.5) else 1.25)
