from __future__ import annotations

from typing import Any

from checked_reports import checked, hostile, of_every_outcome, unreadable, with_status
from junitparser import Error, Failure, JUnitXml, Skipped
from made_report import made_report

from lightning_audit.cli.formats import Checked, Remark, as_junit


def read(every: list[Checked]) -> dict[str, Any]:
    """The suites as junitparser reads them, by name."""
    return {suite.name: suite for suite in JUnitXml.fromstring(as_junit(every).encode())}


def results(suite: Any, kind: type) -> dict[str, Any]:
    return {case.name: one for case in suite for one in case.result if isinstance(one, kind)}


def test_each_training_is_a_suite_and_each_check_a_case() -> None:
    suites = read(of_every_outcome())
    assert list(suites) == ["fine", "half", "short", "cut"]
    fine = suites["fine"]
    report = made_report()
    assert fine.tests == len(list(fine)) == len(report.checks)
    assert (fine.failures, fine.errors) == (0, 0)
    assert fine.skipped == sum(check.status == "not_run" for check in report.checks)
    names = [(case.classname, case.name) for suite in suites.values() for case in suite]
    assert len(set(names)) == len(names)


def test_a_finding_fails_and_what_follows_from_it_is_skipped() -> None:
    half = read(of_every_outcome())["half"]
    assert (half.failures, half.errors) == (1, 0)
    (failure,) = results(half, Failure).values()
    assert (failure.type, failure.message) == ("noise", "Too little noise is added")
    assert "Code: Half.add_noise at src/half.py:41" in failure.text
    skipped = [one.message for one in results(half, Skipped).values()]
    assert skipped.count("follows from noise") == 1
    assert half.skipped == len(skipped)


def test_inconclusive_and_unreadable_are_errors() -> None:
    suites = read(of_every_outcome())
    for name, kind in (("short", "INCONCLUSIVE"), ("cut", "unreadable")):
        (error,) = results(suites[name], Error).values()
        assert (suites[name].errors, suites[name].failures, error.type) == (1, 0, kind)
    assert results(suites["short"], Error)["verdict"].message == "the canary was taken out"


def test_the_lines_of_a_refusal_are_message_and_text() -> None:
    (suite,) = read([unreadable("cut", "it contradicts itself:\n  steps is 7")]).values()
    (error,) = results(suite, Error).values()
    assert (error.message, error.text) == ("it contradicts itself:", "  steps is 7")


def test_an_undecided_finding_is_an_error_and_an_allowed_one_passes() -> None:
    every = [checked(with_status("sensitivity", name), name) for name in ("undecided", "allowed")]
    undecided, allowed = read(every).values()
    assert (undecided.errors, undecided.failures) == (1, 0)
    assert (allowed.errors, allowed.failures) == (0, 0)
    assert sum("allowed: " in (case.system_out or "") for case in allowed) == 1


def test_an_exceeded_budget_is_a_failure() -> None:
    remark = Remark("max-epsilon", "VIOLATION", "epsilon spent 3")
    (suite,) = read([checked(made_report(), "lit", remark)]).values()
    (failure,) = results(suite, Failure).values()
    assert (failure.type, failure.message) == ("max-epsilon", "epsilon spent 3")


def test_sums_of_the_file_are_those_of_its_suites() -> None:
    xml = JUnitXml.fromstring(as_junit(of_every_outcome()).encode())
    suites = list(xml)
    for name in ("tests", "failures", "errors", "skipped"):
        assert getattr(xml, name) == sum(getattr(suite, name) for suite in suites) > 0


def test_foreign_text_is_escaped() -> None:
    suites = list(JUnitXml.fromstring(as_junit(hostile()).encode()))
    assert len(suites) == 2
    assert "<script>alert(1)</script>" in suites[1].name
