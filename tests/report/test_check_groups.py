from __future__ import annotations

import dataclasses
import math

import pytest
from checked_reports import with_status
from made_report import made_report
from page_reports import of_outcome

from lightning_audit.checks.check import QUESTIONS
from lightning_audit.report.page_verdict import (
    STATUSES,
    CheckGroup,
    alarm_words,
    check_groups,
    heading,
    not_examined,
)
from lightning_audit.results.audit_report import AuditReport, CheckResult


def group(report: AuditReport, name: str) -> CheckGroup:
    return next(found for found in check_groups(report) if found.name == name)


def test_the_six_topics_have_every_check_once() -> None:
    report = made_report()
    groups = check_groups(report)
    assert [found.name for found in groups] == list(QUESTIONS)
    assert [found.question for found in groups] == list(QUESTIONS.values())
    names = [check.name for found in groups for check in found.checks]
    assert sorted(names) == sorted(check.name for check in report.checks)


def test_signs_and_words_differ_by_status() -> None:
    assert len({sign for sign, _ in STATUSES.values()}) == len(STATUSES)
    assert len({word for _, word in STATUSES.values()}) == len(STATUSES)


def test_a_group_has_the_status_of_its_worst_check_and_counts_all() -> None:
    noise = group(of_outcome("VIOLATION"), "Noise")
    assert (noise.status, noise.sign, noise.says) == ("violated", "✕", "2 of 11 fail")
    root, follower = noise.checks[:2]
    assert (root.word, root.evidence[:7]) == ("fails", "e = 10⁶")
    assert root.means
    assert root.look_at
    assert follower.word == "follows from “too little noise overall”"
    assert not follower.means


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("warned", "1 warning"),
        ("undecided", "1 undecided"),
        ("allowed", "1 allowed"),
        ("not_run", "1 not examined"),
    ],
)
def test_what_is_neither_fine_nor_failed_is_counted_in_words(status: str, says: str) -> None:
    found = group(with_status("reuse.lag", status), "Fresh randomness")
    assert says in found.says
    assert found.checks[0 if status != "not_run" else -1].name == "reuse.lag"


def test_a_group_of_which_only_followers_fail_says_so() -> None:
    report = with_status("reuse.lag", "violated", follows_from="noise")
    assert group(report, "Fresh randomness").says.endswith("explained by another")


def test_the_total_of_a_violated_mechanism_is_that_of_the_stated_one() -> None:
    total = list(QUESTIONS)[-1]
    violated, fine = group(of_outcome("VIOLATION"), total), group(made_report(), total)
    assert violated.says == "2 of 2 fine, for the stated mechanism only"
    assert violated.sign != fine.sign
    assert fine.says == "2 of 2 fine"


def test_a_check_that_this_release_does_not_know_has_a_group_and_its_name() -> None:
    foreign = CheckResult("their.own", "mechanism", "violated", "seen", log_e_value=1.0, share=0.1)
    report = dataclasses.replace(made_report(), checks=(foreign,))
    (other,) = check_groups(report)
    assert (other.name, other.checks[0].title) == ("Other checks", "their.own")
    assert heading(foreign, failed=True) == "their.own"


def test_what_was_not_examined_is_grouped_by_its_reason() -> None:
    message = "not tested: the noise is too small to read"
    report = with_status("noise.mean", "not_run", message=message)
    checks = tuple(
        dataclasses.replace(c, status="not_run", message=message, optimizer="actor")
        if c.name == "noise.excess"
        else c
        for c in report.checks
    )
    ((titles, reason),) = not_examined(dataclasses.replace(report, checks=checks))
    assert reason == "The noise is too small to read."
    assert " and " in titles
    assert "(actor)" in titles


def test_the_level_of_an_alarm_is_that_of_the_checks_share() -> None:
    check = CheckResult("noise", "mechanism", "violated", "seen", "", math.log(1e9), 0.1)
    assert alarm_words(check, 1e-3) == "Evidence e = 10⁹; the alarm is at 10,000."
    assert alarm_words(check, 1e-9).endswith("the alarm is at 10¹⁰.")
    plain = dataclasses.replace(check, log_e_value=None)
    assert alarm_words(plain, 1e-3) == "It was seen directly, without statistics."
