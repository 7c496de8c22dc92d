"""Matrices of few directions are seen, those of noise are not, whatever their size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_audit.stats.dependence import low_rank_log_e


def noise(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def test_size_and_direction_do_not_matter() -> None:
    thin = noise(40, 2) @ noise(2, 30, 1)
    for factor in (1e-12, -3.0, 1e12):
        assert low_rank_log_e(factor * thin) == pytest.approx(low_rank_log_e(thin))
    assert low_rank_log_e(thin.T) == pytest.approx(low_rank_log_e(thin))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_noise_of_low_rank_is_seen(rank: int) -> None:
    assert low_rank_log_e(noise(64, rank) @ noise(rank, 64, 1)) > 14.0


@pytest.mark.parametrize("shape", [(4, 4), (4, 300), (20, 30)])
@pytest.mark.parametrize("size", [0.1, 1.0, 50.0])
def test_noise_of_one_size_keeps_the_mean_at_most_one(shape: tuple[int, int], size: float) -> None:
    # By simulation; proved by the two bounds that the docstring names.
    e = [math.exp(low_rank_log_e(size * noise(*shape, seed))) for seed in range(400)]
    assert np.mean(e) <= 1.0
    assert max(e) < 20.0


def test_the_largest_singular_value_of_noise_keeps_to_its_bound() -> None:
    rows, columns, t = 12, 25, 1.0
    edge = math.sqrt(rows) + math.sqrt(columns) + t
    above = np.mean([np.linalg.norm(noise(rows, columns, s), 2) > edge for s in range(2000)])
    assert above <= math.exp(-0.5 * t**2)
