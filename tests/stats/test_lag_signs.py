"""Signs that follow earlier signs are seen, and noise of any mean and size follows nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate

from lightning_audit.stats.dependence import LagSigns, lag_sign_log_e


def test_the_e_value_is_two_coins_against_the_best_one() -> None:
    counts = np.array([[3, 5], [6, 2]])

    def mixed(above: int, below: int) -> float:
        return integrate.quad(lambda q: q**above * (1 - q) ** below, 0, 1)[0]

    best = (9 / 16) ** 9 * (7 / 16) ** 7
    assert lag_sign_log_e(counts) == pytest.approx(math.log(mixed(3, 5) * mixed(6, 2) / best))


def streams(runs: int, steps: int, seed: int, make) -> tuple[float, list[float]]:
    """Share of runs whose e-value ever reached 20, and its last value in each."""
    rng = np.random.default_rng(seed)
    largest, last = [], []
    for _ in range(runs):
        signs, top = LagSigns(), 0.0
        for t, noise in enumerate(make(rng, steps)):
            signs.update(noise, t)
            top = max(top, signs.log_e)
        largest.append(top)
        last.append(signs.log_e)
    return float(np.mean(np.array(largest) >= math.log(20.0))), last


@pytest.mark.parametrize("shift", [0.0, 0.5])
@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.one_in(4)
def test_independent_noise_alarms_in_fewer_runs_than_the_level(shift: float, scale: float) -> None:
    """At a level of 5 % (an e-value of 20), at any step of 60."""
    alarms, _ = streams(
        200, 60, 1, lambda rng, steps: shift + scale * rng.standard_normal((steps, 16))
    )
    assert alarms <= 0.05


@pytest.mark.parametrize("rho", [0.4, -0.4])
@pytest.mark.parametrize("lag", [1, 7])
def test_noise_that_follows_that_of_some_steps_before_is_seen(rho: float, lag: int) -> None:
    def following(rng: np.random.Generator, steps: int) -> list[np.ndarray]:
        noise = list(rng.standard_normal((steps, 64)))
        for t in range(lag, steps):
            noise[t] = rho * noise[t - lag] + math.sqrt(1 - rho**2) * noise[t]
        return noise

    _, last = streams(10, 60, 2, following)
    assert min(last) > 12.0


def test_the_lag_and_the_share_of_equal_signs_are_told() -> None:
    rng, signs = np.random.default_rng(3), LagSigns()
    noise = [rng.standard_normal(64) for _ in range(3)]
    for t in range(12):
        signs.update(noise[t % 3], 2 * t)  # every second step was read
    assert (signs.lag, signs.agreement) == (6, 1.0)


def test_entries_without_noise_have_no_sign() -> None:
    signs = LagSigns()
    for t in range(20):
        signs.update(np.full(100, 1e-6), t)
    assert signs.log_e == 0.0
    assert (signs.counts.sum(), signs.agreement) == (0, 0.5)
