from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from checked_reports import violated, with_status
from made_report import made_report
from many_trainings import audited

from lightning_audit.cli.check import another_training, failed, regressions
from lightning_audit.results.audit_report import AuditReport

INFINITE = float("inf")


@pytest.mark.parametrize(
    ("old", "new", "most", "expected"),
    [
        ({}, {}, 0.0, []),
        ({"spent": 4.0}, {}, 0.0, []),
        ({}, {"spent": 3.4}, 0.5, []),
        (
            {},
            {"spent": 3.6},
            0.5,
            [("VIOLATION", "epsilon_spent rose from 3 to 3.6, by more")],
        ),
        ({}, {"spent": 3.1}, 0.0, [("VIOLATION", "epsilon_spent rose from 3 to 3.1")]),
        ({}, {"proved": 2.0}, 0.0, [("VIOLATION", "epsilon_lower rose from 1.5 to 2")]),
        ({}, {"spent": INFINITE}, 9.0, [("VIOLATION", "epsilon_spent rose from 3 to inf")]),
        ({"spent": INFINITE}, {"spent": INFINITE}, 0.0, []),
        ({}, {"spent": None}, 9.0, [("INCONCLUSIVE", "epsilon_spent was 3 and is unknown now")]),
        ({"spent": None}, {}, 0.0, []),
        (
            {},
            {"spent": None, "proved": 2.0},
            0.0,
            [
                ("INCONCLUSIVE", "epsilon_spent was 3"),
                ("VIOLATION", "epsilon_lower rose from 1.5 to 2"),
            ],
        ),
    ],
)
def test_a_rise_of_an_epsilon_above_the_limit_is_found(
    old: dict[str, Any], new: dict[str, Any], most: float, expected: list[tuple[str, str]]
) -> None:
    found = regressions(made_report(**old), made_report(**new), most)
    assert [outcome for outcome, _ in found] == [outcome for outcome, _ in expected]
    for (_, text), (_, start) in zip(found, expected, strict=True):
        assert text.startswith(start)


def test_a_newly_failed_check_is_found_and_an_old_failure_is_not() -> None:
    texts = [text for _, text in regressions(made_report(), violated(), 0.0)]
    assert texts == ["newly failed: noise, and 1 that follows from it"]
    once = dataclasses.replace(violated(), checks=made_report("VIOLATION").checks)
    assert [text for _, text in regressions(once, violated(), 0.0)] == ["newly failed: noise.step"]
    assert regressions(violated(), violated(), 0.0) == []
    assert regressions(violated(), made_report(), 0.0) == []


@pytest.mark.parametrize(
    ("status", "fails"), [("allowed", True), ("undecided", True), ("warned", False), ("ok", False)]
)
def test_a_failure_that_is_allowed_is_a_failure_and_a_warning_is_none(
    status: str, fails: bool
) -> None:
    assert (("sensitivity", "") in failed(with_status("sensitivity", status))) == fails


def labeled(label: str) -> AuditReport:
    report = made_report()
    seen = dataclasses.replace(report.optimizers[0], label=label)
    return dataclasses.replace(report, optimizers=(seen,))


def of_tensors(*names: str) -> AuditReport:
    return with_status("noise", "ok", evidence={"ratio": dict.fromkeys(names, 1.0)})


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (made_report(), made_report(delta=1e-6), "its delta: 1e-05, here 1e-06"),
        (labeled("one"), labeled("two"), "its private optimizers: 1 (one), here 1 (two)"),
        (of_tensors("a", "b"), of_tensors("a", "c"), "its tensors: 2 (b), here 2 (c)"),
        (of_tensors("a"), of_tensors("a", "c", "d"), "its tensors: 1, here 3 (c, ...)"),
        (
            made_report(),
            made_report(settings={"claim": {"adjacency": "replace_one"}}),
            "its adjacency: add_remove, here replace_one",
        ),
    ],
)
def test_reports_of_different_trainings_are_not_compared(
    old: AuditReport, new: AuditReport, told: str
) -> None:
    assert another_training(old, new) == told
    assert another_training(new, old)
    assert another_training(old, old) == another_training(new, new) == ""


def test_another_noise_seed_or_number_of_steps_is_the_same_training() -> None:
    other = made_report(spent=5.0, steps=7, settings={"seed": 3, "claim": {"noise_multiplier": 2}})
    assert another_training(of_tensors("a"), other) == ""


def test_a_report_of_many_trainings_is_no_baseline_of_one() -> None:
    many, one = audited(n=50).to_report(), made_report()
    told = another_training(
        one, dataclasses.replace(many, delta=one.delta, optimizers=one.optimizers)
    )
    assert told == "its data sets of many trainings: one training, here add_remove"
    assert another_training(many, audited(n=60).to_report()) == ""
