"""Curves of privacy loss distributions, with which the benchmark is held against riskcal's."""

import sys

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from places import REPOSITORY

from lightning_audit.stats.tradeoff import GaussianTradeoff, SubsampledGaussianTradeoff

sys.path.append(str(REPOSITORY / "benchmarks"))
from pld_tradeoff import tradeoff_from_pld

ALPHAS = np.concatenate([np.geomspace(1e-9, 0.5, 3000), np.linspace(0.5, 1, 1000)])


def step(sigma: float, q: float, grid: float, **options):
    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=grid, sampling_prob=q, **options
    )


@pytest.mark.parametrize(
    ("mu", "grid", "error"),
    # Reference errors at points that are not printed; the largest over all alpha are a little more.
    [(0.33, 1e-3, 1.2e-7), (3.0, 1e-3, 9.6e-9), (1.0, 1e-4, 4.5e-10)],
)
def test_gaussian_curve_is_met_from_the_safe_side(mu, grid, error):
    f = tradeoff_from_pld(step(1 / mu, 1.0, grid))
    short = GaussianTradeoff(mu)(ALPHAS) - f(ALPHAS)
    assert short.min() >= -3e-16
    assert error / 2 <= short.max() <= 1.8 * error


def test_subsampled_step_is_met_from_the_safe_side():
    f = tradeoff_from_pld(step(0.3**0.5, 0.25, 1e-4))
    short = SubsampledGaussianTradeoff(0.3**0.5, 0.25)(ALPHAS) - f(ALPHAS)
    assert short.min() >= -3e-16
    assert short.max() <= 1e-9
    assert f(0.1) == pytest.approx(0.7483, abs=6e-5)
    assert f.epsilon_at(1e-5) == pytest.approx(6.9533, abs=6e-5)


@pytest.mark.parametrize(
    ("grid", "beta"),
    [(1e-3, 0.8866), (1e-4, 0.8905), pytest.param(3e-5, 0.8905, marks=pytest.mark.nightly)],
)
def test_finer_grids_raise_the_curve_of_many_steps_to_its_limit(grid, beta):
    f = tradeoff_from_pld(step(1.0, 0.001, grid).self_compose(100_000))
    assert f(0.05) == pytest.approx(beta, abs=6e-5)


@pytest.mark.parametrize(
    "loss",
    [
        step(1.0, 0.01, 1e-3).self_compose(1000),
        step(2.0, 1.0, 1e-3).self_compose(100),
        privacy_loss_distribution.from_laplace_mechanism(1.0, value_discretization_interval=1e-3),
        privacy_loss_distribution.from_randomized_response(0.2, 2),
    ],
    ids=["composed", "full batches", "laplace", "response, sparse"],
)
def test_privacy_curve_is_that_of_the_distribution(loss):
    f = tradeoff_from_pld(loss)
    for epsilon in (0.0, 0.3, 1.0, 2.5, 6.0):
        assert f.delta_at(epsilon) == pytest.approx(loss.get_delta_for_epsilon(epsilon), abs=1e-12)
    for delta in (0.3, 1e-3, 1e-5):
        expected = max(loss.get_epsilon_for_delta(delta), 0.0)
        assert f.epsilon_at(delta) == pytest.approx(expected, abs=1e-8)
    # Symmetric: its own inverse where it falls.
    beta = f(ALPHAS)
    inner = (beta > 1e-6) & (f.betas[0] * 1e-6 < ALPHAS) & (beta < f.betas[0] * (1 - 1e-9))
    assert f(beta[inner]) == pytest.approx(ALPHAS[inner], rel=1e-6, abs=1e-9)


def test_infinite_loss_is_kept():
    loss = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        {0: 0.9}, 0.1, 1e-3
    )
    f = tradeoff_from_pld(loss)
    assert f(0.0) == pytest.approx(0.9)
    assert f.epsilon_at(0.05) == np.inf
