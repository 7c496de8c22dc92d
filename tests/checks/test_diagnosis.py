from __future__ import annotations

import pytest
from simulated_record import OVERSIZE, by_name, monitor_of, simulate, violated

from lightning_audit.checks.diagnosis import likely_faults, loses_no_privacy
from lightning_audit.checks.integrity import no_dp_result
from lightning_audit.results import CheckResult


def check(name: str) -> CheckResult:
    return CheckResult(name, "mechanism", "violated", "")


@pytest.mark.parametrize(
    ("names", "finding", "words"),
    [
        (["noise", "sensitivity", "gradient_replaced"], "gradient_replaced", "gradient replaced"),
        (["noise", "no_dp"], "no_dp", "no DP-SGD"),
        (["accounting", "sampling.rate", "mu"], "mu", "more leaks than the claim allows"),
        (["accounting", "epsilon"], "epsilon", "more leaks than the claim allows"),
        (["accounting", "sampling.not_poisson"], "sampling.not_poisson", "not Poisson"),
        (["accounting", "sampling.rate"], "sampling.rate", "draws more often"),
        (["accounting"], "accounting", "wrong accounting"),
    ],
)
def test_finding_that_explains_the_others_gives_the_name(
    names: list[str], finding: str, words: str
) -> None:
    fault = likely_faults([check(name) for name in names], monitor_of(simulate(20)), OVERSIZE)[0]
    assert fault.finding == finding
    assert words in fault.sentence


def test_faults_are_named_without_a_monitor() -> None:
    assert likely_faults([check("no_dp")], None, OVERSIZE)[0].finding == "no_dp"
    assert likely_faults([check("accounting")], None, OVERSIZE)[0].finding == "accounting"


def test_clipping_is_named_before_noise() -> None:
    monitor = monitor_of(simulate(100, noise=0.5, shift=3.0))
    found = [c for c in monitor.results() if c.status == "violated"]
    assert {c.name for c in found} >= {"noise", "sensitivity"}
    assert likely_faults(found, monitor, OVERSIZE)[0].finding == "sensitivity"


def test_tensors_that_clipping_misses_are_named() -> None:
    shift = [1.0, 1.4, OVERSIZE, OVERSIZE, 1.0, 1.0, 1.4, 1.0]
    monitor = monitor_of(simulate(40, shift=shift))
    found = [c for c in monitor.results() if c.status == "violated"]
    fault = likely_faults(found, monitor, OVERSIZE)[0]
    assert fault.sentence.startswith(
        "clipping misses some tensors: `Dirac(fc.bias)`, `BlockPair(2 tensors)` passed"
    )


@pytest.mark.parametrize("seed", range(4))
def test_clipping_per_tensor_is_named_though_pairs_pass_with_more_as_well(seed: int) -> None:
    shift = [1.0, 4.0, 1.0, 2.0**0.5, 1.0, 1.0, 4.0, 1.0]
    monitor = monitor_of(simulate(30, seed=seed, shift=shift))
    fault = likely_faults([check("sensitivity")], monitor, OVERSIZE)[0]
    assert fault.sentence.startswith("clipping per tensor:")


@pytest.mark.parametrize("seed", range(4))
def test_a_norm_that_is_too_large_everywhere_is_not_called_clipping_per_tensor(seed: int) -> None:
    monitor = monitor_of(simulate(30, seed=seed, shift=2.0))
    fault = likely_faults([check("sensitivity")], monitor, OVERSIZE)[0]
    assert fault.sentence.startswith("clipping norm too large:")


def test_named_finding_is_among_the_violated_ones() -> None:
    for fault in ({"noise": 0.5}, {"shift": 9.0}, {"reuse": "same"}, {"reuse": "broadcast"}):
        monitor = monitor_of(simulate(80, data=0.1, **fault))  # type: ignore[arg-type]
        found = [c for c in monitor.results() if c.status == "violated"]
        assert likely_faults(found, monitor, OVERSIZE)[0].finding in {c.name for c in found}


def test_noise_and_clipping_that_err_together_lose_no_privacy() -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.8))
    found = [c for c in monitor.results() if c.status == "violated"]
    names = {c.name for c in found}
    # Coordinates that differ by 0.8 times the claim do so because the noise is that small.
    assert names == {"noise", "noise.tensor", "noise.step", "noise.canary", "reuse.broadcast"}
    assert monitor.reuse.residual_ratio("reuse.broadcast") == pytest.approx(0.8, abs=0.05)
    assert loses_no_privacy(found, monitor)


@pytest.mark.parametrize("reuse", ["broadcast", "pair"])
def test_noise_that_is_shared_within_a_step_is_never_said_to_lose_no_privacy(reuse: str) -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.5, reuse=reuse))
    found = [c for c in monitor.results() if c.status == "violated"]
    assert f"reuse.{reuse}" in {c.name for c in found}
    assert not loses_no_privacy(found, monitor)


@pytest.mark.parametrize(
    "fault",
    [
        {"noise": 0.8},
        {"noise": 0.8, "shift": 0.9},
        {"noise": [0.8, 0.8, 0.4], "shift": 0.8},
        {"noise": 0.8, "shift": 1.2},
    ],
)
def test_noise_below_the_shift_does_lose_privacy(fault: dict[str, object]) -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, **fault))  # type: ignore[arg-type]
    found = [c for c in monitor.results() if c.status == "violated"]
    assert found
    assert not loses_no_privacy(found, monitor)


def test_other_findings_are_never_said_to_lose_no_privacy() -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.8))
    found = [c for c in monitor.results() if c.status == "violated"]
    assert not loses_no_privacy([*found, check("gradient_replaced")], monitor)


def test_optimizer_without_dp_is_named() -> None:
    assert no_dp_result(3, 0, "Adam").status == "violated"
    assert "Adam took 3 steps" in no_dp_result(3, 0, "Adam").message
    assert no_dp_result(0, 0, "").status == "not_run"
    assert no_dp_result(0, 5, "").status == "ok"


def test_replaced_gradients_are_counted() -> None:
    monitor = monitor_of(simulate(10, replaced=[2, 5]))
    assert "in 2 of 10 steps" in by_name(monitor)["gradient_replaced"].message
    assert violated(monitor) == {"gradient_replaced"}


@pytest.mark.parametrize("lag", [5, 16])
def test_small_noise_that_comes_back_is_named_re_used_and_never_harmless(lag: int) -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.7, reuse=f"lag {lag}"))
    found = [check for check in monitor.results() if check.status == "violated"]
    assert likely_faults(found, monitor, OVERSIZE)[0].finding == "reuse.lag"
    assert not loses_no_privacy(found, monitor)
