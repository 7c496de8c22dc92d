from __future__ import annotations

import numpy as np
from simulated_record import (
    monitor_of,
    simulate,
    verdict_of,
    violated,
)

from lightning_audit.checks.integrity import clipping_norm_result, no_dp_result


def test_replaced_gradient_is_flagged_by_one_step_and_named() -> None:
    record = simulate(60, replaced=[7])
    assert violated(monitor_of(record)) == {"gradient_replaced"}
    verdict = verdict_of(record)
    assert (verdict.outcome, verdict.kind) == ("VIOLATION", "mechanism")
    assert verdict.fault.startswith("gradient replaced")
    assert "#313" in verdict.advice


def test_a_clipping_norm_that_is_larger_in_the_module_is_wrong_and_a_smaller_one_is_not() -> None:
    assert clipping_norm_result(3, 1.0, (1.0, 1.0)).status == "ok"
    assert clipping_norm_result(3, 1.0, (1.0, 2.0)).status == "ok"
    single = float(np.float32(0.1))  # above .1, as a tensor rounds it
    assert clipping_norm_result(3, 1.0, (single, 0.1)).status == "ok"
    assert clipping_norm_result(3, 1.2, (1.0, 2.0)).message.startswith("a sample's gradient is 1.2")
    found = clipping_norm_result(0, 0.0, (1.0, 0.5))
    assert (found.status, found.evidence["module_norm"]) == ("violated", 1.0)
    assert "module.max_grad_norm=1, and the noise is made for optimizer.max_grad_norm=0.5" in (
        found.message
    )


def test_an_optimizer_beside_a_private_one_may_be_allowed_and_one_alone_may_not() -> None:
    assert "Allow('no_dp', optimizer=..., reason='...')" in no_dp_result(3, 5, "Adam").advice
    assert "Allow" not in no_dp_result(3, 0, "Adam").advice
