"""A training ends before the step by which it would exceed the epsilon that its user claims."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from hand_written_support import CLAIM, HandWritten
from opacus.schedulers import ExponentialNoise
from resume_support import RESUMING, StopAt, checkpoint_at, saver, train
from training_support import ManualModule, PrivateModule, report_in, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.accounting.margin import exceeds
from lightning_audit.accounting.phases import Phase
from lightning_audit.accounting.spending import composed_epsilon

pytestmark = RESUMING

#: Epsilon that about half of the steps below keep to.
CLAIMED = 1.5
PLANNED = 96


def trained(directory: Path, module: pl.LightningModule, **kwargs: Any) -> AuditReport:
    given = {"claimed_epsilon": CLAIMED, "seed": 1, "examinations": 0, **kwargs}
    trainer_for(directory, PrivacyAudit(**given), max_epochs=3, min_epochs=3).fit(module)
    return report_in(directory)


def next_one(report: AuditReport) -> float:
    """Epsilon of the steps that were taken and one more."""
    *before, (sigma, rate, steps) = report.history
    phases = [Phase(*phase) for phase in (*before, (sigma, rate, steps + 1))]
    return composed_epsilon(phases, report.delta)


@pytest.mark.parametrize("kind", [PrivateModule, ManualModule])
def test_the_training_stops_before_the_step_that_would_exceed_the_claim(
    tmp_path: Path, kind: type[pl.LightningModule], caplog: pytest.LogCaptureFixture
) -> None:
    report = trained(tmp_path, kind())
    assert 1 < report.steps < PLANNED
    assert report.verdict.outcome != "VIOLATION"
    assert not exceeds(report.epsilon_spent, CLAIMED)
    assert exceeds(next_one(report), CLAIMED)
    warned, stopped = (r.message for r in caplog.records if "claimed_epsilon=1.5" in r.message)
    assert f"the {PLANNED} steps that are planned cost more" in warned
    assert f"which {report.steps} steps keep to: the training stops there" in warned
    assert f"was stopped after {report.steps} steps: the next one would exceed" in stopped
    assert any(note in stopped for note in report.notes)


def test_it_trains_on_where_violations_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = trained(tmp_path, PrivateModule(), on_violation="warn")
    assert report.steps == PLANNED
    assert report.verdict.outcome == "VIOLATION"
    assert report.verdict.root.name == "wrong_accounting"
    assert "the claim is false from there on" in caplog.text


@pytest.mark.parametrize("kwargs", [{"claimed_epsilon": 50.0}, {"allow": "accounting"}])
def test_where_all_steps_keep_to_it_or_may_exceed_it_nothing_is_said(
    tmp_path: Path, kwargs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert trained(tmp_path, PrivateModule(), **kwargs).steps == PLANNED
    assert "planned" not in caplog.text


def test_a_claim_that_one_step_exceeds_is_a_violation_behind_it(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolation):
        trained(tmp_path, PrivateModule(), claimed_epsilon=1e-3)
    report = report_in(tmp_path)
    assert report.steps == 1
    assert report.verdict.outcome == "VIOLATION"


def test_dp_sgd_by_hand_is_counted_from_its_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stated = dataclasses.replace(CLAIM, sample_rate=0.05)
    audit = PrivacyAudit(claim=stated, claimed_epsilon=CLAIMED, seed=1, examinations=0)
    trainer_for(tmp_path, audit, max_steps=200).fit(HandWritten())
    report = report_in(tmp_path)
    assert 1 < report.steps < 200
    assert not exceeds(report.epsilon_spent, CLAIMED)
    assert exceeds(next_one(report), CLAIMED)
    assert "that are planned cost more" in caplog.text


def test_trouble_with_the_count_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("lightning_audit.callbacks.claim_budget.steps_within", fail)
    report = trained(tmp_path, PrivateModule(), on_violation="warn")
    assert report.steps == PLANNED
    assert "could not be counted" in caplog.text


def test_noise_that_falls_is_counted_as_it_is(tmp_path: Path) -> None:
    class Falling(PrivateModule):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch:
                inner = self.optimizers().optimizer
                ExponentialNoise(inner, gamma=0.7).step()

    report = trained(tmp_path, Falling(), claimed_epsilon=3.0)
    assert 32 < report.steps < PLANNED
    assert len(report.history) > 1
    assert not exceeds(report.epsilon_spent, 3.0)
    assert exceeds(next_one(report), 3.0)


def test_a_resumed_training_has_what_is_left(tmp_path: Path) -> None:
    def audit() -> PrivacyAudit:
        return PrivacyAudit(claimed_epsilon=CLAIMED, seed=1, examinations=0)

    train(tmp_path / "whole", audit())
    saved = tmp_path / "saved"
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path / "cut", audit(), StopAt(20), saver(saved, epoch_end=False))
    train(tmp_path / "cut", audit(), ckpt=checkpoint_at(saved, 20))
    whole, resumed = report_in(tmp_path / "whole"), report_in(tmp_path / "cut")
    assert 20 < whole.steps < PLANNED
    assert resumed.steps == whole.steps
