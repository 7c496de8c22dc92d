"""The cost of a step: Rényi divergence of order two."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from lightning_audit.stats.tradeoff.order_two import order_two_divergence, order_two_slope


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 1.7, 3.0])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 0.99])
def test_it_is_what_a_renyi_accountant_adds_at_order_two(mu: float, rate: float) -> None:
    accountant = RdpAccountant(orders=[2])
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1.0 / mu))
    accountant.compose(step)
    (expected,) = accountant._rdp
    assert order_two_divergence(mu, rate) == pytest.approx(expected, rel=1e-6)


def test_full_batches_cost_the_square_of_mu_and_nothing_overflows() -> None:
    mu = np.array([0.0, 1e-5, 0.999, 1.001, 5.0, 1e3])
    assert order_two_divergence(mu, 1.0) == pytest.approx(mu**2)
    assert order_two_slope(mu, 1.0) == pytest.approx(2 * mu)
    far = order_two_divergence(1e3, 0.01)
    assert far == pytest.approx(1e6 + 2 * np.log(0.01))
    assert order_two_slope(1e3, 0.01) == pytest.approx(2e3)


@pytest.mark.parametrize("rate", [1e-3, 0.05, 0.5])
def test_slope_is_the_derivative_and_the_cost_is_convex_in_the_square(rate: float) -> None:
    mu = np.geomspace(1e-2, 8.0, 200)
    h = 1e-5 * mu
    numeric = order_two_divergence(mu + h, rate) - order_two_divergence(mu - h, rate)
    assert order_two_slope(mu, rate) == pytest.approx(numeric / (2 * h), rel=1e-4)
    square = np.linspace(1e-4, 40.0, 2000)
    second = np.diff(order_two_divergence(np.sqrt(square), rate), n=2)
    assert (second > -1e-12).all()
