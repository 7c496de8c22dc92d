"""Statistics of the readings with and without the canary: against plain sums over all of them."""

from __future__ import annotations

import numpy as np
import pytest
from coin_steps import simulated_steps

from lightning_audit.stats.sequential import PredictableCentre, TwoGroups


def test_statistics_are_those_of_all_centred_readings_together() -> None:
    groups, centre, rows, sides = TwoGroups(3), PredictableCentre((3,)), [], []
    for coins, readings in simulated_steps(0, 40, 3):
        rows.append((readings - centre.value) / 1.5)
        sides.append(coins)
        centre.update(readings - coins)
        groups.update(coins, readings, 1.5)
    x, inside = np.concatenate(rows), np.concatenate(sides) > 0.5
    n_in, n_out, difference, within = groups.statistics
    assert (n_in, n_out) == (inside.sum(), (~inside).sum())
    assert difference == pytest.approx(x[inside].mean() - x[~inside].mean(), abs=1e-12)
    left = sum(((side - side.mean()) ** 2).sum() for side in (x[inside], x[~inside]))
    assert within == pytest.approx(left, rel=1e-10)


def test_steps_from_another_noise_multiplier_on_are_left_out() -> None:
    groups = TwoGroups(2)
    first, *others = simulated_steps(1, 5, 2)
    groups.update(*first, 1.5)
    before = groups.statistics
    for sigma, step in zip((1.4, 1.5, 1.5, 1.5), others, strict=True):
        groups.update(*step, sigma)
    assert groups.frozen
    assert groups.noise_multiplier == 1.5
    assert groups.statistics == before


def test_readings_that_agree_have_no_spread_below_zero() -> None:
    groups = TwoGroups(1)
    groups.update(np.array([1.0]), np.array([0.3]), 1.0)
    assert groups.statistics == (1, 0, 0.3, 0.0)
    assert TwoGroups(1).statistics == (0, 0, 0.0, 0.0)
