"""The status of a check in a report is the one that its numbers give, or it is told."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from made_report import made_report

from lightning_audit.checks.noise.noise_size_checks import NOISE
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.verdict.check_status import contradictions_of_checks
from lightning_audit.verdict.pass_blockers import OutcomeSettings


def told(which: str, **changes: Any) -> list[str]:
    """What is told of a report that passes, with one check changed."""
    report = AuditReport.from_json(made_report("PASS").to_json())
    checks = tuple(
        dataclasses.replace(check, **changes) if check.name == which else check
        for check in report.checks
    )
    changed = dataclasses.replace(report, checks=checks)
    return list(contradictions_of_checks(changed, OutcomeSettings.of(report.settings)))


def test_nothing_is_told_of_a_report_as_it_was_written() -> None:
    assert told("noise") == []


@pytest.mark.parametrize("beyond", [-0.01, 0.01])
def test_a_check_is_ok_below_its_threshold_and_at_no_e_value_above(beyond: float) -> None:
    significance = made_report("PASS").settings["significance"]
    log_e = -math.log(NOISE.share * significance) + beyond
    sentences = told("noise", log_e_value=log_e)
    assert any("noise is ok at a log e-value" in text for text in sentences) == (beyond > 0)


def test_a_check_without_e_value_is_judged_by_its_evidence() -> None:
    evidence = {"plain_steps": 3, "private_steps": 100}
    assert told("no_dp", evidence=evidence) == ["checks: no_dp is ok, its evidence says violated"]
    (sentence,) = told("no_dp", evidence={"private_steps": 100})
    assert "no_dp is ok, and its evidence lacks 'plain_steps'" in sentence


def test_a_share_that_was_never_handed_out_is_told() -> None:
    (sentence,) = told("noise", share=0.5)
    assert sentence.startswith("checks: noise has the share 0.5 of the significance, not ")


def test_a_check_that_is_missing_or_unheard_of_is_told() -> None:
    assert told("noise", name="unheard") == [
        "checks: there is no check 'unheard'",
        "checks: noise occurs 0 times, not 1",
    ]
