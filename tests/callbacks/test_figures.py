from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from training_support import PrivateModule, report_in, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.report import figure as plots
from lightning_audit.report.figure import figure

pytestmark = pytest.mark.whole_report


@pytest.mark.heavy
def test_the_picture_lies_beside_the_report_and_moves_away_with_it(tmp_path: Path) -> None:
    for _ in range(2):
        board = TensorBoardLogger(tmp_path)
        trainer_for(tmp_path, PrivacyAudit(seed=1), logger=board, max_steps=16).fit(PrivateModule())
    for folder in (tmp_path / "audit", tmp_path / "audit" / "previous-1"):
        assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "report.html").read_bytes().startswith(b"<!doctype html>")


@pytest.mark.parametrize("logger", [CSVLogger, TensorBoardLogger])
def test_the_picture_is_drawn_once_and_only_for_a_logger_that_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logger: type
) -> None:
    drawn: list[object] = []
    monkeypatch.setattr(plots, "figure", lambda report: drawn.append(report) or figure(report))
    trainer_for(tmp_path, PrivacyAudit(seed=1), logger=logger(tmp_path), max_steps=16).fit(
        PrivateModule()
    )
    taken = logger is TensorBoardLogger
    assert len(drawn) == taken
    assert (tmp_path / "audit" / "report.png").exists() == taken


def test_without_matplotlib_the_audit_goes_without_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_audit.callbacks.outcome.find_spec", lambda name: None)
    board = TensorBoardLogger(tmp_path)
    trainer_for(tmp_path, PrivacyAudit(seed=1), logger=board, max_steps=16).fit(PrivateModule())
    assert report_in(tmp_path).steps == 16
    assert not (tmp_path / "audit" / "report.png").exists()


def test_a_picture_that_cannot_be_written_costs_a_warning_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("lightning_audit.report.figure.save_drawn", fails)
    board = TensorBoardLogger(tmp_path)
    trainer_for(tmp_path, PrivacyAudit(seed=1), logger=board, max_steps=16).fit(PrivateModule())
    assert report_in(tmp_path).complete
    assert "report.png could not be written: disk full" in caplog.text
