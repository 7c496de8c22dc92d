"""The cost of a step: Rényi divergences."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from lightning_audit.stats.divergences import (
    order_two_divergence,
    order_two_slope,
    renyi_divergence,
)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 1.7, 3.0])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 0.99])
def test_they_are_what_a_renyi_accountant_adds(mu: float, rate: float) -> None:
    orders = [2, 3, 8, 32]
    accountant = RdpAccountant(orders=orders)
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1.0 / mu))
    accountant.compose(step)
    found = [float(renyi_divergence(mu, rate, order)) for order in orders]
    assert found == pytest.approx(accountant._rdp, rel=1e-6, abs=1e-14)
    assert order_two_divergence(mu, rate) == pytest.approx(found[0], rel=1e-6, abs=1e-14)


def test_full_batches_cost_the_square_of_mu_and_nothing_overflows() -> None:
    mu = np.array([0.0, 1e-5, 0.999, 1.001, 5.0, 1e3])
    assert order_two_divergence(mu, 1.0) == pytest.approx(mu**2)
    assert order_two_slope(mu, 1.0) == pytest.approx(2 * mu)
    assert renyi_divergence(mu, 1.0, 5) == pytest.approx(2.5 * mu**2)
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
