"""The section of the summary has a line for each training, its reasons, and a tally."""

from __future__ import annotations

from lightning_audit.pytest_plugin import section_lines, tally

PASS = {"outcome": "PASS", "details": ["epsilon 1"], "report": "a"}
FAIL = {"outcome": "VIOLATION", "details": ["\x1b[2Kforged", "report: b"], "report": "b"}


def test_each_training_has_its_lines_and_only_several_are_numbered() -> None:
    lines = list(section_lines({"t::one": [PASS], "t::two": [PASS, FAIL]}))
    assert [line for line, _ in lines] == [
        "t::one  PASS",
        "  epsilon 1",
        "t::two (fit 1)  PASS",
        "  epsilon 1",
        "t::two (fit 2)  VIOLATION",
        "  \\x1b[2Kforged",
        "  report: b",
    ]
    assert [markup for _, markup in lines if markup] == [
        {"green": True},
        {"green": True},
        {"red": True},
    ]


def test_the_tally_counts_trainings_by_verdict() -> None:
    assert tally({"a": [PASS]}) == "1 audited training: 1 PASS"
    assert tally({"a": [PASS], "b": [PASS, FAIL]}) == "3 audited trainings: 2 PASS, 1 VIOLATION"
