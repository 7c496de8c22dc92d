from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_audit.stats.tradeoff.gdp import gaussian_epsilon
from lightning_audit.stats.tradeoff.piecewise import PiecewiseTradeoff
from lightning_audit.stats.tradeoff.pld import tradeoff_from_pld
from lightning_audit.stats.tradeoff.subsampled import SubsampledGaussianTradeoff
from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff

ALPHAS = np.concatenate([np.geomspace(1e-9, 0.5, 3000), np.linspace(0.5, 1, 1000)])


def step(sigma: float, q: float, grid: float, **options):
    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=grid, sampling_prob=q, **options
    )


# References.


@pytest.mark.parametrize(
    ("mu", "grid", "error"),
    # Reference errors at points that are not printed; the largest over all alpha are a little more.
    [
        (0.33, 1e-3, 1.2e-7),
        (1.0, 1e-3, 3.9e-8),
        (3.0, 1e-3, 9.6e-9),
        (0.33, 1e-4, 1.4e-9),
        (1.0, 1e-4, 4.5e-10),
        (3.0, 1e-4, 1.3e-10),
    ],
)
def test_gaussian_curve_is_met_from_the_safe_side(mu: float, grid: float, error: float) -> None:
    f = tradeoff_from_pld(step(1 / mu, 1.0, grid))
    short = GaussianTradeoff(mu)(ALPHAS) - f(ALPHAS)
    assert short.min() >= -3e-16
    assert error / 2 <= short.max() <= 1.8 * error


def test_small_alpha_keeps_its_beta() -> None:
    assert tradeoff_from_pld(step(1 / 3, 1.0, 1e-3))(1e-5) == pytest.approx(0.897, abs=5e-4)


def test_subsampled_step_is_met_from_the_safe_side() -> None:
    sigma, q = 0.3**0.5, 0.25
    loss = step(sigma, q, 1e-4)
    for symmetric, direction, error in ((False, "remove", 1.7e-8), (True, "both", 1e-9)):
        f = tradeoff_from_pld(loss, symmetric=symmetric)
        short = SubsampledGaussianTradeoff(sigma, q, direction)(ALPHAS) - f(ALPHAS)
        assert short.min() >= -3e-16
        assert short.max() <= error
        assert f(0.1) == pytest.approx(0.7483, abs=6e-5)
        assert f.epsilon_at(1e-5) == pytest.approx(6.9533, abs=6e-5)


@pytest.mark.parametrize(
    ("grid", "beta"),
    [(1e-3, 0.8866), (1e-4, 0.8905), pytest.param(3e-5, 0.8905, marks=pytest.mark.heavy)],
)
def test_finer_grids_raise_the_curve_of_many_steps_to_its_limit(grid: float, beta: float) -> None:
    f = tradeoff_from_pld(step(1.0, 0.001, grid).self_compose(100_000))
    assert f(0.05) == pytest.approx(beta, abs=6e-5)


@pytest.mark.parametrize("grid", [1e-3, pytest.param(1e-4, marks=pytest.mark.heavy)])
def test_composed_gaussian_steps_are_met_from_the_safe_side(grid: float) -> None:
    f = tradeoff_from_pld(step(2.0, 1.0, grid).self_compose(100))
    short = GaussianTradeoff(5.0)(ALPHAS) - f(ALPHAS)
    # A composition moves 1e-15 of its mass to an infinite loss, and rounds as much.
    assert short.min() >= -1e-14
    # On the finer grid it is the mass of 7.6e-7 that the library gains in composing, not the grid.
    assert short.max() <= 1e-6
    references = {1e-3: 33.103748, 1e-4: 33.103733}
    assert f.epsilon_at(1e-5) == pytest.approx(references[grid], abs=6e-7)
    assert f.epsilon_at(1e-5) >= gaussian_epsilon(5.0, 1e-5)


# Laws and agreement with the library.


