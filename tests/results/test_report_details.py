"""Details of a run in a report: written, read back, and absent from earlier reports."""

import dataclasses
import re
from typing import Any

import pytest
from made_report import made_report
from places import DOCS
from report_edits import with_

from lightning_audit.results import report_details as details
from lightning_audit.results.audit_report import (
    AuditReport,
    LikelyFault,
    OperatingPoint,
    Place,
    Verdict,
)

CODE = details.CodePlace(
    "src/half.py", 41, 43, "Half.add_noise", "def add_noise(self):\n    pass\n"
)
#: A value of each field that reports of the first releases of schema 6 do not have.
DETAILS: dict[str, Any] = {
    "tests": {"noise": details.CheckGrowth(9.2, ((0, 1.5), (4, 12.0)), "optimizer 1 (`a`)")},
    "tensors": (details.TensorNoise("net.0.bias", 9, 9, 0, None, None, None, flagged=False),),
    "tensors_left_out": 3,
    "course": (details.CourseRow(29, 0, 0.5, -0.25, 232), details.CourseRow(58, 1, None, 0.0, 464)),
    "claimed_mu": 1.0,
    "claim": {
        "max_grad_norm": details.ClaimedValue([1.0, 2.0], "optimizer"),
        "records": details.ClaimedValue(None, "loader"),
        "sampling": details.ClaimedValue("poisson", "default"),
    },
    "ended": details.Ended(58, "planned"),
    "planned_steps": 58,
    "blockers": (details.PassBlocker("power", "29% power", "noise", 0.29, 0.95, 40),),
    "run": details.RunAbout(
        "Lit", "2026-01-01T00:00:00+00:00", 1.5, "cpu", "32-true", 2, "DDP", "ab12"
    ),
    "settings_given": ("delta",),
    "assumptions": {
        "epsilon_spent": (details.Assumption("accounting", "as the accountant assumes"),)
    },
    "examinations": (details.ExaminationTold(0, ("replay.noise",), (), 0.5),),
    "operating_points": (OperatingPoint(0.5, 1, 2, 3, 4, (0.1, 0.7), (0.0, 0.6), outside=True),),
}
#: Fields of the first releases of schema 6 that have got fields of their own since.
OF_PARTS = {"checks": ("log_e_threshold",), "operating_points": ("fpr", "fnr", "outside")}


def detailed() -> AuditReport:
    fault = LikelyFault("half", "half the noise", "noise", place=Place(step=7, code=(CODE,)))
    report = made_report("VIOLATION")
    verdict = Verdict("VIOLATION", "mechanism", report.verdict.summary, faults=(fault,))
    return dataclasses.replace(report, verdict=verdict, **DETAILS)


def test_every_detail_comes_back_as_it_was_written():
    report = detailed()
    read = AuditReport.from_json(report.to_json())
    assert {name: getattr(read, name) for name in DETAILS} == DETAILS
    assert read.verdict == report.verdict
    assert read.schema_version == 6


def test_a_report_without_the_details_loads_with_their_defaults():
    def without(data: dict[str, Any]) -> None:
        for name in set(DETAILS) - {"operating_points"}:
            del data[name]
        for part, names in OF_PARTS.items():
            for row in data[part]:
                for name in names:
                    del row[name]
        for fault in data["verdict"]["faults"]:
            del fault["headline"]
            fault["place"]["code"] = "Half.add_noise at src/half.py:41"

    report = AuditReport.from_json(with_(detailed().to_json(), without))
    empty = made_report()
    for name in set(DETAILS) - {"operating_points"}:
        assert getattr(report, name) == getattr(empty, name), name
    (point,) = report.operating_points
    assert (point.fpr, point.fnr, point.outside) == (None, None, False)
    (place,) = report.verdict.faults[0].place.code
    assert place == details.CodePlace("src/half.py", 41, 41, "Half.add_noise")
    assert report.notes == empty.notes  # no field is unknown


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("", []),
        ("A.f at a.py:3", ["A.f at a.py:3"]),
        ("layer `a` of N at n.py:9, f at b.py:2", ["layer `a` of N at n.py:9", "f at b.py:2"]),
        ("f at /etc/passwd:3", []),
        ("f at ../x.py:3, g at y.py:4", ["g at y.py:4"]),
        ("f at a.py:0", []),
        ("f at a.py:12345678", []),
        ("nowhere", []),
    ],
)
def test_places_are_read_from_text(text, places):
    assert [str(place) for place in details.places_in(text)] == places


def test_the_page_lists_every_detail_and_nothing_else():
    section = (DOCS / "reports.md").read_text().partition("## report.json")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    listed = {name for row in rows for name in re.findall("`(.*?)`", row)}
    assert listed == {*DETAILS, "operating_points", "trainings"}
