from __future__ import annotations

import math

import pytest
from simulated_record import (
    SIGNIFICANCE,
    simulate,
    violated,
)

from lightning_audit.checks.base.evidence import Evidence, log_weight, refuse_others
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise.noise_at_entries import NOISE_ENTRIES
from lightning_audit.checks.noise.noise_size import NOISE


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
    assert evidence.threshold == pytest.approx(-math.log(0.01 * NOISE.share))
    evidence.update(evidence.threshold - 1e-9, 1)
    assert not evidence.violated
    evidence.update(evidence.threshold, 2)
    evidence.update(-5.0, 3)
    evidence.update(99.0, 4)
    assert (evidence.violated_at, evidence.log_e) == (2, 99.0)


def test_segment_k_flags_at_one_over_k_times_k_plus_one_of_the_share() -> None:
    for k in (1, 2, 40):
        evidence = NOISE_ENTRIES.test(0.01)
        evidence.segment = k
        assert evidence.threshold == pytest.approx(
            math.log(k * (k + 1) / (0.01 * NOISE_ENTRIES.share))
        )
        evidence.update(evidence.threshold - 1e-9, 1)
        assert not evidence.violated
        evidence.update(evidence.threshold + 1e-9, 2)
        assert (evidence.violated, evidence.violated_at) == (True, 2)


def test_the_weights_of_all_segments_add_up_to_one() -> None:
    assert sum(math.exp(log_weight(k)) for k in range(1, 1000)) == pytest.approx(1.0 - 1.0 / 1000)


def test_only_tests_of_private_numbers_restart() -> None:
    assert (NOISE.test(0.01).segment, NOISE_ENTRIES.test(0.01).segment) == (0, 1)


def test_a_checkpoint_with_other_tests_or_shares_is_refused() -> None:
    one, other = Evidence("a", 1e-3, 0.1), Evidence("b", 1e-3, 0.2)
    refuse_others([one, other], [Evidence("b", 1e-2, 0.2), Evidence("a", 1e-3, 0.1)])
    for then in ([one], [one, other, Evidence("c", 1e-3, 0.1)], [one, Evidence("b", 1e-3, 0.3)]):
        with pytest.raises(ValueError, match=r"had other checks.*(b|c).*resume with the packages"):
            refuse_others([one, other], then)
