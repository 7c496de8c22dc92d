"""A training's page is next to its report; what prevents it is logged and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_report import made_report
from page_reports import of_outcome

from lightning_audit.cli.main import main
from lightning_audit.record.report_directory import PAGE_NAME, REPORT_NAME, set_aside
from lightning_audit.run.report_files import ReportFiles

pytestmark = pytest.mark.whole_report


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ReportFiles]:
    made = ReportFiles(tmp_path / "digits" / "audit")
    made.acquire()
    yield made
    made.release()


def test_the_command_writes_the_page_of_the_training_again(files: ReportFiles) -> None:
    report = of_outcome("VIOLATION")
    files.write(REPORT_NAME, made_report().save, beside=True)
    files.write_page(made_report())
    page = files.directory / PAGE_NAME
    written = page.read_bytes()
    assert b"<title>PASS: digits" in written
    page.unlink()
    assert main(["report", str(files.directory / REPORT_NAME)]) == 0
    assert page.read_bytes() == written
    files.write_page(report)
    assert page.read_bytes() != written


def test_a_page_moves_away_with_its_report(files: ReportFiles) -> None:
    files.write(REPORT_NAME, made_report().save, beside=True)
    files.write_page(made_report())
    folder = set_aside(files.directory)
    assert folder is not None
    assert {path.name for path in folder.iterdir()} == {REPORT_NAME, PAGE_NAME}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a bug")])
def test_a_page_that_cannot_be_written_is_a_line_in_the_log(
    files: ReportFiles,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("lightning_audit.report.page.write_page", fails)
    files.write_page(made_report())
    assert "report.html could not be written" in caplog.text
    assert type(error).__name__ in caplog.text
    assert "`lightning-audit report` writes it from the report" in caplog.text
    assert files.unwritten == {}
    assert not (files.directory / PAGE_NAME).exists()


def test_no_page_is_written_without_its_report(files: ReportFiles) -> None:
    def fails(path: Path) -> None:
        raise OSError("disk full")

    files.write(REPORT_NAME, fails, beside=True)
    files.write_page(made_report())
    assert not (files.directory / PAGE_NAME).exists()


def test_no_page_is_written_before_the_directory_is_taken(tmp_path: Path) -> None:
    ReportFiles(tmp_path / "audit").write_page(made_report())
    assert not (tmp_path / "audit").exists()
