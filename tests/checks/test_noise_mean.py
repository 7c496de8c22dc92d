from __future__ import annotations

import numpy as np
import pytest
from noise_steps import noise_step

from lightning_audit.checks.noise import NoiseMean
from lightning_audit.results.audit_report import CheckResult


def found(mean: float, *, steps: int = 20, seed: int = 0) -> CheckResult:
    """Result for noise of this mean, in units of its standard deviation."""
    rng, check = np.random.default_rng(seed), NoiseMean(1e-3)
    for step in range(steps):
        check.update(noise_step(mean + rng.normal(size=384), step))
    return check.result("")


def test_noise_around_zero_is_left_alone() -> None:
    assert {found(0.0, seed=seed).status for seed in range(20)} == {"ok"}


@pytest.mark.parametrize("mean", [0.3, -0.3])
def test_noise_with_a_mean_is_warned_of_within_a_few_steps(mean: float) -> None:
    result = found(mean)
    assert result.status == "warned"
    assert result.evidence["violated_at_step"] < 5
    assert (result.evidence["positive"] > result.evidence["negative"]) == (mean > 0)
    assert "the mean of the noise is not zero" in result.message


def test_a_run_without_noise_to_see_says_why_nothing_was_tested() -> None:
    result = found(0.0, steps=0)
    assert result.status == "not_run"
    assert result.message == (
        "not tested: no step's entries were read between its noise and its update"
    )
    assert NoiseMean(1e-3).result("they are hidden").message == "not tested: they are hidden"
