from __future__ import annotations

from pathlib import Path

import pytest
from training_support import PrivateModule, report_in, trainer_for

from lightning_audit import PrivacyAudit

pytestmark = pytest.mark.whole_report


@pytest.mark.heavy
def test_the_picture_lies_beside_the_report_and_moves_away_with_it(tmp_path: Path) -> None:
    for _ in range(2):
        trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=16).fit(PrivateModule())
    for folder in (tmp_path / "audit", tmp_path / "audit" / "previous-1"):
        assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "report.html").read_bytes().startswith(b"<!doctype html>")


def test_without_matplotlib_the_audit_goes_without_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_audit.callbacks.figures.find_spec", lambda name: None)
    trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=16).fit(PrivateModule())
    assert report_in(tmp_path).steps == 16
    assert not (tmp_path / "audit" / "report.png").exists()


def test_a_picture_that_cannot_be_drawn_costs_a_warning_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("lightning_audit.report.plots.save_figure", fails)
    trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=16).fit(PrivateModule())
    assert report_in(tmp_path).complete
    assert "report.png could not be written: disk full" in caplog.text
