"""The divisor's likelihood ratio: against scipy, in expectation, and on divided sums."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from lightning_audit.stats.divisor import divisor_log_e


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.3])
@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_it_is_the_ratio_of_likelihoods(ratio: float, scale: float) -> None:
    rng = np.random.default_rng(0)
    sums = 3 * rng.normal(size=25)
    noise = 0.8
    released = sums + scale * noise * rng.normal(size=25)

    def null(std: float) -> float:
        return float(stats.norm.logpdf(released, sums, std).sum())

    best = optimize.minimize_scalar(lambda s: -null(s), bounds=(noise, 50.0), method="bounded")
    other = stats.norm.logpdf(ratio * released, sums, noise) + np.log(ratio)
    expected = other.sum() - max(-best.fun, null(noise))
    assert divisor_log_e(released, sums, noise, ratio) == pytest.approx(expected, abs=1e-4)


def test_the_stated_divisor_says_nothing_against_itself() -> None:
    rng = np.random.default_rng(0)
    sums = rng.normal(size=40)
    released = sums + rng.normal(size=40)
    assert divisor_log_e(released, sums, 1.0, 1.0) <= 0.0


@pytest.mark.parametrize("scale", [1.0, 1.2, 2.0])
@pytest.mark.parametrize("ratio", [0.9, 1.05, 1.5])
def test_a_stated_divisor_costs_at_most_one_on_average(scale: float, ratio: float) -> None:
    rng = np.random.default_rng(1)
    sums = rng.normal(size=3)
    values = [
        np.exp(divisor_log_e(sums + scale * rng.normal(size=3), sums, 1.0, ratio))
        for _ in range(20_000)
    ]
    error = np.std(values) / np.sqrt(len(values))
    assert np.mean(values) <= 1 + 3 * error


@pytest.mark.parametrize("size", [11, 21])
def test_a_realised_batch_size_is_seen_in_a_step(size: int) -> None:
    rng = np.random.default_rng(2)
    sums = rng.normal(size=384)
    released = (sums + rng.normal(size=384)) * 16 / size
    assert divisor_log_e(released, sums, 1.0, size / 16) > 12
