from __future__ import annotations

import math

import pytest
from simulated_record import (
    SIGNIFICANCE,
    simulate,
    violated,
)

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise_size import NOISE


def test_shared_e_value_reaches_the_threshold_exactly_when_a_check_flags() -> None:
    made, entries = simulate(60, noise=0.9)
    monitor = AuditMonitor(made, SIGNIFICANCE)
    seen = set()
    for entry in entries:
        monitor.update(entry)
        flagged = bool(violated(monitor))
        seen.add(flagged)
        assert (monitor.log_e_value >= -math.log(SIGNIFICANCE) - 1e-9) == flagged
    assert seen == {True, False}


def test_evidence_flags_at_one_over_its_share_and_keeps_the_first_step() -> None:
    evidence = NOISE.test(0.01)
    assert evidence.threshold == pytest.approx(math.log(1000))
    evidence.update(evidence.threshold - 1e-9, 1)
    assert not evidence.violated
    evidence.update(evidence.threshold, 2)
    evidence.update(-5.0, 3)
    evidence.update(99.0, 4)
    assert (evidence.violated_at, evidence.log_e) == (2, 99.0)
