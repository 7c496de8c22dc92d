"""Tails and ties of noise: against plain loops, their laws, and noise of known shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from lightning_audit.stats.noise_tests import (
    COMPARED,
    LEVELS,
    TAIL_STAKES,
    TIE,
    TIE_RATES,
    TailBet,
    TieBet,
    sign_log_e,
)

FloatArray = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], FloatArray]

#: Noise of standard deviation one, and the steps of 384 coordinates that show it.
WRONG: dict[str, tuple[Draw, int]] = {
    "uniform": (lambda rng, n: rng.uniform(-math.sqrt(3), math.sqrt(3), n), 1),
    "laplace": (lambda rng, n: rng.laplace(size=n) / math.sqrt(2), 5),
    "student t, 3 degrees": (lambda rng, n: rng.standard_t(3, n) / math.sqrt(3), 5),
    "clipped at 2": (lambda rng, n: np.clip(rng.standard_normal(n), -2, 2) / 0.94, 5),
    "clipped at 3": (lambda rng, n: np.clip(rng.standard_normal(n), -3, 3), 60),
    "rounded": (lambda rng, n: np.round(rng.standard_normal(n)), 1),
    "rounded to tenths": (lambda rng, n: np.round(rng.standard_normal(n), 1), 1),
}


def test_tail_wealth_is_that_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    readings, shift = rng.normal(size=17), 0.6
    bet = TailBet()
    bet.update(readings, shift)
    wealth = []
    for sign in (1, -1):
        for level in LEVELS:
            rare = stats.norm.sf(level)
            slope = stats.norm.pdf(level - shift) / stats.norm.pdf(level)
            offset = stats.norm.sf(level - shift) - slope * rare
            gains = [
                float(sign * x > level - shift) - slope * float(sign * x > level) - offset
                for x in readings
            ]
            worst = min(1 - slope - offset, -offset)
            for stake in TAIL_STAKES:
                factors = [1 + 0.99 * stake * gain / -worst for gain in gains]
                wealth.append(math.prod(factors))
    assert bet.log_e == pytest.approx(math.log(np.mean(wealth)), rel=1e-9)


def test_tie_wealth_is_that_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    readings = rng.normal(size=40)
    others, tested = readings[::2], readings[1::2]
    tested[[3, 5]] = others[[0, 8]] + [0.9 * TIE, -0.9 * TIE]
    tested[4] = others.max() + 1.1 * TIE
    hits = [any(abs(x - y) < TIE for y in others) for x in tested]
    assert sum(hits) == 2
    chance = 20 * 2 * TIE * stats.norm.pdf(0)
    bet = TieBet()
    bet.update(readings)
    wealth = [
        math.prod(rate / chance if hit else (1 - rate) / (1 - chance) for hit in hits)
        for rate in TIE_RATES
    ]
    assert bet.log_e == pytest.approx(math.log(np.mean(wealth)), rel=1e-9)


@pytest.mark.parametrize("n", [2, 63, 64, 65, 128, 129, 512, 4096])
def test_at_most_sixty_four_readings_are_compared_with(n: int) -> None:
    bet = TieBet()
    bet.update(np.arange(n, dtype=float))  # no ties
    compared = -(-n // max(2, -(-n // COMPARED)))
    assert 1 <= compared <= COMPARED
    chance = compared * 2 * TIE * stats.norm.pdf(0)
    misses = (n - compared) * np.log((1 - TIE_RATES) / (1 - chance))
    assert bet.log_e == pytest.approx(np.logaddexp.reduce(misses) - math.log(2), rel=1e-9)


def test_one_reading_is_compared_with_nothing() -> None:
    bet = TieBet()
    bet.update(np.zeros(1))
    assert bet.log_e == 0.0


@pytest.mark.parametrize("scale", [1.0, 1.4])
@pytest.mark.parametrize("shift", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("data", ["none", "constant", "mixed"])
def test_a_reading_of_noise_beside_any_data_gains_nothing_on_average(
    scale: float, shift: float, data: str
) -> None:
    """The mean of one coordinate's factor, by the normal distribution function."""
    terms = {"none": [0.0], "constant": [0.7], "mixed": [-1.3, 0.1, 2.2]}[data]
    slope = np.exp(LEVELS * shift - shift**2 / 2)
    offset = stats.norm.sf(LEVELS - shift) - slope * stats.norm.sf(LEVELS)
    worst = np.minimum(1 - slope - offset, -offset)
    gains = []
    for sign in (1, -1):
        above, reached = (
            np.mean([stats.norm.sf((level - sign * term) / scale) for term in terms], axis=0)
            for level in (LEVELS, LEVELS - shift)
        )
        gains.append((reached - slope * above - offset) / -worst)
    assert np.max(gains) <= 1e-9
    if scale == 1.0 and data == "none":
        assert np.max(np.abs(gains)) < 1e-9


@pytest.mark.parametrize("shift", [0.25, 1.0])
@pytest.mark.parametrize("name", list(WRONG))
def test_noise_of_another_shape_is_seen(name: str, shift: float) -> None:
    draw, steps = WRONG[name]
    rng = np.random.default_rng(1)
    tails, ties = TailBet(), TieBet()
    for _ in range(steps):
        readings = draw(rng, 384)
        tails.update(readings, shift)
        ties.update(readings)
    assert max(tails.log_e, ties.log_e) > 12.0


def test_signs_are_those_of_a_uniform_prior() -> None:
    for positive, negative in [(0, 1), (3, 9), (40, 40)]:
        n = positive + negative
        grid = (np.arange(200_000) + 0.5) / 200_000
        wealth = np.mean(grid**positive * (1 - grid) ** negative) * 2.0**n
        assert sign_log_e(positive, negative) == pytest.approx(math.log(wealth), abs=1e-6)


@pytest.mark.parametrize("n", [1, 7, 30])
def test_signs_of_fair_coins_average_to_one(n: int) -> None:
    counts = np.arange(n + 1)
    values = [math.exp(sign_log_e(int(k), int(n - k))) for k in counts]
    assert stats.binom.pmf(counts, n, 0.5) @ values == pytest.approx(1.0, rel=1e-10)
