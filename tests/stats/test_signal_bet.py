"""Bets on a grid of signals, and the limit of the noise: how much a step leaks at least."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy import stats

from lightning_audit.stats.canary_bets import SIGNAL_SLOPES, SignalBet
from lightning_audit.stats.noise_tests import NOISE_PRECISIONS, noise_upper

GRID = np.array([0.2, 0.5, 0.8, 0.9, 1.0, 1.5, 2.0, 100.0])
FINE = np.arange(0.02, 1.2, 0.02)


def readings_of(
    seed: int, steps: int, shape: tuple[int, ...], p: float = 0.5, shift: float = 1.0
) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    coins = (rng.random((steps, *shape)) < p).astype(float)
    return list(zip(coins, shift * coins + 0.4 + rng.standard_normal(coins.shape), strict=True))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.7])
def test_signal_bet_equals_a_plain_loop(p: float) -> None:
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
def test_e_value_decreases_in_the_signal(seed: int, p: float, shift: float) -> None:
    bet = SignalBet((2,), GRID, 1.0, p)
    for coins, readings in readings_of(seed, 15, (2,), p, shift):
        bet.update(coins, readings)
        assert (np.diff(bet.log_e) <= 1e-9).all()


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("residual", [-300.0, -1.0, 0.0, 0.7, 250.0])
@pytest.mark.parametrize("adds", [1.0, 0.6])
def test_mean_over_the_coin_is_one_at_the_true_signal_and_less_above_it(
    p: float, residual: float, adds: float
) -> None:
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


def test_no_reading_is_large_enough_to_overflow() -> None:
    bet = SignalBet((4,), GRID)
    rng = np.random.default_rng(0)
    for _ in range(30):
        coins = rng.integers(0, 2, 4).astype(float)
        bet.update(coins, 1e12 * coins - 1e9)
        assert np.isfinite(bet.log_e).all()
    assert float(bet.signal_lower(0.01)) == 100.0


def test_limit_rises_with_significance_and_nothing_is_proved_at_the_start() -> None:
    bet = SignalBet((8,), FINE)
    assert float(bet.signal_lower(0.05)) == 0.0
    for coins, readings in readings_of(5, 150, (8,)):
        bet.update(coins, readings)
    lower = [float(bet.signal_lower(level)) for level in (1e-4, 1e-2, 0.2)]
    assert lower == sorted(lower)
    assert 0.5 < lower[0] < lower[2] <= 1


def two_valued(rng: np.random.Generator, total: np.ndarray, step: int) -> np.ndarray:
    return 100.0 * rng.integers(0, 2, total.shape)


def parity(rng: np.random.Generator, total: np.ndarray, step: int) -> np.ndarray:
    return np.full(total.shape, 30.0 * (step % 2))


def skewed(rng: np.random.Generator, total: np.ndarray, step: int) -> np.ndarray:
    return 50.0 * (rng.random(total.shape) < 0.02)


def following(rng: np.random.Generator, total: np.ndarray, step: int) -> np.ndarray:
    return -20.0 * np.sign(total)


def nothing(rng: np.random.Generator, total: np.ndarray, step: int) -> np.ndarray:
    return np.zeros(total.shape)


@pytest.mark.heavy
@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("data", [nothing, two_valued, parity, skewed, following])
def test_limit_of_the_signal_holds_at_all_times_for_any_data(
    data: Callable[[np.random.Generator, np.ndarray, int], np.ndarray], p: float
) -> None:
    runs, k, adds = 4000, 4, 0.5
    rng = np.random.default_rng(7)
    bet, total = SignalBet((runs, k), np.array([0.5, 0.51, 1.0]), 1.0, p), np.zeros((runs, k))
    missed = np.zeros(runs, dtype=bool)
    for step in range(80):
        coins = (rng.random((runs, k)) < p).astype(float)
        readings = adds * coins + data(rng, total, step) + 0.3 * rng.standard_normal((runs, k))
        bet.update(coins, readings)
        missed |= bet.signal_lower(0.05) >= adds
        total += readings - adds * coins
    print(f"\n{data.__name__} p={p}: {missed.mean()}")
    assert missed.sum() <= stats.binom.isf(1e-3, runs, 0.05)


# ------------------------------------------------------------------ the limit of the noise


def e_values(count: ArrayLike, squares: ArrayLike) -> np.ndarray:
    n, s, tau = np.asarray(count)[..., None], np.asarray(squares)[..., None], NOISE_PRECISIONS
    return np.mean(np.exp(0.5 * n * np.log(tau) - 0.5 * (tau - 1.0) * s), axis=-1)


def test_noise_upper_is_where_the_e_value_reaches_the_level() -> None:
    count, squares, weights = [400.0, 80.0, 30.0], [390.0, 95.0, 10.0], [0.5, 0.3, 0.2]
    limit = noise_upper(count, squares, weights, 0.01)
    assert float(weights @ e_values(count, np.array(squares) / limit**2)) == pytest.approx(100)


@given(st.integers(1, 10**6), st.floats(0.01, 100.0), st.floats(1e-6, 0.5))
def test_noise_upper_is_above_the_root_mean_square_and_falls_with_significance(
    count: int, scale: float, significance: float
) -> None:
    args = [count], [count * scale**2], [1.0]
    limit = noise_upper(*args, significance)
    assert limit >= scale
    assert noise_upper(*args, 0.5 * significance) >= limit


def test_noise_upper_at_the_ends() -> None:
    assert noise_upper([0, 0], [0.0, 0.0], [0.5, 0.5], 0.05) == math.inf
    assert noise_upper([1], [0.0], [1.0], 1e-6) == math.inf
    assert noise_upper([100], [0.0], [1.0], 1e-6) == 0.0


def test_noise_upper_of_many_readings_is_within_half_a_percent() -> None:
    assert noise_upper([200_000], [200_000.0], [1.0], 0.025) < 1.0065


@pytest.mark.heavy
@pytest.mark.parametrize("data", [0.0, 3.0])
def test_noise_upper_holds_at_all_times(data: float) -> None:
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
