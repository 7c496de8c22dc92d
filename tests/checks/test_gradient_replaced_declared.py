from __future__ import annotations

from typing import Any

import pytest
from declared import fault_of

from lightning_audit.checks.accounting import EPSILON
from lightning_audit.checks.check import MEASURED, Check, entailed, group
from lightning_audit.checks.clipping import CLIPPING_NORM, FINITE, LOSS_REDUCTION, SENSITIVITY
from lightning_audit.checks.replay import COUPLING
from lightning_audit.checks.sampling import LOGICAL_BATCH
from lightning_audit.checks.update import GRADIENT_REPLACED, NO_DP, UNSYNCHRONISED


@pytest.mark.parametrize(
    ("check", "evidence", "fault"),
    [
        (NO_DP, {"plain_steps": 0, "private_steps": 9}, None),
        (NO_DP, {"plain_steps": 1, "private_steps": 9}, "no_dp"),
        (CLIPPING_NORM, {"largest_ratio": 1.05}, None),  # low precision rounds by that much
        (CLIPPING_NORM, {"largest_ratio": 1.2}, "wrong_norms"),
        (GRADIENT_REPLACED, {"replaced": 0}, None),
        (GRADIENT_REPLACED, {"replaced": 1}, "gradient_replaced"),
        (FINITE, {"lost_steps": 2}, None),  # of all records alike
        (FINITE, {"lost_steps": 2, "records": 1, "rows": 16}, "not_finite"),
        (UNSYNCHRONISED, {"synchronised": True}, None),
        (UNSYNCHRONISED, {"synchronised": False}, "unsynchronised"),
        (COUPLING, {"step": None}, None),
        (COUPLING, {"step": 0}, "records_coupled"),
        (LOGICAL_BATCH, {"carried_over": 0}, None),
        (LOGICAL_BATCH, {"carried_over": 1}, "batches_run_together"),
        (LOSS_REDUCTION, {"loss": "sum", "optimizer": "mean"}, None),  # warns, and is no fault
        (EPSILON, {"epsilon_lower": None, "claimed_epsilon": 3.0}, None),
        (EPSILON, {"epsilon_lower": 2.0, "claimed_epsilon": 3.0}, None),
        (EPSILON, {"epsilon_lower": 4.0, "claimed_epsilon": 3.0}, "leaks_more_than_claimed"),
    ],
)
def test_what_is_wrong_and_which_fault_it_is(
    check: Check, evidence: dict[str, Any], fault: str | None
) -> None:
    assert fault_of(check, evidence) == fault


def test_a_loss_that_is_added_up_otherwise_warns() -> None:
    for loss, status in (("mean", "ok"), ("sum", "warned")):
        found = LOSS_REDUCTION.judged({"loss": loss, "optimizer": "mean"}, "", "", "")
        assert found.status == status


def test_what_replaces_the_gradient_explains_all_that_is_measured_of_it() -> None:
    measured = {name for of in MEASURED for name in group(of)}
    for check in (GRADIENT_REPLACED, UNSYNCHRONISED):
        assert check.faults
        assert all(set(entailed(rule)) == measured for rule in check.faults)
    assert {"sensitivity", "noise", "reuse.lag", "noise.shape", "epsilon"} <= measured
    assert SENSITIVITY.size_of == "signal"
