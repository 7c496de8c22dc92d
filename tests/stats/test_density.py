from __future__ import annotations

import numpy as np
import pytest
from known_mechanisms import gaussian, plane
from refused_calls import refusals
from scipy import stats

from lightning_audit.stats.output_estimates import (
    FITTED,
    GridRatio,
    KernelRatio,
    NeighbourRatio,
    silverman_bandwidth,
)

RNG = np.random.default_rng(5)


def naive_density(samples: np.ndarray, places: np.ndarray, bandwidth: float) -> np.ndarray:
    return stats.norm(samples[:, None], bandwidth).pdf(places).mean(axis=0)


@pytest.mark.parametrize("shift", [0.3, 1.0])
def test_grid_density_is_the_sum_of_kernels(shift: float) -> None:
    p, q = gaussian(np.random.default_rng(1), 800, shift)
    ratio = GridRatio(p, q, grid_size=2000)
    for mass, samples in ((ratio.p, p), (ratio.q, q)):
        naive = naive_density(samples, ratio.grid, silverman_bandwidth(samples))
        assert mass == pytest.approx(naive / naive.sum(), abs=2e-5 / 2)
        assert mass.sum() == pytest.approx(1)


def test_grid_ratio_is_the_likelihood_ratio() -> None:
    p, q = gaussian(np.random.default_rng(2), 200_000)
    x = np.linspace(-1.5, 2.5, 20)
    assert np.log(GridRatio(p, q)(x)) == pytest.approx(x - 0.5, abs=0.08)


def test_bandwidth_is_that_of_silverman_in_the_unit_of_the_samples() -> None:
    samples = np.random.default_rng(3).normal(2.0, 5.0, 10_000)
    assert silverman_bandwidth(samples) == pytest.approx(0.9 * 5 * 10_000**-0.2, rel=0.02)
    assert silverman_bandwidth(3 * samples) == pytest.approx(3 * silverman_bandwidth(samples))
    mostly_equal = np.concatenate([np.zeros(900), samples[:100]])
    assert silverman_bandwidth(mostly_equal) > 0


@pytest.mark.parametrize(
    ("p", "q", "apart"),
    [(np.zeros(50), np.ones(50), True), (np.full(50, 7.0), np.full(50, 7.0), False)],
)
def test_constant_samples_are_told_apart_or_equal(p, q, apart: bool) -> None:
    for kind in (GridRatio, NeighbourRatio):
        at_p, at_q = kind(p, q)(np.array([p[0], q[0]]))
        assert (at_p < 0.2 and at_q > 5) if apart else at_p == at_q == pytest.approx(1)


def test_a_kernel_wider_than_the_range_is_flat() -> None:
    p, q = gaussian(np.random.default_rng(4), 100)
    assert GridRatio(p, q, bandwidth=1e4)(p) == pytest.approx(1, abs=1e-3)


def test_kernel_ratio_in_the_plane_is_the_quotient_of_scipys_densities() -> None:
    p, q = plane(np.random.default_rng(6), FITTED + 500)
    x = RNG.normal(0.3, 1, (30, 2))
    kernels = [stats.gaussian_kde(rows[:FITTED].T)(x.T) for rows in (p, q)]
    assert KernelRatio(p, q)(x) == pytest.approx(kernels[1] / kernels[0], rel=1e-9)


test_arguments_out_of_range_are_refused = refusals(
    (lambda: GridRatio(np.ones((5, 2)), np.ones((5, 2))), "has 2 numbers a sample, must have"),
    (lambda: GridRatio([1.0, 2.0], [1.0, 2.0], bandwidth=0), "bandwidth=0 must be a finite"),
    (lambda: GridRatio([1.0, 2.0], [1.0, 2.0], grid_size=4), "grid_size=4 must be at least 16"),
    (lambda: KernelRatio(np.ones((3, 2)), np.ones((3, 2))), "must be more than 3 in 2 dim"),
    (lambda: KernelRatio(np.ones((9, 2)), np.ones((9, 2))), "lies in a subspace"),
)
