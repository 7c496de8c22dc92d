"""The betting tests with coins of a known probability that is not one half."""

import math
from functools import partial

import numpy as np
import pytest
from admitted_course import AdmittedCourse
from coin_steps import RATIOS, mean_over_coins, normal_mean
from hypothesis import given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import stats
from stages import most_failures, staged

from lightning_audit.stats.canary_bets import (
    COIN_SLOPES,
    SIGNAL_SLOPES,
    Claim,
    CoinBet,
    LeakageBet,
    SignalBet,
    StakePlan,
    score_mu,
)
from lightning_audit.stats.divergences import sharpest_score, sign_score
from lightning_audit.stats.noise_tests import NOISE_PRECISIONS, noise_upper
from lightning_audit.stats.power import sensitivity_power, steps_needed

# --- The coin bet: against a naive twin, in expectation, and on a gross fault.
residual = st.floats(-1e4, 1e4)


PROBABILITIES = [0.1, 0.3, 0.5, 0.9]


SHARE = 1e-4


GROUPS = ["Dirac", "Spread", "Dirac", "BlockPair", "Dirac", "Dirac", "Spread", "Dirac"]


LEVEL = 0.05


RUNS = 2000


GRID = np.array([0.2, 0.5, 0.8, 0.9, 1.0, 1.5, 2.0, 100.0])


@given(st.lists(residual, min_size=1, max_size=4), st.integers(0, 8))
def test_coin_bet_gains_nothing_over_the_coins_whatever_the_residual(residuals, history):
    assert mean_over_coins(np.array(residuals), 1.0, history) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.5, 0.9, 1.0])
def test_coin_bet_has_expectation_at_most_one_up_to_the_signal_and_more_above(shift):
    mean = normal_mean(lambda r: mean_over_coins(np.array([r]), shift, history=0), 0.4, 0.7)
    assert mean <= 1 + 1e-9
    assert (mean < 1 - 1e-4) == (shift < 0.95)
    assert normal_mean(lambda r: mean_over_coins(np.array([r]), 2.0, 0), 0.0, 0.7) > 1.01