@pytest.mark.parametrize(
    "loss",
    [
        step(1.0, 0.01, 1e-3).self_compose(1000),
        step(2.0, 1.0, 1e-3).self_compose(100),
        step(0.5, 0.3, 1e-3),
        step(0.8, 0.2, 1e-2).self_compose(7),
        privacy_loss_distribution.from_laplace_mechanism(1.0, value_discretization_interval=1e-3),
        privacy_loss_distribution.from_randomized_response(0.2, 2),
        privacy_loss_distribution.identity(),
    ],
    ids=["composed", "full batches", "step", "coarse", "laplace", "response", "identity"],
)
def test_privacy_curve_is_that_of_the_distribution(loss) -> None:
    f = tradeoff_from_pld(loss)
    assert isinstance(f, PiecewiseTradeoff)
    for epsilon in (0.0, 0.3, 1.0, 2.5, 6.0):
        assert f.delta_at(epsilon) == pytest.approx(loss.get_delta_for_epsilon(epsilon), abs=1e-12)
    for delta in (0.3, 1e-3, 1e-5):
        expected = max(loss.get_epsilon_for_delta(delta), 0.0)
        assert f.epsilon_at(delta) == pytest.approx(expected, abs=1e-8)
    # Symmetric: its own inverse where it falls.
    beta = f(ALPHAS)
    inner = (beta > 1e-6) & (f.betas[0] * 1e-6 < ALPHAS) & (beta < f.betas[0] * (1 - 1e-9))
    assert f(beta[inner]) == pytest.approx(ALPHAS[inner], rel=1e-6, abs=1e-9)


# Two corners so near that rounding decides which is above the other's line: one of them must stay.
@example(1.3730773456265029, 0.01, 1)
@given(st.floats(0.3, 5), st.floats(0.01, 1), st.integers(1, 20))
def test_one_direction_lies_between_the_symmetric_curve_and_the_truth(
    sigma: float, q: float, steps: int
) -> None:
    loss = step(sigma, q, 1e-2)
    both, one = tradeoff_from_pld(loss), tradeoff_from_pld(loss, symmetric=False)
    assert (both(ALPHAS) <= one(ALPHAS) + 1e-12).all()
    truth = SubsampledGaussianTradeoff(sigma, q, "remove")(ALPHAS)
    assert (one(ALPHAS) <= truth + 1e-12).all()
    more = tradeoff_from_pld(loss.self_compose(steps))
    assert (more(ALPHAS) <= both(ALPHAS) + 1e-9).all()


def test_sparse_and_dense_distributions_give_one_curve() -> None:
    sparse = privacy_loss_distribution.from_randomized_response(0.2, 4).self_compose(3)
    dense = privacy_loss_distribution.PrivacyLossDistribution(sparse._pmf_remove.to_dense_pmf())
    assert isinstance(sparse._pmf_remove, pld_pmf.SparsePLDPmf)
    assert tradeoff_from_pld(sparse)(ALPHAS) == pytest.approx(tradeoff_from_pld(dense)(ALPHAS))


def test_infinite_loss_is_kept() -> None:
    loss = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        {0: 0.9}, 0.1, 1e-3
    )
    f = tradeoff_from_pld(loss)
    assert f(0.0) == pytest.approx(0.9)
    assert f.epsilon_at(0.05) == np.inf


# Refusals.


def test_an_unknown_layout_of_the_library_is_named() -> None:
    message = "_pmf_remove holds _probs .* written for dp-accounting 0.6, so pin that"
    with pytest.raises(TypeError, match=message):
        tradeoff_from_pld(SimpleNamespace(pmf=None))
    with pytest.raises(TypeError, match=message):
        tradeoff_from_pld(None)


def test_an_optimistic_estimate_is_refused() -> None:
    loss = step(1.0, 0.5, 1e-2, pessimistic_estimate=False)
    with pytest.raises(ValueError, match="pessimistic_estimate=False must be True"):
        tradeoff_from_pld(loss)
