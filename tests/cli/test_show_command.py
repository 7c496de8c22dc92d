"""`lightning-audit show` prints all of a report, and is no gate."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_report import made_report

from lightning_audit.cli import main

Streams = pytest.CaptureFixture[str]


def saved(directory: Path, outcome: str = "PASS") -> str:
    directory.mkdir(parents=True)
    return str(made_report(outcome).save(directory / "report.json"))  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", ["PASS", "VIOLATION", "INCONCLUSIVE"])
def test_every_check_of_a_report_is_shown_and_the_exit_code_is_no_verdict(
    tmp_path: Path, outcome: str, capsys: Streams
) -> None:
    path = saved(tmp_path / "a", outcome)
    assert main.main(["show", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0] for line in lines if line.strip()}
    assert {check.name for check in made_report(outcome).checks if not check.follows_from} <= rows
    assert lines[1].startswith(outcome)
    assert lines[-1] == f"Report: {path}"


def test_a_folder_shows_each_of_its_trainings(tmp_path: Path, capsys: Streams) -> None:
    paths = [saved(tmp_path / name) for name in ("a", "b")]
    assert main.main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("Report: ") for line in shown if "Report: " in line] == paths


def test_what_cannot_be_read_is_named_after_the_others_with_exit_code_2(
    tmp_path: Path, capsys: Streams
) -> None:
    path = saved(tmp_path / "a")
    cut = tmp_path / "cut.json"
    cut.write_text(Path(path).read_text()[:-200])
    (tmp_path / "empty").mkdir()
    assert main.main(["show", str(cut), str(tmp_path / "empty"), path]) == 2
    shown = capsys.readouterr()
    assert f"Report: {path}" in shown.out
    assert len([line for line in shown.err.splitlines() if "lightning-audit: " in line]) == 2
    assert "without a report.json" in shown.err
