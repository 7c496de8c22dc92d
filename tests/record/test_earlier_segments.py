"""Verdicts of checks that restart survive a resume; of their numbers powers of ten do."""

from __future__ import annotations

import json
import math

import pytest

from lightning_audit.checks.check import REGISTRY, Check, Evidence
from lightning_audit.checks.noise import NOISE, NOISE_ENTRIES
from lightning_audit.checks.replay import COUPLING
from lightning_audit.record.store import EarlierSegments
from lightning_audit.results.audit_report import CheckResult

SIGNIFICANCE = 1e-3
LEVEL = -math.log(NOISE_ENTRIES.share * SIGNIFICANCE)


def entries(log_e: float, significance: float = SIGNIFICANCE, **numbers: float) -> CheckResult:
    """Result of `noise.entries` with a log e-value that the test was given at step 9."""
    test = Evidence(NOISE_ENTRIES.name, significance, NOISE_ENTRIES.share)
    if log_e >= 0.0:
        test.update(log_e, 9)
    return NOISE_ENTRIES.result(test, NOISE_ENTRIES.fine, "quiet entries", "look", numbers)


def resumed(*checks: CheckResult, significance: float = SIGNIFICANCE) -> EarlierSegments:
    """The segment behind one in which the checks of the run had these results."""
    state = EarlierSegments().state([list(checks)], [significance])
    after = EarlierSegments()
    after.load(json.loads(json.dumps(state)), 40)
    return after


def test_a_violation_of_an_earlier_segment_stays_with_two_digits_of_its_evidence() -> None:
    after = resumed(entries(LEVEL + 3.0, quietest=0.123456))
    (found,) = after.joined(-1, [entries(0.0)], SIGNIFICANCE)
    assert (found.status, found.message) == ("violated", "quiet entries")
    assert found.evidence["quietest"] == 0.12
    assert found.evidence["violated_at_step"] == 9
    (again,) = after.joined(-1, [entries(-1.0)], SIGNIFICANCE)
    assert again.status == "violated"
    assert [check.name for check in after.joined(-1, [], SIGNIFICANCE)] == [NOISE_ENTRIES.name]


def test_a_checkpoint_with_results_of_a_check_that_is_not_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = Check("made.up", "nothing", wrong=lambda seen: False, private=True)
    with monkeypatch.context() as installed:
        installed.setitem(REGISTRY, outside.name, outside)
        state = EarlierSegments().state([[outside.not_run("nothing")]], [SIGNIFICANCE])
    with pytest.raises(
        ValueError, match=r"had other checks \(made\.up\); resume with the packages"
    ):
        EarlierSegments().load(state, 40)


def test_of_what_was_not_found_a_power_of_ten_is_left() -> None:
    after = resumed(entries(5.0, quietest=0.5))
    (found,) = after.joined(-1, [entries(-1.0)], SIGNIFICANCE)
    assert (found.status, found.log_e_value) == ("ok", pytest.approx(2 * math.log(10.0)))
    assert "quietest" not in found.evidence


def test_the_same_state_whatever_the_numbers_below_a_power_of_ten() -> None:
    states = [
        EarlierSegments().state([[entries(log_e, quietest=q)]], [SIGNIFICANCE])
        for log_e, q in ((2.5, 0.1), (4.5, 0.7))
    ]
    assert states[0] == states[1]


def test_a_check_of_releases_is_in_no_state() -> None:
    test = Evidence(NOISE.name, SIGNIFICANCE, NOISE.share)
    result = NOISE.result(test, "fine", "wrong", "look", {})
    assert resumed(result).joined(-1, [], SIGNIFICANCE) == []


def test_another_significance_judges_earlier_segments_by_their_powers_of_ten() -> None:
    after = resumed(entries(LEVEL - 2.0))
    (found,) = after.joined(-1, [entries(0.0, 0.5)], 0.5)
    assert found.status == "violated"
    assert "before step 41" in found.message
    assert found.evidence["violated_at_step"] == 40
    (kept,) = resumed(entries(LEVEL + 1.0)).joined(-1, [entries(0.0, 1e-60)], 1e-60)
    assert kept.status == "ok"


def test_a_check_without_e_value_keeps_what_it_found() -> None:
    wrong = COUPLING.judged({"replays": 1, "change": 0.5, "step": 3}, "", "depends", "look")
    fine = COUPLING.judged({"replays": 1, "change": None, "step": None}, COUPLING.fine, "", "")
    assert wrong.status == "violated"
    for now in (fine, COUPLING.not_run("not asked")):
        (found,) = resumed(wrong).joined(-1, [now], SIGNIFICANCE)
        assert found.status == "violated"
    (found,) = resumed(fine).joined(-1, [COUPLING.not_run("not asked")], SIGNIFICANCE)
    assert found.status == "ok"


def test_what_was_undecided_is_decided_again() -> None:
    unsure = entries(LEVEL + 1.0).__class__(
        NOISE_ENTRIES.name, "mechanism", "undecided", "not certain", log_e_value=LEVEL + 1.0,
        share=NOISE_ENTRIES.share, evidence={"violated_at_step": 9},
    )  # fmt: skip
    (found,) = resumed(unsure).joined(-1, [entries(0.0)], SIGNIFICANCE)
    assert found.status == "violated"


def test_segments_are_counted_in_every_test_that_restarts_and_in_the_note() -> None:
    after = resumed()
    tests = [REGISTRY[name].test(SIGNIFICANCE) for name in (NOISE.name, NOISE_ENTRIES.name)]
    after.number(tests)
    assert [test.segment for test in tests] == [0, 2]
    assert after.note.startswith("the training was resumed once")
    assert EarlierSegments().note == ""
