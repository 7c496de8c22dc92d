from __future__ import annotations

import math

import numpy as np
import pytest
from refused_calls import refusals
from scipy import integrate, special, stats

from lightning_audit.accounting.composition import total_variation, unsampled_mu
from lightning_audit.accounting.history import Phase


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.25), (0.6, 0.1), (3.0, 0.5)])
def test_one_step_is_the_integral_of_the_densities(sigma: float, rate: float) -> None:
    def gap(x: float) -> float:
        out, inside = stats.norm.pdf(x, 0, sigma), stats.norm.pdf(x, 1, sigma)
        return 0.5 * abs(rate * inside - rate * out)

    expected = integrate.quad(gap, -12 * sigma, 1 + 12 * sigma, points=[0.5], limit=200)[0]
    found = total_variation([Phase(sigma, rate, 1)])
    assert expected <= found * (1 + 1e-9)
    assert found == pytest.approx(expected, rel=2e-3)


def test_steps_are_composed_as_a_simulation_of_the_privacy_loss_has_it() -> None:
    sigma, rate, steps, draws = 1.0, 0.2, 20, 400_000
    rng = np.random.default_rng(0)
    loss = np.zeros(draws)
    for _ in range(steps):  # E (1 - e^-L)_+ under the data set with the record
        x = sigma * rng.standard_normal(draws) + (rng.random(draws) < rate)
        loss += np.log1p(rate * np.expm1((2 * x - 1) / (2 * sigma**2)))
    gains = np.maximum(-np.expm1(-loss), 0)
    error = 4 * gains.std() / math.sqrt(draws)
    assert total_variation([Phase(sigma, rate, steps)]) == pytest.approx(gains.mean(), abs=error)


def test_full_batches_are_exact_and_a_replaced_record_doubles_mu() -> None:
    phases = [Phase(4.0, 1.0, 9), Phase(3.0, 1.0, 4)]
    mu = math.sqrt(9 / 16 + 4 / 9)
    assert unsampled_mu(phases) == pytest.approx(mu)
    assert total_variation(phases) == pytest.approx(2 * special.ndtr(mu / 2) - 1, rel=1e-14)
    replaced = total_variation(phases, adjacency="replace_one")
    assert replaced == pytest.approx(2 * special.ndtr(mu) - 1, rel=1e-14)


def test_no_steps_show_nothing_and_no_noise_shows_all() -> None:
    assert total_variation([]) == 0
    assert total_variation([Phase(0.0, 0.1, 1)]) == 1


def test_it_grows_with_steps_and_rate_and_falls_with_noise() -> None:
    base = total_variation([Phase(1.0, 0.05, 100)])
    assert total_variation([Phase(1.0, 0.05, 200)]) > base
    assert total_variation([Phase(1.0, 0.1, 100)]) > base
    assert total_variation([Phase(1.2, 0.05, 100)]) < base
    assert base < total_variation([Phase(1.0, 1.0, 100)])


def test_a_history_that_no_grid_resolves_is_bounded_by_full_batches() -> None:
    phase = Phase(1.0, 1e-4, 20_000_000)
    assert total_variation([phase]) == total_variation([Phase(1.0, 1.0, 20_000_000)])


test_bad_arguments_are_refused = refusals(
    (lambda: total_variation([Phase(1.0, None, 5)]), "sample_rate=None"),
    (lambda: total_variation([], adjacency="near"), "adjacency='near'"),  # type: ignore[arg-type]
)
