"""What the worst of several points costs, and p-values of several points and folds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from stages import most_failures, staged

from lightning_audit.many import folds_p_value, worst_of
from lightning_audit.many.challenges import paid_significance, trainings_for_worst_of
from lightning_audit.many.verdict import promise_of
from lightning_audit.stats.tradeoff import GaussianTradeoff, gaussian_mu

POINTS = (1, 10, 100, 1000)


@pytest.mark.parametrize(
    ("epsilon", "significance", "trainings"),
    [
        (8.0, 0.05, [14, 24, 34, 44]),
        (8.0, 0.001, [31, 41, 51, 62]),
        (4.0, 0.05, [8, 14, 20, 26]),
    ],
)
def test_paying_costs_the_logarithm_of_the_number_of_points(epsilon, significance, trainings):
    claim = GaussianTradeoff(float(gaussian_mu(epsilon, 1e-5)))
    error = promise_of(claim).least_error
    needed = [trainings_for_worst_of(error, significance, points) for points in POINTS]
    assert needed == trainings
    # The exact binomial test of the worst point refutes after that many guesses, not one less.
    for points, count in zip(POINTS, needed, strict=True):
        level = paid_significance(significance, points)
        assert (1 - error) ** count <= level < (1 - error) ** (count - 1)


def test_a_smaller_claim_is_refuted_sooner():
    errors = [promise_of(GaussianTradeoff(mu)).least_error for mu in (0.5, 1.0, 2.0)]
    needed = [trainings_for_worst_of(error, 0.05, 10) for error in errors]
    assert needed == sorted(needed)


def test_p_values_of_points_and_folds():
    assert worst_of([0.2, 0.001, 0.7]) == pytest.approx(0.003)
    assert worst_of([0.5, 0.9]) == 1.0
    assert worst_of(0.01, points=30) == pytest.approx(0.3)
    assert folds_p_value([0.03]) == pytest.approx(0.03)
    assert folds_p_value([0.4, 0.03]) == pytest.approx(0.06)
    assert folds_p_value([0.5, 0.01, 0.02]) == pytest.approx(0.03)


@pytest.mark.parametrize("combine", [worst_of, folds_p_value])
@pytest.mark.parametrize("values", [[], [0.2, 1.5], [-0.1], [float("nan")]])
def test_what_is_no_p_value_is_refused(combine, values):
    with pytest.raises(ValueError, match="p_values"):
        combine(values)


def test_fewer_points_than_p_values_are_refused():
    with pytest.raises(ValueError, match="points=1 is smaller"):
        worst_of([0.1, 0.2], points=1)
    with pytest.raises(ValueError, match="points=0"):
        paid_significance(0.05, 0)


@pytest.mark.parametrize("combine", [worst_of, folds_p_value])
@pytest.mark.parametrize("correlation", [-0.2, 0.0, 0.9])
@pytest.mark.parametrize("runs", staged(quick=[1000], nightly=[100_000]))
def test_combined_p_values_hold_their_level_for_dependent_tests(combine, correlation, runs):
    rng = np.random.default_rng(0)
    cover = np.full((5, 5), correlation) + (1 - correlation) * np.eye(5)
    p_values = stats.norm.sf(rng.multivariate_normal(np.zeros(5), cover, runs))
    wrong = sum(combine(row) <= 0.05 for row in p_values)
    assert wrong <= most_failures(runs, 0.05, 100_000)
    assert np.mean(p_values.min(axis=1) <= 0.05) > 0.05  # the smallest of five does not
