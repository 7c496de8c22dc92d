"""Likelihood ratios by neighbours: against sorted distances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_mechanisms import plane

from lightning_audit.stats.output_estimates import NeighbourRatio, default_neighbours

RNG = np.random.default_rng(5)


def naive_ratio(p: np.ndarray, q: np.ndarray, x: np.ndarray, k: int) -> np.ndarray:
    """Neighbours by sorting all distances; ties with the k-th count."""
    out = []
    for point in x:
        to_p, to_q = (np.linalg.norm(rows - point, axis=1) for rows in (p, q))
        radius = np.sort(np.concatenate([to_p, to_q]))[k - 1] * (1 + 1e-12)
        near_p, near_q = np.sum(to_p <= radius), np.sum(to_q <= radius)
        out.append((near_q + 0.5) / len(q) / ((near_p + 0.5) / len(p)))
    return np.array(out)


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
    monkeypatch.setattr("lightning_audit.stats.output_estimates._PART", 70)
    assert NeighbourRatio(p, q, 7)(x).tolist() == whole.tolist()


@pytest.mark.parametrize(("samples", "k"), [(4, 3), (100, 11), (2000, 45), (10_000, 101)])
def test_default_number_of_neighbours_is_odd_and_near_the_root(samples: int, k: int) -> None:
    assert default_neighbours(samples) == k


@pytest.mark.parametrize(
    ("neighbours", "message"),
    [(4, "neighbours=4 must be less than the 4"), (0, "neighbours=0 must be a whole number")],
)
def test_a_number_of_neighbours_out_of_range_is_refused(neighbours: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighbourRatio([1.0, 2.0], [1.0, 2.0], neighbours)
