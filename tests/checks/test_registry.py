from __future__ import annotations

import math

import pytest

from lightning_audit.checks.check import (
    REGISTRY,
    Check,
    FaultRule,
    entailed,
    group,
    in_order,
    shares,
    teller,
)
from lightning_audit.config import findings
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.verdict.diagnosis import likely_faults

MADE_UP = Check(
    "made.up",
    "nothing that exists",
    weight=3,
    group="noise",
    wrong=lambda seen: seen["much"] > 1,
    faults=(FaultRule("made_up", "made up: nothing", "nowhere", rank=-20),),
)


def test_shares_of_the_significance_leave_a_tenth() -> None:
    for handed_out in (shares(), shares(warns=True)):
        assert math.fsum(handed_out.values()) == pytest.approx(0.9)
        assert min(handed_out.values()) > 0


def test_a_rule_is_asked_only_of_a_check_that_has_one() -> None:
    with pytest.raises(KeyError, match="noise has an e-value"):
        REGISTRY["noise"].is_wrong({})
    with pytest.raises(KeyError):
        REGISTRY["no_dp"].is_wrong({})


def test_what_a_fault_entails_is_registered() -> None:
    rules = [(check.name, rule) for check in REGISTRY.values() for rule in check.faults]
    assert rules
    for name, rule in rules:
        assert set(entailed(rule)) <= set(REGISTRY), name


def test_no_two_checks_name_faults_of_one_rank() -> None:
    ranks = [check.faults[0].rank for check in REGISTRY.values() if check.faults]
    assert len(set(ranks)) == len(ranks)


def test_a_check_that_is_added_is_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    before = shares()
    monkeypatch.setitem(REGISTRY, MADE_UP.name, MADE_UP)
    found = MADE_UP.judged({"much": 2}, "", "too much", "less")
    assert "made.up" in findings()
    weights = math.fsum(check.weight for check in REGISTRY.values() if not check.warns)
    assert shares()["made.up"] == pytest.approx(0.9 * 3 / weights)
    assert before["noise"] * 0.99 < shares()["noise"] < before["noise"]
    assert group("noise")[-1] == "made.up"
    assert "made.up" in entailed(REGISTRY["gradient_replaced"].faults[0])
    other = CheckResult("noise", "mechanism", "ok", "fine")
    assert in_order([found, other]) == [other, found]
    assert teller("made_up") == (MADE_UP, MADE_UP.faults[0])
    (fault,) = likely_faults([found], None, 1.0)
    assert (fault.name, fault.finding) == ("made_up", "made.up")


def test_a_fault_that_checks_tell_has_one_sentence_and_no_other_has_a_teller() -> None:
    for check in REGISTRY.values():
        for rule in check.faults:
            told = teller(rule.name)
            assert told is not None
            # Of several checks that tell it, the first one does; their words are the same.
            assert told[1].sentence == rule.sentence
    assert teller("noise_divided_by_batch") is None  # of several checks together
