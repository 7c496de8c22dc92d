from __future__ import annotations

import traceback
from pathlib import Path

import pytest
import pytorch_lightning as pl
from training_support import (
    PrivateModule,
    assert_no_hooks_left,
    fit,
    report_in,
    trainer_for,
)

from lightning_audit import InconclusiveAudit, PrivacyAudit, PrivacyViolation
from lightning_audit.testing.faulty import HalfNoise


class _Hooks(pl.Callback):
    """The order of the last hooks."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append("epoch_end")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append("train_end")

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append("fit_end")


def test_violation_stops_the_training_and_is_raised_in_on_fit_end(tmp_path: Path) -> None:
    hooks = _Hooks()
    trainer = trainer_for(tmp_path, hooks, PrivacyAudit(seed=1), max_epochs=5)
    module = PrivateModule(optimizer_class=HalfNoise)
    with pytest.raises(PrivacyViolation) as raised:
        trainer.fit(module)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names[-2:] == ["tell", "raise_for"]
    assert hooks.seen == ["epoch_end", "train_end", "fit_end"]
    assert trainer.global_step < 20
    assert raised.value.report.complete
    assert_no_hooks_left(module)


def test_stop_ends_the_training_and_raises_nothing(tmp_path: Path) -> None:
    hooks, audit = _Hooks(), PrivacyAudit(on_violation="stop", seed=1)
    report = fit(tmp_path, PrivateModule(optimizer_class=HalfNoise), audit, hooks, max_epochs=5)
    assert report.verdict.outcome == "VIOLATION"
    assert hooks.seen.count("epoch_end") == 1
    assert report.complete


def test_warn_trains_to_the_end_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks, audit = _Hooks(), PrivacyAudit(on_violation="warn", seed=1)
    report = fit(tmp_path, PrivateModule(optimizer_class=HalfNoise), audit, hooks, max_epochs=3)
    assert report.verdict.outcome == "VIOLATION"
    assert hooks.seen.count("epoch_end") == 3
    assert report.steps == 96
    told = [r for r in caplog.records if r.name.startswith("lightning_audit")]
    assert len([r for r in told if "privacy audit: VIOLATION (mechanism)" in r.getMessage()]) == 1


def test_violation_in_the_middle_of_an_epoch_is_found_at_max_steps(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1, on_violation="warn"), max_steps=20)
    trainer.fit(PrivateModule(optimizer_class=HalfNoise))
    report = report_in(tmp_path)
    assert (report.steps, report.verdict.outcome) == (20, "VIOLATION")


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


@pytest.mark.parametrize("verbose", [True, False])
def test_every_check_is_shown_on_request_and_else_a_summary(
    tmp_path: Path, verbose: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = PrivacyAudit(seed=1, verbose=verbose)
    report = fit(tmp_path, PrivateModule(), audit, max_steps=4)
    out = capsys.readouterr().out
    words = out.split()
    assert all(check.name in words for check in report.checks) == verbose
    assert (len(out.strip().splitlines()) <= 15) == (not verbose)
