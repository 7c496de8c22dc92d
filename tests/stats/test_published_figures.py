"""Figures of Nasr et al. 2023 (Tight Auditing) about trade-off curves, where they are right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    epsilon_clopper_pearson,
    mu_clopper_pearson,
)
from lightning_audit.stats.gdp import gaussian_epsilon, gaussian_mu
from lightning_audit.stats.tradeoff import GaussianTradeoff

DELTA = 1e-5


def test_the_mu_of_epsilon_one_is_not_a_quarter() -> None:
    # The text says "mu ~ .25 for (1, 1e-5)".
    assert gaussian_mu(1.0, DELTA) == pytest.approx(0.26805, abs=5e-6)
    assert gaussian_epsilon(0.25, DELTA) == pytest.approx(0.926, abs=5e-4)


def test_the_gaussian_curve_at_the_point_of_figure_2() -> None:
    fnr = GaussianTradeoff(gaussian_mu(1.0, DELTA))(0.23)
    assert fnr == pytest.approx(0.6811, abs=5e-5)
    assert epsilon_at_rates(fnr, 0.23, DELTA) == pytest.approx(0.327, abs=5e-4)


def test_the_optimal_threshold_of_equation_18() -> None:
    # Where the likelihood ratio of N(1, 1) and N(0, 1) is e^epsilon.
    epsilon = gaussian_epsilon(1.0, DELTA)
    w = epsilon + 0.5
    assert w == pytest.approx(4.87718, abs=5e-6)
    right = stats.norm.sf(w - 1) - np.exp(epsilon) * stats.norm.sf(w)
    assert right == pytest.approx(DELTA, rel=1e-7)


def expected_counts(total: float, threshold: float) -> ConfusionCounts:
    """Counts as large as they are on average, of N(1, 1) against N(0, 1)."""
    n = total / 2
    fn, fp = round(n * stats.norm.cdf(threshold - 1)), round(n * stats.norm.sf(threshold))
    return ConfusionCounts(fn, round(n) - fn, fp, round(n) - fp)


def test_bounds_on_epsilon_need_thousands_of_times_the_observations_of_bounds_on_mu() -> None:
    w = gaussian_epsilon(1.0, DELTA) + 0.5
    assert epsilon_clopper_pearson(expected_counts(5e3, w), DELTA, 0.05) == 0.0
    at_w = epsilon_clopper_pearson(expected_counts(2.5e8, w), DELTA, 0.05)
    assert at_w == pytest.approx(4.112, abs=5e-4)
    middle = mu_clopper_pearson(expected_counts(5e4, 0.5), 0.05)
    assert gaussian_epsilon(middle, DELTA) == pytest.approx(4.213, abs=5e-4)
