from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.stats._arguments import least_nonnegative


def test_roots_at_zero_and_far_away_are_found() -> None:
    targets = np.array([-1.0, 0.0, 1e-12, 3.0, 1e6])

    def residual(x, rows):
        return np.log1p(x) - np.log1p(targets[rows]), 1 / (1 + x)

    with np.errstate(divide="ignore"):
        roots = least_nonnegative(residual, np.ones(targets.size))
    assert roots == pytest.approx([0.0, 0.0, 1e-12, 3.0, 1e6], rel=1e-9, abs=1e-15)


def test_a_root_that_is_not_there_is_an_error() -> None:
    with np.errstate(all="ignore"), pytest.raises(RuntimeError, match="1 of 1 roots not found"):
        least_nonnegative(lambda x, rows: (np.full(1, -1.0), np.full(1, 1e-9)), np.ones(1))


def test_a_slope_that_points_nowhere_is_bracketed() -> None:
    # A step, whose slope is zero on either side: halving alone has to find it.
    found = least_nonnegative(
        lambda x, rows: (np.where(x < 7.0, -1.0, 1.0), np.zeros(x.size)), np.ones(2)
    )
    assert found == pytest.approx([7.0, 7.0], rel=1e-15)
