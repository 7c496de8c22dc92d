"""`lightning-audit check` of several reports, in every format."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from made_report import made_report

from lightning_audit.cli import main
from lightning_audit.cli.check import FORMATS
from lightning_audit.report.text import print_summary
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, Outcome

OUTCOMES: tuple[Outcome, ...] = ("PASS", "VIOLATION", "INCONCLUSIVE")
Streams = pytest.CaptureFixture[str]


def saved(directory: Path, outcome: Outcome = "PASS", **changes: Any) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    return str(made_report(outcome, **changes).save(directory / "report.json"))


def check(*arguments: object) -> int:
    return main.main(["check", *map(str, arguments)])


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_one_report_gets_its_summary(tmp_path: Path, outcome: Outcome, capsys: Streams) -> None:
    path = saved(tmp_path, outcome)
    assert check(path) == EXIT_CODES[outcome]
    shown = capsys.readouterr()
    print_summary(AuditReport.load(path), path)
    assert shown == (capsys.readouterr().out, "")


def test_reports_and_folders_are_shown_together_and_each_once(
    tmp_path: Path, capsys: Streams
) -> None:
    first = saved(tmp_path / "runs" / "a" / "audit")
    saved(tmp_path / "runs" / "b" / "audit", "INCONCLUSIVE")
    other = saved(tmp_path / "other", "VIOLATION")
    assert check(tmp_path / "runs", other, first) == 1
    rows = capsys.readouterr().out.splitlines()[:-2]
    assert [row.split()[1 if row[0] == " " else 2] for row in rows] == [
        "PASS",
        "INCONCLUSIVE",
        "VIOLATION",
    ]
    assert check(tmp_path / "runs") == 2


def test_a_folder_without_a_report_among_others_is_inconclusive(
    tmp_path: Path, capsys: Streams
) -> None:
    path = saved(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    assert check(path, tmp_path / "empty", tmp_path / "absent.json") == 2
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 3 + 2
    assert "is a directory without a report.json" in told.err
    assert "absent.json" in told.err


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_exit_code_is_the_same_in_every_format(
    tmp_path: Path, name: str, outcome: Outcome, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    path = saved(tmp_path / "a", outcome)
    other = saved(tmp_path / "b")
    assert check(path, "--format", name) == EXIT_CODES[outcome]
    capsys.readouterr()
    shown = []
    for _ in range(2):
        assert check(path, other, f"--format={name}") == EXIT_CODES[outcome]
        shown.append(capsys.readouterr())
    assert shown[0] == shown[1]
    assert shown[0].out
    assert shown[0].err == ""


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("several", [False, True])
def test_what_cannot_be_read_never_passes_in_any_format(
    tmp_path: Path, name: str, several: bool, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    cut, newer = Path(saved(tmp_path / "cut")), Path(saved(tmp_path / "newer"))
    cut.write_text(cut.read_text()[:500])
    newer.write_text(newer.read_text().replace('"schema_version": 6', '"schema_version": 7'))
    others = [saved(tmp_path / "fine")] * several
    for path, told in ((cut, "not complete JSON"), (newer, "upgrade lightning-audit")):
        assert check(path, *others, "--format", name) == 2
        shown = capsys.readouterr()
        assert told in shown.err
        assert told in shown.out or (name == "text" and not several)


@pytest.mark.parametrize("limit", ["2", "1"])
def test_the_first_line_says_why_a_budget_is_exceeded(
    tmp_path: Path, limit: str, capsys: Streams
) -> None:
    path = saved(tmp_path)
    assert check(path, "--max-epsilon", limit) == 1
    first = capsys.readouterr().out.splitlines()[0]
    above = "epsilon spent 3" if limit == "2" else "epsilon proved 1.5, spent 3"
    assert first == f"VIOLATION of --max-epsilon {limit}: {above}"
    assert check(path, "--max-epsilon", limit, "--format=json") == 1
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert report["reasons"] == [first]
    assert (report["verdict"], report["outcome"]) == ("PASS", "VIOLATION")


def test_a_step_summary_that_cannot_be_written_ends_with_2(
    tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert check(saved(tmp_path / "a"), "--format=github") == 2
    assert "cannot write the step summary" in capsys.readouterr().err


def test_a_hundred_reports_are_a_line_each_and_the_worst_verdict_is_the_exit_code(
    tmp_path: Path, capsys: Streams
) -> None:
    for number, outcome in zip(range(100), itertools.cycle(OUTCOMES), strict=False):
        saved(tmp_path / f"{number}" / "audit", outcome)
    assert check(tmp_path) == 1
    assert len(capsys.readouterr().out.splitlines()) == 102
