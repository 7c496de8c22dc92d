from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_report import made_report

from lightning_audit.cli import main
from lightning_audit.results.audit_report import Outcome

Streams = pytest.CaptureFixture[str]


def saved(directory: Path, outcome: Outcome = "PASS", **changes: Any) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    return str(made_report(outcome, **changes).save(directory / "report.json"))


def diff(*arguments: str) -> int:
    return main.main(["diff", *arguments])


def test_equal_reports_do_not_differ(tmp_path: Path, capsys: Streams) -> None:
    old = saved(tmp_path)
    assert diff(old, old) == 0
    assert capsys.readouterr().out == "the reports do not differ\n"


def test_what_became_worse_is_first_and_each_difference_has_a_row(
    tmp_path: Path, capsys: Streams
) -> None:
    old = saved(tmp_path / "old", environment={"torch": "2.12"})
    new = saved(tmp_path / "new", "VIOLATION", spent=4.0, environment={"torch": "2.13"})
    assert diff(old, new) == 1
    worse, newly, *rows = capsys.readouterr().out.splitlines()
    assert worse == "VIOLATION: epsilon_spent rose from 3 to 4"
    assert newly == "VIOLATION: newly failed: noise"
    found = {row.split("  ")[1].strip(): row.split("  ->  ")[1] for row in rows}
    assert found == {
        "verdict": "VIOLATION (mechanism)",
        "epsilon_spent": "4",
        "epsilon_not_excluded": "-",
        "noise": "violated",
        "environment.torch": "2.13",
    }
    assert diff(new, old) == 0


def test_a_rise_within_the_limit_is_shown_and_accepted(tmp_path: Path, capsys: Streams) -> None:
    old, new = saved(tmp_path / "old"), saved(tmp_path / "new", spent=3.4)
    assert diff(old, new, "--max-regression", "0.5") == 0
    assert capsys.readouterr().out == "  epsilon_spent  3  ->  3.4\n"


def test_an_epsilon_that_is_no_longer_known_is_inconclusive(tmp_path: Path) -> None:
    old = saved(tmp_path / "old", claimed=None)
    assert diff(old, saved(tmp_path / "new", claimed=None, spent=None)) == 2
    assert diff(old, saved(tmp_path / "worse", claimed=None, spent=None, proved=2.0)) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_report_that_cannot_be_read_is_named(tmp_path: Path, which: int, capsys: Streams) -> None:
    paths = [saved(tmp_path / "old"), saved(tmp_path / "new")]
    Path(paths[which]).write_text("{")
    assert diff(*paths) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{paths[which]}: the report is not complete JSON" in shown.err


def test_a_report_that_contradicts_itself_is_refused_with_the_contradictions(
    tmp_path: Path, capsys: Streams
) -> None:
    path = saved(tmp_path, delta=1e-6)
    assert diff(path, path) == 2
    shown = capsys.readouterr().err
    assert "contradicts itself" in shown
    assert "delta is 1e-06" in shown


def test_reports_of_different_trainings_are_refused(tmp_path: Path, capsys: Streams) -> None:
    made = made_report()
    settings = {**made.settings, "delta": 1e-6}
    old = saved(tmp_path / "old", claimed=None, spent=None, delta=1e-6, settings=settings)
    assert diff(old, saved(tmp_path / "new", claimed=None)) == 2
    assert "different trainings: its delta: 1e-06, here 1e-05" in capsys.readouterr().err
