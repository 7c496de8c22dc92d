from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from lightning_audit.stats.evalues.coin_bet import COIN_SLOPES, CoinBet
from lightning_audit.stats.evalues.error_rate_bet import ERROR_STAKES, ErrorRateBet
from lightning_audit.stats.evalues.noise_scale import NOISE_PRECISIONS, NOISE_WEIGHTS, noise_log_e
from lightning_audit.stats.evalues.sequential import PredictableCentre, is_look, log_mean_exp
from lightning_audit.stats.evalues.signal_bet import SignalBet

RATIOS = np.array([0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0])


def simulated_steps(
    seed: int, steps: int, k: int, shift: float = 1.0, sigma: float = 1.5
) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, (steps, k)).astype(float)
    readings = shift * coins + 0.3 + sigma * rng.standard_normal((steps, k))
    return list(zip(coins, readings, strict=True))


# ------------------------------------------------------------------ naive twins


@pytest.mark.parametrize("count", [1, 7, 60])
@pytest.mark.parametrize("scale", [0.1, 0.8, 1.0, 3.0])
def test_noise_log_e_equals_the_step_by_step_product(count: int, scale: float) -> None:
    x = scale * np.random.default_rng(count).standard_normal(count)
    with mpmath.workdps(40):
        products = []
        for tau in NOISE_PRECISIONS:
            product = mpmath.mpf(1)
            for value in x:
                tau_, value_ = mpmath.mpf(float(tau)), mpmath.mpf(float(value))
                product *= mpmath.sqrt(tau_) * mpmath.exp(-(tau_ - 1) * value_**2 / 2)
            products.append(product)
        expected = float(
            mpmath.log(sum(w * x for w, x in zip(NOISE_WEIGHTS, products, strict=True)))
        )
    assert float(noise_log_e(count, float(x @ x))) == pytest.approx(expected, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(("signal", "k"), [(1.0, 1), (1.0, 4), (1.0078125, 3)])
def test_coin_bet_equals_a_plain_loop(signal: float, k: int) -> None:
    bet = CoinBet((k,), signal=signal, initial_scale=1.5)
    wealth = [1.0] * len(COIN_SLOPES)
    past: list[np.ndarray] = []
    squares, number = 20 * 1.5**2, 20.0
    for coins, readings in simulated_steps(k, 40, k):
        scale = math.sqrt(squares / number)
        residuals = readings - signal * coins
        for i in range(k):
            pooled = sum(sum(r) for r in past) / (k * len(past)) if past else 0.0
            centre = (sum(r[i] for r in past) + 10 * pooled) / (len(past) + 10)
            centred = residuals[i] - centre
            side = 1 if coins[i] == 1 else -1
            for j, slope in enumerate(COIN_SLOPES):
                wealth[j] *= 2 / (1 + math.exp(-side * slope * centred / scale))
            squares += centred**2
            number += 1
        past.append(residuals)
        bet.update(coins, readings)
        assert float(bet.log_e) == pytest.approx(math.log(sum(wealth) / len(wealth)), abs=1e-11)


def test_error_rate_bet_equals_a_plain_loop() -> None:
    k = 3
    bet = ErrorRateBet((k,), RATIOS)
    wealth = np.ones((len(RATIOS), len(ERROR_STAKES)))
    past: list[np.ndarray] = []
    for step, (coins, readings) in enumerate(simulated_steps(5, 50, k, shift=2.0)):
        sigma = 1.5 if step < 20 else 1.1
        centre = sum(past) / (len(past) + 10) if past else np.zeros(k)
        right = sum(
            (readings[i] - centre[i] > 0.5) == bool(coins[i]) for i in range(k)
        ) / k  # fmt: skip
        for a, ratio in enumerate(RATIOS):
            most = stats.norm.cdf(ratio / (2 * sigma))
            for b, stake in enumerate(ERROR_STAKES):
                wealth[a, b] *= (1 + stake * right) / (1 + stake * most)
        past.append(readings - coins)
        bet.update(coins, readings, sigma)
        assert bet.log_e == pytest.approx(np.log(wealth.mean(axis=1)), abs=1e-11)


def test_runs_along_a_leading_axis_are_the_runs_one_by_one() -> None:
    runs, k, steps = 3, 2, 15
    per_run = [simulated_steps(seed, steps, k, shift=1.7) for seed in range(runs)]

    def drive(shape: tuple[int, ...], pick: Callable[[int, int], np.ndarray]) -> list[np.ndarray]:
        coin, rate, signal = CoinBet(shape), ErrorRateBet(shape, RATIOS), SignalBet(shape, RATIOS)
        for t in range(steps):
            coins, readings = pick(t, 0), pick(t, 1)
            coin.update(coins, readings)
            rate.update(coins, readings, 1.5)
            signal.update(coins, readings)
        return [coin.log_e, rate.log_e, signal.log_e, rate.ratio_lower(0.5)]

    together = drive((runs, k), lambda t, part: np.array([run[t][part] for run in per_run]))
    for i, run in enumerate(per_run):
        alone = drive((k,), lambda t, part, run=run: run[t][part])
        for mine, theirs in zip(together, alone, strict=True):
            assert mine[i] == pytest.approx(theirs, abs=1e-12)


# ------------------------------------------------------------------ laws


@given(st.integers(1, 10**6), st.floats(0, 4), st.floats(1e-6, 4))
def test_noise_log_e_decreases_in_the_sum_of_squares(
    count: int, mean_square: float, more: float
) -> None:
    smaller, larger = noise_log_e(count, [count * mean_square, count * (mean_square + more)])
    assert larger < smaller or smaller == larger == -math.inf


def test_residuals_of_the_claimed_size_are_no_evidence_of_small_noise() -> None:
    assert (noise_log_e([1, 100, 10**6], [1, 100, 10**6]) <= 0).all()


def normal_mean(function: Callable[[float], float], location: float, scale: float) -> float:
    value, _ = integrate.quad(
        lambda z: function(location + scale * z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi),
        -12,
        12,
        epsabs=1e-12,
        limit=400,
        points=[-location / scale] if abs(location / scale) < 12 else None,
    )
    return float(value)


@pytest.mark.parametrize("actual", [1.0, 1.001, 1.1, 2.0, 10.0])
@pytest.mark.parametrize("data_term", [0.0, 0.05, -0.5, 1.0, 5.0])
def test_noise_factor_of_a_step_has_expectation_at_most_one(
    actual: float, data_term: float
) -> None:
    mean = normal_mean(lambda x: math.exp(float(noise_log_e(1, x * x))), data_term, actual)
    assert mean <= 1 + 1e-9
    if (actual, data_term) == (1.0, 0.0):
        assert mean == pytest.approx(1, abs=1e-9)  # nothing is given away at the claim itself


def test_too_small_a_noise_lets_the_noise_factor_grow_on_average() -> None:
    assert normal_mean(lambda x: math.exp(float(noise_log_e(1, x * x))), 0.0, 0.9) > 1.001


def mean_over_coins(residuals: np.ndarray, shift: float, history: int = 5) -> float:
    """Mean over all coins of a step of the e-value after it, over the e-value before it."""
    k = len(residuals)
    after, before = [], 0.0
    for coins in itertools.product([0.0, 1.0], repeat=k):
        bet = CoinBet((k,), initial_scale=0.7)
        for past_coins, past_readings in simulated_steps(3, history, k):
            bet.update(past_coins, past_readings)
        before = float(bet.log_e)
        bet.update(np.array(coins), residuals + shift * np.array(coins))
        after.append(math.exp(float(bet.log_e) - before))
    return float(np.mean(after))


residual = st.floats(-1e4, 1e4)


@given(st.lists(residual, min_size=1, max_size=4), st.integers(0, 8))
def test_coin_bet_gains_exactly_nothing_over_the_coins_whatever_the_residual(
    residuals: list[float], history: int
) -> None:
    assert mean_over_coins(np.array(residuals), 1.0, history) == pytest.approx(1, abs=1e-9)


@given(residual, st.floats(-3.0, 1.0))
def test_coin_bet_loses_over_the_coins_if_the_canary_adds_less_than_its_signal(
    value: float, shift: float
) -> None:
    assert mean_over_coins(np.array([value]), shift) <= 1 + 1e-9


@pytest.mark.parametrize("shift", [0.0, 0.5, 0.9, 1.0])
def test_coin_bet_has_expectation_at_most_one_up_to_the_signal(shift: float) -> None:
    mean = normal_mean(lambda r: mean_over_coins(np.array([r]), shift, history=0), 0.4, 0.7)
    assert mean <= 1 + 1e-9
    assert (mean < 1 - 1e-4) == (shift < 0.95)


def test_coin_bet_gains_on_average_if_the_canary_adds_more() -> None:
    assert normal_mean(lambda r: mean_over_coins(np.array([r]), 2.0, 0), 0.0, 0.7) > 1.01


@pytest.mark.parametrize("sigma", [0.3, 0.7, 3.0])
@pytest.mark.parametrize("data_term", [0.0, 0.2, -0.7, 4.0])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_error_rate_factor_has_expectation_at_most_one_at_the_true_ratio(
    sigma: float, data_term: float, ratio: float
) -> None:
    false_alarm = stats.norm.sf((0.5 - data_term) / sigma)
    missed = stats.norm.cdf((0.5 - data_term - ratio) / sigma)
    mean = 0.0
    for coin, wrong in ((0.0, false_alarm), (1.0, missed)):
        for is_wrong, chance in ((True, wrong), (False, 1 - wrong)):
            bet = ErrorRateBet((1,), np.array([ratio]))
            reading = 9.0 if (coin == 1.0) != is_wrong else -9.0
            bet.update(np.array([coin]), np.array([reading]), sigma)
            mean += 0.5 * chance * math.exp(float(bet.log_e[0]))
    assert mean <= 1 + 1e-12


@given(st.integers(0, 10**6), st.floats(0.2, 5.0), st.floats(0.0, 3.0))
def test_error_rate_e_value_decreases_in_the_ratio(seed: int, sigma: float, shift: float) -> None:
    bet = ErrorRateBet((2,), RATIOS)
    for coins, readings in simulated_steps(seed, 12, 2, shift, sigma):
        bet.update(coins, readings, sigma)
        assert (np.diff(bet.log_e) <= 1e-12).all()


def test_lower_ratio_rises_with_significance_and_is_of_the_steps_so_far() -> None:
    bet = ErrorRateBet((4,), np.geomspace(0.01, 12, 200))
    # A leak that stops: what is rejected by the e-values of now falls again.
    leaking = simulated_steps(0, 150, 4, shift=3.0, sigma=1.0)
    lower = []
    for coins, readings in leaking + simulated_steps(1, 300, 4, shift=0.0, sigma=1.0):
        bet.update(coins, readings, 1.0)
        now = np.array([bet.ratio_lower(level) for level in (1e-4, 1e-3, 0.05)])
        assert (np.diff(now) >= 0).all()
        lower.append(now[0])
    assert lower[149] == max(lower[:150]) > 2
    assert lower[-1] < 1.2


def test_lower_ratio_is_zero_before_anything_is_proved() -> None:
    assert float(ErrorRateBet((4,), RATIOS).ratio_lower(0.05)) == 0.0


def test_centre_is_made_of_the_past_alone() -> None:
    rng = np.random.default_rng(0)
    centre, past = PredictableCentre((2, 3)), []
    for _ in range(20):
        expected = sum(past) / (len(past) + 10) if past else np.zeros((2, 3))
        assert centre.value == pytest.approx(expected, abs=1e-14)
        used = centre.value.copy()
        past.append(rng.standard_normal((2, 3)) * 100)
        assert (centre.value == used).all()
        centre.update(past[-1])


def test_first_step_is_judged_by_its_size_and_not_by_its_own_centre() -> None:
    # Were the centre to use the present step, a constant would have no residual at all.
    bet = CoinBet((1,))
    bet.update(np.array([1.0]), np.array([6.0]))
    assert float(bet.log_e) == pytest.approx(
        math.log(np.mean(2 / (1 + np.exp(-5 * COIN_SLOPES)))), abs=1e-12
    )


def test_coin_bet_flags_a_missing_clipping_within_four_steps() -> None:
    rng, runs = np.random.default_rng(0), 20_000
    bet, flagged = CoinBet((runs, 8), initial_scale=1.0), np.zeros(runs, dtype=bool)
    for _ in range(4):
        coins = rng.integers(0, 2, (runs, 8)).astype(float)
        bet.update(coins, 1000 * coins + rng.standard_normal((runs, 8)))
        flagged |= bet.log_e >= -math.log(1e-4)
    assert flagged.mean() >= 0.95


# ------------------------------------------------------------------ extreme inputs


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("readings_of", ["shift of 1e6", "constant", "coins alone", "one side"])
def test_extreme_readings_give_finite_results_without_warnings(k: int, readings_of: str) -> None:
    rng = np.random.default_rng(0)
    bets = CoinBet((k,)), ErrorRateBet((k,), RATIOS), SignalBet((k,), RATIOS)
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
        bets[0].update(coins, readings)
        bets[1].update(coins, readings, 0.5)
        bets[2].update(coins, readings)
        for bet in bets:
            assert np.isfinite(bet.log_e).all()
    expected_shift = {"shift of 1e6": True, "constant": False, "coins alone": False}
    if k == 8 and readings_of in expected_shift:
        assert (float(bets[0].log_e) > math.log(1e4)) is expected_shift[readings_of]


@pytest.mark.parametrize("count", [10**9, 10**12])
def test_huge_counts_give_finite_results(count: int) -> None:
    assert np.isfinite(noise_log_e(count, [0.0, 0.5 * count, 1.0 * count, 9.0 * count])).all()


def test_log_mean_exp_does_not_overflow() -> None:
    assert float(log_mean_exp([1e5, 1e5])) == 1e5
    assert float(log_mean_exp([-1e5, -1e5, -1e5])) == -1e5


def test_looks_are_taken_at_each_of_the_first_hundred_and_at_every_tenth_later() -> None:
    looks = [seen for seen in range(1, 151) if is_look(seen)]
    assert looks == [*range(1, 101), 110, 120, 130, 140, 150]
