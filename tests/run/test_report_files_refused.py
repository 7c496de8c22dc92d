from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from training_support import (
    PrivateModule,
    refusal_of,
)

from lightning_audit import PrivacyAudit
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.run.report_files import ReportFiles


def test_a_file_in_the_reports_place_is_refused_before_the_training(tmp_path: Path) -> None:
    taken, lost = tmp_path / "taken", tmp_path / "lost"
    taken.write_text("mine")
    lost.symlink_to(tmp_path / "nowhere")
    for directory in (taken, taken / "audit", lost, tmp_path / ("long" * 100)):
        message = refusal_of(tmp_path, PrivateModule(), PrivacyAudit(report_dir=directory))
        assert f"cannot write its report to {str(directory)!r}" in message
        assert "report_dir" in message
    assert taken.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch) -> None:
    def full(dir: Path) -> None:  # root may write everywhere, so the system's answer is given here
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(UnauditableTraining, match="Permission denied"):
        ReportFiles(tmp_path / "new" / "audit").acquire()
    monkeypatch.undo()
    files = ReportFiles(tmp_path / "new" / "audit")
    files.acquire()
    assert files.directory == tmp_path / "new" / "audit"  # the refused one does not hold it
    files.release()
