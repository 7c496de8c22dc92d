from __future__ import annotations

import math

import pytest
from noise_steps import HEADER
from simulated_record import (
    SIGNIFICANCE,
    simulate,
    violated,
)

from lightning_audit.checks.check import (
    REGISTRY,
    Check,
    Evidence,
    evidence_in,
    log_weight,
    refuse_others,
    shares,
)
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise import NOISE, NOISE_ENTRIES


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


def test_a_checkpoint_with_other_checks_or_shares_is_refused() -> None:
    now = {"a": 0.1, "b": 0.2, "without": 0.0}
    refuse_others(now, dict(reversed(now.items())))
    for then in ({"a": 0.1, "without": 0.0}, {"a": 0.1, "b": 0.2}, {**now, "b": 0.3}):
        with pytest.raises(ValueError, match=r"had other checks.*(b|without).*resume with the pac"):
            refuse_others(now, then)


class Outside:
    """A statistic of a package that adds a check; its parts refer to each other."""

    def __init__(self) -> None:
        self.test, self.whole = Evidence("a.median", 1e-3, 0.1), [self]


def test_tests_in_statistics_of_other_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(evidence_in({"a.median": Outside()})) == []  # of no package that adds a check
    median = Check(
        "a.median", "nothing", each=True, reads="steps", init=lambda *_: Outside(), weight=10
    )
    monkeypatch.setitem(REGISTRY, median.name, median)
    made = Outside()
    assert list(evidence_in({"a.median": made})) == [made.test]


def test_a_record_lists_its_statistics_with_and_without_e_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = AuditMonitor(HEADER, SIGNIFICANCE).shares
    assert before["noise.tensor"] == pytest.approx(shares()["noise.tensor"])
    plain = Check("a.count", "nothing", each=True, reads="steps", init=lambda *_: object())
    monkeypatch.setitem(REGISTRY, plain.name, plain)
    assert AuditMonitor(HEADER, SIGNIFICANCE).shares == {**before, "a.count": 0.0}
