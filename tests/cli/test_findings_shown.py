from __future__ import annotations

import dataclasses

import pytest
from checked_reports import violated, with_status
from made_report import made_report

from lightning_audit.checks.check import REGISTRY
from lightning_audit.cli.formats import SEVERITIES, findings_of, severity_of
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import CodePlace


def test_a_finding_has_its_faults_headline_its_places_and_what_it_explains() -> None:
    (found,) = findings_of(violated())
    assert (found.check, found.title) == ("noise", "Too little noise is added")
    assert [(p.name, p.file, p.line) for p in found.places] == [
        ("Half.add_noise", "src/half.py", 41),
        ("Lit.training_step", "src/model.py", 7),
    ]
    assert found.look_at == "compare the standard deviations"
    assert found.explains == ("noise.step",)
    assert found.fails


def test_without_a_fault_a_finding_has_the_texts_of_its_check() -> None:
    (found,) = findings_of(with_status("sensitivity", "undecided"))
    known = REGISTRY["sensitivity"]
    assert (found.title, found.look_at) == (known.failed_title, known.look_at)


@pytest.mark.parametrize("status", ["allowed", "warned"])
def test_what_is_allowed_or_a_warning_is_shown_and_does_not_fail(status: str) -> None:
    (found,) = findings_of(with_status("sensitivity", status))
    assert not found.fails


def test_a_pass_has_no_finding() -> None:
    assert findings_of(made_report()) == []


def test_the_severities_are_three_and_every_check_has_one() -> None:
    found = {name: severity_of(check) for name, check in REGISTRY.items()}
    assert set(found.values()) == set(SEVERITIES) == {"critical", "theoretical", "negligible"}
    assert {name for name, severity in found.items() if severity == "negligible"} == {
        name for name, check in REGISTRY.items() if check.warns
    }
    assert found["noise"] == found["epsilon"] == "critical"
    assert found["accounting"] == "theoretical"
    assert severity_of(REGISTRY["noise"], "undecided") == "theoretical"


@pytest.mark.parametrize(
    ("file", "line"),
    [("/etc/passwd", 3), ("../../x.py", 3), ("a/..\\b.py", 3), ("c:x.py", 3), ("a.py", 0), ("", 1)],
)
def test_a_place_outside_of_the_repository_is_no_location(file: str, line: int) -> None:
    report: AuditReport = violated()
    fault = report.verdict.faults[0]
    place = dataclasses.replace(fault.place, code=(CodePlace(file, line, line, "f"),))
    faults = (dataclasses.replace(fault, place=place),)
    verdict = dataclasses.replace(report.verdict, faults=faults)
    (found,) = findings_of(dataclasses.replace(report, verdict=verdict))
    assert found.places == ()