def steps_of(p: float, seed: int, steps: int, shape: tuple[int, ...], shift: float = 1.0):
    """Coins and readings of each step."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        coins = (rng.random(shape) < p).astype(float)
        yield coins, shift * coins + 0.3 + rng.standard_normal(shape)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_coin_bet_pays_the_probabilities_that_it_gives(p):
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


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_a_tenth_of_a_coin_bet_is_on_the_groups_in_equal_parts(p):
    groups = ["Dirac", "Spread", "Dirac", "BlockPair"]
    bet = CoinBet((4,), coin_probability=p, groups=groups)
    wealth, slopes = np.ones((len(COIN_SLOPES), 4)), np.array(COIN_SLOPES)[:, None]
    past: list[np.ndarray] = []
    squares, number = 20.0, 20.0
    for coins, readings in steps_of(p, 3, 40, (4,), shift=2.0):
        residuals = readings - coins
        pooled = float(np.mean(past)) if past else 0.0
        centred = residuals - (sum(past, np.zeros(4)) + 10 * pooled) / (len(past) + 10)
        tilt = p * np.exp(slopes * centred / math.sqrt(squares / number) + (p - 0.5) * slopes**2)
        says_in = tilt / (1 - p + tilt)
        wealth *= np.where(coins == 1, says_in / p, (1 - says_in) / (1 - p))
        squares, number = squares + float(centred @ centred), number + 4
        past.append(residuals)
        bet.update(coins, readings)
    of_each = [np.prod(wealth[:, np.array(groups) == name], axis=1).mean() for name in set(groups)]
    expected = 0.9 * np.mean(np.prod(wealth, axis=1)) + 0.1 * np.mean(of_each)
    assert float(bet.log_e) == pytest.approx(math.log(expected), abs=1e-11)


test_a_coin_that_is_none_is_refused = refusals(
    *(
        (partial(make, p), r"^coin_probability=")
        for p in (0.0, 1.0)
        for make in (
            lambda p: CoinBet((1,), coin_probability=p),
            lambda p: LeakageBet((1,), p),
            lambda p: SignalBet((1,), RATIOS, 1.0, p),
        )
    )
)


@pytest.mark.parametrize("p", [0.01, *PROBABILITIES])
@pytest.mark.parametrize("residuals", [[0.0], [1e4], [-3.0, 2.0], [0.4, -1e3, 7.0]])
def test_coin_bet_gains_nothing_over_the_coins_and_loses_below_the_signal(p, residuals):
    assert mean_over_coins(np.array(residuals), 1.0, p=p) == pytest.approx(1, abs=1e-9)
    for shift in (-3.0, 0.0, 0.9):
        assert mean_over_coins(np.array(residuals), shift, p=p) <= 1 + 1e-9


@pytest.mark.parametrize("p", [0.01, *PROBABILITIES])
@pytest.mark.parametrize("data_term", [0.0, -0.7, 4.0])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_leakage_bets_gain_nothing_at_the_true_ratio(p, data_term, ratio):
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


def rare_bursts(rng: np.random.Generator, level: np.ndarray) -> np.ndarray:
    return 10.0 * (rng.random(level.shape) < 0.02)


DATA_TERMS = {
    "nothing": lambda rng, level: np.zeros(level.shape),
    "rare bursts": rare_bursts,
    "skewed": lambda rng, level: rng.exponential(1.5, level.shape),
    "against the coins": lambda rng, level: -3.0 * np.sign(level),
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
    ("runs", "terms"), staged([(1500, ["nothing", "rare bursts"])], [(10_000, list(DATA_TERMS))])
)
def test_sound_runs_alarm_no_oftener_than_the_significance(p, runs, terms):
    highest = 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    for term in terms:
        rates = false_alarms(p, term, runs)
        assert max(rates.values()) <= highest, (term, rates)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize(
    ("runs", "terms"),
    staged([(1500, ["skewed"])], [(2500, list(DATA_TERMS))], [(10_000, list(DATA_TERMS))]),
)
def test_a_bet_on_groups_alarms_no_oftener_than_the_significance(p, runs, terms):
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


def test_a_fault_of_one_group_is_flagged_in_half_the_steps_and_that_of_all_hardly_later():
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
                first = np.minimum(first, np.where(bet.log_e >= -math.log(share), step + 1, 200))
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
def test_steps_said_to_be_needed_are_enough(p, k, shift):
    steps = steps_needed(lambda n: sensitivity_power(k, n, shift, 1.0, SHARE, p))
    assert flagged(p, k, steps, shift) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 1000)
    # And not many more than are: with half of them a run in twenty is not flagged.
    assert flagged(p, k, steps // 2, shift) < 0.95


@pytest.mark.parametrize("p", [0.5, 0.2])
def test_growth_is_the_product_of_single_bets(p):
    rng, bet = np.random.default_rng(0), LeakageBet((3,), p, 20)
    fair = 2 * min(p, 1 - p)
    plan, past, naive = StakePlan(20, 3, fair), [np.zeros(3)] * 2, np.zeros(8)
    total = np.zeros(3)
    for t in range(20):
        sigma, rate = (1.0, 0.1) if t < 12 else (0.6, 0.2)
        b, z = (rng.random(3) < p).astype(float), rng.normal(size=3) * 2
        bet.update(b, z, sigma, rate)
        now = plan.next(sigma, rate)
        middle = np.array([sorted(each)[len(each) // 2] for each in np.transpose(past[-15:])])
        centre = (total + 5 * middle) / (t + 5)
        for bet_number, (stake, sharp) in enumerate(zip(now.stakes, plan.sharp, strict=True)):
            score = (sharpest_score if sharp else sign_score)(score_mu(sigma))
            mean = 0.0
            for i in range(3):
                weight = min(p, 1 - p) / (p if b[i] else 1 - p)
                x = (z[i] - centre[i] - 0.5) / sigma
                mean += weight * float(score.score(np.array(x), b[i])) / 3
                mean -= score.mean * (weight - fair) / 3
            naive[bet_number] += np.log1p(stake * mean)
        total += np.clip(z - b, middle - 5 * sigma, middle + 5 * sigma)
        past.append(z - b)
    assert bet.growth == pytest.approx(naive)


@pytest.mark.parametrize("size", [1e2, 1e6])
def test_one_extreme_step_does_not_end_the_bound(size):
    found = []
    for first in (0.0, size):
        rng, bet = np.random.default_rng(1), LeakageBet((20, 8), planned_steps=300)
        for t in range(300):
            coins = rng.integers(0, 2, (20, 8)).astype(float)
            data = first if t == 0 else 0.0
            bet.update(coins, coins + data + rng.standard_normal(coins.shape), 1.0, 1 / 28)
        (ratios,) = bet.ratios(LEVEL, [(300, bet.growth)], [(1.0, 1 / 28, 300)])
        found.append(float(np.median(ratios)))
    assert found[1] > 0.95 * found[0] > 0.8


def test_no_reading_takes_all_of_the_wealth():
    for p in (0.5, 0.05, 0.9):
        for sigma in (0.01, 0.3, 1.0, 30.0):
            bet = LeakageBet((4,), p, 10)
            for _ in range(30):
                bet.update(np.array([1.0, 0.0, 1.0, 0.0]), np.array([-1e9, 1e9, -1e9, 1e9]), sigma)
                bet.update(np.zeros(4), np.full(4, 1e9), sigma)
            assert np.isfinite(bet.growth).all()


def test_stakes_follow_the_cost_of_a_step():
    plan = StakePlan(1000, 8)
    cheap, dear = plan.next(2.0, 0.01), plan.next(1.0, 0.01)
    assert dear.stakes[0] > cheap.stakes[0]
    often, seldom = (StakePlan(1000, 8).next(2.0, rate).stakes for rate in (0.5, 0.05))
    assert often == pytest.approx(seldom, rel=0.11)
    assert plan.next(1.0, 0.01) is dear  # of equal claims the same


@pytest.mark.parametrize(("planned", "most"), [(300, 0.86), (None, 0.82)])
def test_most_of_the_leakage_of_a_correct_run_is_proved_and_no_more(planned, most):
    rng, bet = np.random.default_rng(0), LeakageBet((200, 8), 0.5, planned)
    for _ in range(300):
        coins = (rng.random((200, 8)) < 0.5).astype(float)
        bet.update(coins, coins + rng.standard_normal((200, 8)), 1.0, 1 / 28)
    (found,) = bet.ratios(LEVEL, [(300, bet.growth)], [(1.0, 1 / 28, 300)])
    assert np.median(found) > most
    assert (found > 1).mean() <= LEVEL


def test_looks_are_those_of_a_bet_that_ended_there():
    claims: list[Claim] = [(1.0, 0.1, 30), (0.7, 0.1, 20), (1.0, 0.1, 25)]
    noise, looks = np.ones(75), []
    rng, bet, t = np.random.default_rng(4), LeakageBet((8,)), 0
    for sigma, rate, steps in claims:
        for _ in range(steps):
            b = rng.integers(0, 2, 8).astype(float)
            bet.update(b, b + 0.5 * noise[t] * rng.standard_normal(8), sigma, rate)
            t += 1
            looks.append((t, bet.growth))
    together = bet.ratios(LEVEL, looks, claims)
    assert len(together) == 75
    assert max(together) > 1.0
    cut: list[Claim] = [(1.0, 0.1, 30), (0.7, 0.1, 7)]
    (alone,) = bet.ratios(LEVEL, [looks[36]], cut)
    assert alone == pytest.approx(together[36])
    for proof in bet.proved(LEVEL, bet.growth, claims):
        assert proof.steps.sum() == 75


#: Stated claims, and the true noise of each step.
CHANGES: dict[str, tuple[list[Claim], np.ndarray]] = {
    "constant": ([(1.0, 0.05, 400)], np.ones(400)),
    "stated 5, then 1; 2 throughout": ([(5.0, 0.01, 600), (1.0, 0.01, 60)], np.full(660, 2.0)),
    "stated 1; falls": ([(1.0, 0.05, 400)], np.repeat([2.0, 0.7], 200)),
    "rate falls": ([(1.0, 0.1, 100), (1.0, 0.001, 500)], np.repeat([2.0, 1.0], [100, 500])),
    "batch grows": ([(1.0, 0.004, 300), (1.0, 0.064, 100)], np.repeat([1.0, 1.6], [300, 100])),
}


@pytest.mark.parametrize("runs", staged(quick=[200], nightly=[RUNS]))
@pytest.mark.parametrize("name", list(CHANGES))
@pytest.mark.parametrize("p", [0.5, 0.2])
def test_the_true_course_is_admitted_at_all_looks(name, p, runs):
    claims, noise = CHANGES[name]
    rng, course, t = np.random.default_rng(5), AdmittedCourse((runs, 8), p, len(noise)), 0
    missed = np.zeros(runs, dtype=bool)
    for sigma, rate, steps in claims:
        for _ in range(steps):
            coins = (rng.random((runs, 8)) < p).astype(float)
            readings = coins + noise[t] * rng.standard_normal((runs, 8))
            course.update(coins, readings, sigma, rate, mu=1.0 / noise[t])
            missed |= course.refused(LEVEL)
            t += 1
    print(f"\n{name}, p={p}: {missed.mean():.4f}")
    assert missed.sum() <= most_failures(runs, LEVEL, RUNS)


# --- Bets on a grid of signals, and the limit of the noise: how much a step leaks at least.
def readings_of(seed: int, steps: int, shape: tuple[int, ...], p: float = 0.5, shift: float = 1.0):
    """Coins and readings of each step."""
    rng = np.random.default_rng(seed)
    coins = (rng.random((steps, *shape)) < p).astype(float)
    return list(zip(coins, shift * coins + 0.4 + rng.standard_normal(coins.shape), strict=True))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.7])
def test_signal_bet_equals_a_plain_loop(p):
    k = 3
    bet = SignalBet((k,), GRID, 1.5, p)
    wealth = np.ones((len(GRID), len(SIGNAL_SLOPES)))
    past: list[tuple[np.ndarray, np.ndarray]] = []
    squares, number = 20 * 1.5**2, 20.0

    def centre(which: int) -> np.ndarray:
        total = sum((step[which] for step in past), np.zeros(k))
        return (total + 10 * total.mean() / max(len(past), 1)) / (len(past) + 10)

    for coins, readings in readings_of(1, 30, (k,), p):
        z, b = readings - centre(1), coins - centre(0)
        scale = math.sqrt(squares / number)
        for i in range(k):
            for m, signal in enumerate(GRID):
                x = (z[i] - signal * b[i]) / scale
                for j, a in enumerate(SIGNAL_SLOPES):
                    odds = math.exp(a * x + (p - 0.5) * a * a)
                    guess = p * odds / (1 - p + p * odds)
                    wealth[m, j] *= guess / p if coins[i] else (1 - guess) / (1 - p)
        squares, number = squares + float(((z - b) ** 2).sum()), number + k
        past.append((coins, readings))
        bet.update(coins, readings)
        assert bet.log_e == pytest.approx(np.log(wealth.mean(axis=1)), abs=1e-10)


@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.5, 0.8]), st.floats(-3.0, 30.0))
def test_e_value_decreases_in_the_signal(seed, p, shift):
    bet = SignalBet((2,), GRID, 1.0, p)
    for coins, readings in readings_of(seed, 15, (2,), p, shift):
        bet.update(coins, readings)
        assert (np.diff(bet.log_e) <= 1e-9).all()


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("residual", [-300.0, -1.0, 0.0, 0.7, 250.0])
@pytest.mark.parametrize("adds", [1.0, 0.6])
def test_mean_over_the_coin_is_one_at_the_true_signal_and_less_above_it(p, residual, adds):
    past = readings_of(3, 12, (1,), p)
    mean = 0.0
    for coin, chance in ((0.0, 1 - p), (1.0, p)):
        bet = SignalBet((1,), np.array([1.0]), 1.0, p)
        for coins, readings in past:
            bet.update(coins, readings)
        before = bet._log_wealth.copy()
        bet.update(np.array([coin]), np.array([residual + adds * coin]))
        mean = mean + chance * np.exp(bet._log_wealth - before)
    assert (mean <= 1 + 1e-12).all()
    if adds == 1.0:
        assert mean == pytest.approx(1, abs=1e-12)


#: Data terms, from the generator, the sum of the residuals so far and the number of the step.
DATA_OF_ANY_KIND = {
    "nothing": lambda rng, total, step: np.zeros(total.shape),
    "two values": lambda rng, total, step: 100.0 * rng.integers(0, 2, total.shape),
    "parity": lambda rng, total, step: np.full(total.shape, 30.0 * (step % 2)),
    "skewed": lambda rng, total, step: 50.0 * (rng.random(total.shape) < 0.02),
    "following": lambda rng, total, step: -20.0 * np.sign(total),
}


@pytest.mark.heavy
@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("data", DATA_OF_ANY_KIND)
def test_limit_of_the_signal_holds_at_all_times_for_any_data(data, p):
    runs, k, adds = 4000, 4, 0.5
    rng = np.random.default_rng(7)
    bet, total = SignalBet((runs, k), np.array([0.5, 0.51, 1.0]), 1.0, p), np.zeros((runs, k))
    missed = np.zeros(runs, dtype=bool)
    for step in range(80):
        coins = (rng.random((runs, k)) < p).astype(float)
        term = DATA_OF_ANY_KIND[data](rng, total, step)
        readings = adds * coins + term + 0.3 * rng.standard_normal((runs, k))
        bet.update(coins, readings)
        missed |= bet.signal_lower(0.05) >= adds
        total += readings - adds * coins
    print(f"\n{data} p={p}: {missed.mean()}")
    assert missed.sum() <= stats.binom.isf(1e-3, runs, 0.05)


def e_values(count, squares) -> np.ndarray:
    n, s, tau = np.asarray(count)[..., None], np.asarray(squares)[..., None], NOISE_PRECISIONS
    return np.mean(np.exp(0.5 * n * np.log(tau) - 0.5 * (tau - 1.0) * s), axis=-1)


def test_noise_upper_is_where_the_e_value_reaches_the_level():
    count, squares, weights = [400.0, 80.0, 30.0], [390.0, 95.0, 10.0], [0.5, 0.3, 0.2]
    limit = noise_upper(count, squares, weights, 0.01)
    assert float(weights @ e_values(count, np.array(squares) / limit**2)) == pytest.approx(100)


def test_noise_upper_at_the_ends_and_of_many_readings():
    assert noise_upper([0, 0], [0.0, 0.0], [0.5, 0.5], 0.05) == math.inf
    assert noise_upper([1], [0.0], [1.0], 1e-6) == math.inf
    assert noise_upper([100], [0.0], [1.0], 1e-6) == 0.0
    assert noise_upper([200_000], [200_000.0], [1.0], 0.025) < 1.0065


@pytest.mark.heavy
@pytest.mark.parametrize("data", [0.0, 3.0])
def test_noise_upper_holds_at_all_times(data):
    runs, units, steps = 3000, 2, 60
    rng = np.random.default_rng(1)
    squares, missed = np.zeros((runs, units)), np.zeros(runs, dtype=bool)
    for step in range(1, steps + 1):
        term = data * rng.integers(0, 2, (runs, units, 4))
        squares += ((term + rng.standard_normal((runs, units, 4))) ** 2).sum(axis=-1)
        # That the limit is below the true 1 is that the scale 1 is rejected.
        each = e_values(4 * step, squares).mean(axis=-1)
        log_e = np.log(0.5 * e_values(4 * step * units, squares.sum(axis=-1)) + 0.5 * each)
        missed |= log_e >= -math.log(0.05)
        if step == steps:
            for run in range(50):
                count = [4 * step * units, 4 * step, 4 * step]
                sums = [squares[run].sum(), *squares[run]]
                limit = noise_upper(count, sums, [0.5, 0.25, 0.25], 0.05)
                assert (limit <= 1) == (log_e[run] >= -math.log(0.05))
    assert missed.sum() <= stats.binom.isf(1e-3, runs, 0.05)
