"""The accountant's history is held against the steps, one to one."""

from __future__ import annotations

import pytest

from lightning_audit.accounting.history import Phase
from lightning_audit.checks.accounting import Ledger
from lightning_audit.results.audit_report import CheckResult

TAKEN = [Phase(1.0, 0.01, 40), Phase(1.2, 0.01, 10)]


def results(told: list[tuple[float, float, int]], **given: object) -> dict[str, CheckResult]:
    book = Ledger(hook="read", **given)  # type: ignore[arg-type]
    return {found.name: found for found in book.results(told, TAKEN)}


def accountant(*told: tuple[float, float, int], **given: object) -> CheckResult:
    return results(list(told), **given)["ledger.accountant"]


def test_all_steps_told_is_fine() -> None:
    assert accountant((1.0, 0.01, 40), (1.2, 0.01, 10)).status == "ok"
    assert accountant((1.0, 0.01, 70)).status == "ok"  # of an earlier training


def test_steps_that_were_not_told_are_found() -> None:
    found = accountant((1.0, 0.01, 20))
    assert (found.status, found.evidence["missing"]) == ("violated", 30)
    assert found.message == "the accountant recorded 20 of 50 steps"


def test_what_was_told_before_counts_for_no_step_of_now() -> None:
    found = accountant((1.0, 0.01, 70), told_before=30, taken_before=0)
    assert found.evidence["missing"] == 10
    assert accountant((1.0, 0.01, 80), told_before=40, taken_before=10).status == "ok"


def test_more_noise_than_any_step_stated_is_found() -> None:
    found = accountant((2.0, 0.01, 50))
    assert (found.status, found.evidence["told_noise"]) == ("violated", 2.0)


def test_noise_that_was_told_before_is_of_no_step_of_now() -> None:
    earlier = {"told_before": 30, "taken_before": 0}
    assert accountant((5.0, 0.01, 30), (1.2, 0.01, 50), **earlier).status == "ok"
    assert accountant((5.0, 0.01, 31), (1.2, 0.01, 49), **earlier).status == "violated"


@pytest.mark.parametrize(("hook", "part"), [("unread", "cannot be identified"), ("none", "no acc")])
def test_where_no_accountant_is_known_nothing_is_compared(hook: str, part: str) -> None:
    (found, *_) = Ledger(hook=hook).results([], TAKEN)
    assert found.status == "not_run"
    assert part in found.message
    assert found.evidence["hook"] == hook


def test_steps_on_one_batch_and_records_that_stand_twice_are_found() -> None:
    found = results([(1.0, 0.01, 50)], again=3, repeated=2)
    assert found["ledger.steps"].status == found["ledger.records"].status == "violated"
    found = results([(1.0, 0.01, 50)], unknown=3, repeated=0)
    assert found["ledger.steps"].status == found["ledger.records"].status == "ok"
    assert "for batches with several steps it is unknown" in found["ledger.steps"].message
    assert "ledger.records" not in results([(1.0, 0.01, 50)])
