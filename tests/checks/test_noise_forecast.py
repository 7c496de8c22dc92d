from __future__ import annotations

import numpy as np
import pytest
from noise_steps import noise_step

from lightning_audit.checks.randomness import REUSE_FORECAST, NoiseForecast
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence import FORECAST_LAGS


def found(part: float, lag: int = 1, *, steps: int = 40, every: int = 1) -> CheckResult:
    """Result for noise that takes so much of what it was so many steps before."""
    rng, check = np.random.default_rng(0), NoiseForecast(1e-3)
    rows = rng.normal(size=(steps, 256))
    for step in range(steps):
        if step >= lag:
            rows[step] = part * rows[step - lag] + np.sqrt(1 - part**2) * rows[step]
        if step % every == 0:
            check.update(noise_step(rows[step], step))
    return check.result("")


def test_new_noise_is_left_alone() -> None:
    result = found(0.0)
    assert result.status == "ok"
    assert result.share == REUSE_FORECAST.share


@pytest.mark.parametrize(
    ("part", "lag", "words"),
    [
        (0.5, 1, "is 0.5 times the noise of the step before, and leaves 7"),
        (-0.6, 1, "times the noise of the step before, and leaves 6"),
        (-0.5, FORECAST_LAGS, "times the noise of 16 steps before"),
    ],
)
def test_noise_that_depends_on_the_past_is_told_with_how_it_does(
    part: float, lag: int, words: str
) -> None:
    result = found(part, lag)
    assert result.status == "violated"
    assert words in result.message
    assert result.evidence["lag"] == lag
    assert result.evidence["coefficient"] == pytest.approx(part, abs=0.05)
    assert [rule.name for rule in REUSE_FORECAST.faults if rule.applies(result.evidence)] == [
        "noise_correlated_over_steps"
    ]


def test_noise_that_only_is_small_is_not_said_to_depend_on_the_past() -> None:
    check, rng = NoiseForecast(1e-3), np.random.default_rng(1)
    for step in range(30):
        check.update(noise_step(0.4 * rng.normal(size=256), step))
    result = check.result("")
    assert result.status == "violated"
    assert not any(rule.applies(result.evidence) for rule in REUSE_FORECAST.faults)


def test_steps_that_lie_too_far_apart_are_not_compared() -> None:
    result = found(0.5, every=FORECAST_LAGS + 1, steps=100)
    assert result.status == "not_run"
    assert result.message == f"not tested: {REUSE_FORECAST.needs}"
    assert NoiseForecast(1e-3).result("it is hidden").message == "not tested: it is hidden"
