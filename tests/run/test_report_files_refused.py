"""Directories that no report can be written to are refused before the training."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from lightning_fabric.utilities.exceptions import MisconfigurationException
from training_support import PrivateModule, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.run.report_files import ReportFiles


def test_a_file_in_the_reports_place_is_refused_before_the_training(tmp_path: Path) -> None:
    taken, lost = tmp_path / "taken", tmp_path / "lost"
    taken.write_text("mine")
    lost.symlink_to(tmp_path / "nowhere")
    for directory in (taken, taken / "audit", lost, tmp_path / ("long" * 100)):
        trainer = trainer_for(tmp_path, PrivacyAudit(report_dir=directory))
        with pytest.raises(
            MisconfigurationException, match="give another directory as report_dir"
        ) as raised:
            trainer.fit(PrivateModule())
        assert f"cannot write its report to {str(directory)!r}" in str(raised.value)
        assert trainer.global_step == 0
    assert taken.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch) -> None:
    def full(dir: Path) -> None:  # root may write everywhere, so the system's answer is given here
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(UnauditableTraining, match="Permission denied"):
        ReportFiles(tmp_path / "new" / "audit").take()
    monkeypatch.undo()
    files = ReportFiles(tmp_path / "new" / "audit")
    files.take()
    assert files.directory == tmp_path / "new" / "audit"  # the refused one does not hold it
    files.release()
