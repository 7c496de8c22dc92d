"""Noise that earlier noise foretells is seen at any lag and of either sign; new noise is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_audit.checks.replayed_noise import forecasts
from lightning_audit.checks.replayed_noise import successive_seen as successive

STEPS, ENTRIES = 8, 2000


def fresh(seed: int = 0, steps: int = STEPS) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(steps, ENTRIES)))


def autoregressive(part: float) -> list[np.ndarray]:
    noise = fresh()
    for number in range(1, STEPS):
        noise[number] = part * noise[number - 1] + math.sqrt(1 - part**2) * noise[number]
    return noise


def minus_the_sum() -> list[np.ndarray]:
    noise = fresh()
    for number in range(1, STEPS):
        noise[number] = noise[number] - 0.5 * np.sum(noise[:number], axis=0)
    return noise


def at_lag(lag: int, sign: float) -> list[np.ndarray]:
    noise = fresh()
    return [noise[t] if t < lag else sign * noise[t - lag] for t in range(STEPS)]


@pytest.mark.parametrize(
    "noise",
    [
        autoregressive(0.4),
        autoregressive(-0.6),
        minus_the_sum(),
        *(at_lag(lag, sign) for lag in (1, 3, 6) for sign in (1.0, -1.0)),
    ],
)
def test_noise_that_depends_on_its_past_is_seen(noise: list[np.ndarray]) -> None:
    seen = successive(noise)
    assert seen.log_e > 14.0
    assert "noise of a step goes" in seen.what


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_new_noise_is_not(scale: float) -> None:
    # By simulation; proved by the signs of what is new, for noise of any size.
    rng = np.random.default_rng(3)
    found = []
    for seed in range(300):
        sizes = scale * rng.uniform(0.5, 4.0, ENTRIES)
        found.append(successive([sizes * z for z in fresh(seed, 3)]).log_e)
    assert np.mean(np.exp(found)) < 1.2
    assert max(found) < 7.0


def test_forecasts_are_of_the_past_alone() -> None:
    noise = fresh()
    made = [forecast.copy() for _, forecast in forecasts(noise[:5])]
    for later in noise[5:]:
        later[:] = np.nan
    for one, other in zip(made, [f for _, f in forecasts(noise[:5])], strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(made) == 5 + 1 + 1
    assert successive(fresh()[:1]).log_e == 0.0
