from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_mechanisms import gaussian, plane
from scipy import stats

from lightning_audit.stats.outputs.density import (
    FITTED,
    GridRatio,
    KernelRatio,
    silverman_bandwidth,
)
from lightning_audit.stats.outputs.nearest_neighbours import NeighbourRatio, default_neighbours

RNG = np.random.default_rng(5)


def naive_density(samples: np.ndarray, places: np.ndarray, bandwidth: float) -> np.ndarray:
    return stats.norm(samples[:, None], bandwidth).pdf(places).mean(axis=0)


def naive_ratio(p: np.ndarray, q: np.ndarray, x: np.ndarray, k: int) -> np.ndarray:
    """Neighbours by sorting all distances; ties with the k-th count."""
    out = []
    for point in x:
        to_p, to_q = (np.linalg.norm(rows - point, axis=1) for rows in (p, q))
        radius = np.sort(np.concatenate([to_p, to_q]))[k - 1] * (1 + 1e-12)
        near_p, near_q = np.sum(to_p <= radius), np.sum(to_q <= radius)
        out.append((near_q + 0.5) / len(q) / ((near_p + 0.5) / len(p)))
    return np.array(out)


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


@st.composite
def samples(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    dimension = draw(st.integers(1, 3))
    sizes = [draw(st.integers(4, 25)) for _ in range(3)]
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    rows = [rng.normal(0, 1, (n, dimension)) for n in sizes]
    if dimension == 1 and draw(st.booleans()):
        rows = [np.round(r) for r in rows]  # many ties
    return rows[0], rows[1], rows[2], draw(st.integers(1, sum(sizes[:2]) - 1))


@given(samples())
def test_neighbours_are_those_of_sorted_distances(drawn) -> None:
    p, q, x, k = drawn
    scale = 1.0 if p.shape[1] == 1 else np.concatenate([p, q]).std(axis=0)
    expected = naive_ratio(p / scale, q / scale, x / scale, k)
    assert NeighbourRatio(p, q, k)(x) == pytest.approx(expected)


def test_many_queries_in_the_plane_are_answered_in_parts(monkeypatch) -> None:
    p, q = plane(np.random.default_rng(8), 60)
    x = RNG.normal(0, 1, (97, 2))
    whole = NeighbourRatio(p, q, 7)(x)
    monkeypatch.setattr("lightning_audit.stats.outputs.nearest_neighbours._PART", 70)
    assert NeighbourRatio(p, q, 7)(x).tolist() == whole.tolist()


@pytest.mark.parametrize(("samples", "k"), [(4, 3), (100, 11), (2000, 45), (10_000, 101)])
def test_default_number_of_neighbours_is_odd_and_near_the_root(samples: int, k: int) -> None:
    assert default_neighbours(samples) == k


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GridRatio([1.0, np.nan], [1.0, 2.0]), r"samples_p\[1\] is not finite \(1 of 2"),
        (lambda: GridRatio([1.0, 1e200], [1.0, 2.0]), "samples_p holds numbers beyond 1e.100"),
        (lambda: GridRatio([1.0, 2.0], [1.0]), r"samples_q has shape \(1,\), must hold at least 2"),
        (lambda: GridRatio([1.0, 2.0], ["a", "b"]), "samples_q has dtype <U1, must hold real"),
        (lambda: GridRatio(np.ones((5, 2)), np.ones((5, 2))), "has 2 numbers a sample, must have"),
        (lambda: GridRatio(np.ones((5, 2)), np.ones(5)), "2 numbers a sample and samples_q 1"),
        (lambda: GridRatio(np.ones((5, 0)), np.ones(5)), "a sample must hold a number"),
        (lambda: GridRatio([1.0, 2.0], [1.0, 2.0], bandwidth=0), "bandwidth=0 must be a finite"),
        (lambda: GridRatio([1.0, 2.0], [1.0, 2.0], grid_size=4), "grid_size=4 must be at least 16"),
        (lambda: KernelRatio(np.ones((3, 2)), np.ones((3, 2))), "must be more than 3 in 2 dim"),
        (lambda: KernelRatio(np.ones((9, 2)), np.ones((9, 2))), "lies in a subspace"),
        (lambda: NeighbourRatio([1.0, 2.0], [1.0, 2.0], 4), "neighbours=4 must be less than the 4"),
        (lambda: NeighbourRatio([1.0, 2.0], [1.0, 2.0], 0), "neighbours=0 must be a whole number"),
    ],
)
def test_arguments_out_of_range_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
