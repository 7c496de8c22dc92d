"""What the user sees of a verdict at the end: what is printed, and what is raised."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_support import PrivateModule, fit, report_in, trainer_for

from lightning_audit import InconclusiveAudit, PrivacyAudit
from lightning_audit.testing.faulty_noise import HalfNoise


def test_stop_ends_the_training_and_raises_nothing(tmp_path: Path) -> None:
    audit = PrivacyAudit(on_violation="stop", seed=1)
    report = fit(tmp_path, PrivateModule(optimizer_class=HalfNoise), audit, max_epochs=5)
    assert report.verdict.outcome == "VIOLATION"
    assert len(report.epochs) == 1
    assert report.complete


def test_warn_trains_to_the_end_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = PrivacyAudit(on_violation="warn", seed=1)
    report = fit(tmp_path, PrivateModule(optimizer_class=HalfNoise), audit, max_epochs=3)
    assert report.verdict.outcome == "VIOLATION"
    assert len(report.epochs) == 3
    assert report.steps == 96
    told = [r for r in caplog.records if r.name.startswith("lightning_audit")]
    assert len([r for r in told if "noise: the noise is at most" in r.getMessage()]) == 1


def test_inconclusive_audit_is_raised_where_asked(tmp_path: Path) -> None:
    audit = PrivacyAudit(on_inconclusive="raise", seed=1)
    with pytest.raises(InconclusiveAudit, match="more steps are needed") as raised:
        trainer_for(tmp_path, audit, max_steps=4).fit(PrivateModule())
    assert raised.value.report.verdict.outcome == "INCONCLUSIVE"
    assert report_in(tmp_path).verdict == raised.value.report.verdict


def test_inconclusive_audit_only_warns_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = fit(tmp_path, PrivateModule(), PrivacyAudit(seed=1), max_steps=4)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert "INCONCLUSIVE" in capsys.readouterr().out


def test_report_is_shown_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, PrivateModule(), PrivacyAudit(seed=1), max_steps=64)
    shown = capsys.readouterr().out
    assert "PASS" in shown
    assert "report.json" in shown
