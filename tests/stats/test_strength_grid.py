from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lightning_audit.stats.attack_strength import (
    at_zero,
    changes,
    equidistributed,
    refined,
    row_integrals,
    searched,
)


def bump(levels: np.ndarray) -> np.ndarray:
    """Density of eps and s eps, independent but for s < 1: around 3 and 1."""
    density = np.outer(stats.norm(3.0, 0.05).pdf(levels), stats.norm(1.0, 0.1).pdf(levels))
    return np.tril(density)


def test_levels_gather_where_the_density_changes_and_keep_their_ends() -> None:
    points = np.linspace(0.0, 10.0, 201)
    found = equidistributed(points, changes(points, stats.norm(3.0, 0.05).pdf(points)), 101)
    assert (found[0], found[-1], found.size) == (0.0, 10.0, 101)
    assert (np.diff(found) > 0).all()
    assert np.mean(np.abs(found - 3.0) < 0.3) > 0.7


def test_rounds_find_a_narrow_density_and_where_it_is_negligible() -> None:
    levels, support = searched(lambda levels, support: bump(levels), 10.0, 4, 40, 120)
    assert levels.size == 120
    assert np.mean(np.abs(levels - 3.0) < 0.5) > 0.25
    assert np.mean(np.abs(levels - 1.0) < 1.0) > 0.25
    # What is not negligible lies within eight standard deviations, and the support around it.
    assert 1.0 < support.epsilon < 2.6
    assert 1.8 < support.inner < 4.0


def test_refining_keeps_the_ends_of_the_levels() -> None:
    levels, support = refined(np.linspace(0, 10, 50), bump(np.linspace(0, 10, 50)), 30)
    assert (levels[0], levels[-1], levels.size) == (0.0, 10.0, 30)
    assert support.epsilon < 3.0
    assert support.inner > 1.0


def test_rows_are_integrated_up_to_their_own_level() -> None:
    levels = np.array([0.0, 1.0, 2.0, 4.0])
    rows = row_integrals(levels, np.tril(np.ones((4, 4))))
    assert rows[2] == pytest.approx([0.0, 1.0, 2.0, 2.0])
    assert rows[3] == pytest.approx([0.0, 1.0, 2.0, 4.0])
    # At eps = 0 it is extrapolated: from 1 and 2 at the levels 1 and 2 to 0.
    assert rows[0] == pytest.approx([0.0] * 4)


def test_a_density_is_extrapolated_to_zero_within_bounds() -> None:
    points = np.array([0.0, 1.0, 3.0])
    assert at_zero(points, 2.0, 1.0) == 2.5
    assert at_zero(points, 1.0, 9.0) == 0.0
    assert at_zero(points, 1.0, -9.0) == 2.0
