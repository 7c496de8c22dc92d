from __future__ import annotations

import math

import numpy as np
import pytest
from simulated_record import SIGNIFICANCE, by_name, header, monitor_of, simulate, violated

from lightning_audit.checks.family import SHARES
from lightning_audit.checks.leakage import LeakageBound


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sigma", [0.7, 3.0])
@pytest.mark.parametrize("data", [0.0, 1.0])
def test_correct_mechanism_leaks_no_more_than_its_claim(
    seed: int, sigma: float, data: float
) -> None:
    monitor = monitor_of(simulate(150, seed=seed, sigma=sigma, data=data))
    assert "mu" not in violated(monitor)
    assert monitor.leakage.ratio_lower(SHARES["epsilon"] * SIGNIFICANCE) <= 1


@pytest.mark.parametrize("fault", [{"noise": 0.5}, {"shift": 2.0}])
def test_twice_the_mu_is_flagged_and_the_bound_is_above_the_claim(
    fault: dict[str, float],
) -> None:
    monitor = monitor_of(simulate(300, **fault))  # type: ignore[arg-type]
    found = by_name(monitor)["mu"]
    assert found.status == "violated"
    assert found.message == "one step leaks more than 1 / noise_multiplier (mu) allows"
    lower = monitor.leakage.ratio_lower(SHARES["epsilon"] * SIGNIFICANCE)
    assert 1.2 < lower <= 2
    assert lower <= monitor.leakage.ratio_lower(0.05) <= 2


def test_noise_and_clipping_too_small_alike_leave_mu_within_the_claim() -> None:
    assert "mu" not in violated(monitor_of(simulate(300, noise=0.5, shift=0.5)))


def test_bound_is_tight_up_to_a_fifth_after_two_thousand_readings() -> None:
    assert 0.8 < monitor_of(simulate(250, sigma=0.7)).leakage.ratio_lower(0.05) <= 1


@pytest.mark.parametrize("sigma", [0.01, 0.5, 20.0, 1e4])
def test_bound_is_on_the_scale_of_the_claim_whatever_the_noise_multiplier(sigma: float) -> None:
    lower = monitor_of(simulate(60, sigma=sigma)).leakage.ratio_lower(0.05)
    assert 0 <= lower <= 1


def test_bound_is_zero_before_anything_was_seen() -> None:
    assert LeakageBound(header()).ratio_lower(0.05) == 0.0


def test_mu_is_frozen_at_a_change_of_the_noise_multiplier_and_says_so() -> None:
    sigma = np.concatenate([np.full(20, 1.0), np.full(200, 0.99)])
    found = by_name(monitor_of(simulate(220, sigma=sigma, noise=0.5)))["mu"]
    before = by_name(monitor_of(simulate(20, noise=0.5)))["mu"]
    assert found.evidence["frozen"] is True
    assert found.log_e_value == before.log_e_value
    assert before.evidence["frozen"] is False


def test_bound_holds_and_grows_while_the_noise_multiplier_decays() -> None:
    sigma = np.geomspace(2.0, 0.4, 300)
    lower = [monitor_of(simulate(n, sigma=sigma[:n])).leakage.ratio_lower(0.05) for n in (100, 300)]
    assert lower == sorted(lower)
    assert 0.3 < lower[-1] <= 1


def test_flags_only_at_its_own_share_of_the_significance() -> None:
    found = by_name(monitor_of(simulate(300, noise=0.5)))["mu"]
    assert found.share == SHARES["mu"]
    assert found.log_e_value is not None
    assert found.log_e_value >= -math.log(found.share * SIGNIFICANCE)
