from __future__ import annotations

from checked_reports import checked, hostile, of_every_outcome
from made_report import made_report

from lightning_audit.cli.formats import Remark, as_lines


def test_each_report_has_a_line_and_the_worst_is_named_last() -> None:
    assert as_lines(of_every_outcome()).splitlines() == [
        "  fine   PASS          epsilon proved >= 1.5, spent 3, claimed 8",
        "x half   VIOLATION     Too little noise is added (noise)",
        "? short  INCONCLUSIVE  the canary was taken out",
        "? cut    INCONCLUSIVE  the report is not complete JSON",
        "",
        "VIOLATION is the worst verdict of 4 trainings: half/report.json",
    ]


def test_a_line_has_the_reason_of_the_gate() -> None:
    remark = Remark("max-epsilon", "VIOLATION", "VIOLATION of --max-epsilon 2: epsilon spent 3")
    lines = as_lines([checked(made_report(), "a", remark), checked(made_report(), "b")])
    assert "--max-epsilon 2: epsilon spent 3" in lines.splitlines()[0]


def test_text_of_a_report_makes_no_line_of_its_own() -> None:
    lines = as_lines(hostile())
    assert len(lines.splitlines()) == len(hostile()) + 2
    assert lines.replace("\n", "").isprintable()
