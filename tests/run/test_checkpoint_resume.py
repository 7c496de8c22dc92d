"""A training that stops and goes on from a checkpoint has the audit of one that never stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from places import SUPPORT
from resume_support import (
    EPOCHS,
    RESUMING,
    STEPS_PER_EPOCH,
    StepwiseModule,
    StopAt,
    checkpoint_at,
    numbers,
    saver,
    train,
)
from stages import staged
from training_support import assert_no_hooks_left, report_in, status, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.checks.monitor import replay
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import read_observations
from lightning_audit.testing.faulty import HalfNoise

pytestmark = RESUMING


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StepwiseModule]:
    """Folder and module of a training that never stopped, with its whole report."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(folder, PrivacyAudit(seed=3, examinations=1, bounds="all"))


@pytest.mark.whole_report
@pytest.mark.parametrize(
    ("epoch_end", "kept", "stopped"),
    staged(
        quick=[(True, 32, 45)],
        heavy=[(False, 40, 47), (True, 64, 64), (False, 20, 20), (False, 70, 95)],
    ),
)
def test_a_resumed_run_reports_what_the_uninterrupted_one_reports(
    tmp_path: Path,
    uninterrupted: tuple[Path, StepwiseModule],
    epoch_end: bool,
    kept: int,
    stopped: int,
) -> None:
    whole, one = uninterrupted
    broken, saved = tmp_path / "broken", tmp_path / "saved"
    with pytest.raises(RuntimeError, match="power cut"):
        train(broken, PrivacyAudit(seed=3), saver(saved, epoch_end=epoch_end), StopAt(stopped))
    # Another seed: the checkpoint's is taken.
    ckpt = checkpoint_at(saved, kept)
    other = train(broken, PrivacyAudit(seed=4), saver(tmp_path / "x", epoch_end=True), ckpt=ckpt)
    assert numbers(report_in(broken)) == numbers(report_in(whole))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    for name in ("audit/observations.bin", "audit/report.json", "audit/observations.npz"):
        assert (broken / name).exists()
    _, entries = read_observations(broken / "audit" / RECORD_NAME)
    _, expected = read_observations(whole / "audit" / RECORD_NAME)
    assert entries.tobytes() == expected.tobytes()
    assert_no_hooks_left(other)


def test_the_record_of_a_resumed_run_gives_its_numbers_again(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path, PrivacyAudit(seed=3), saver(saved, epoch_end=False), StopAt(44))
    audit = PrivacyAudit()
    train(tmp_path, audit, ckpt=checkpoint_at(saved, 30))
    header, entries = read_observations(tmp_path / "audit" / RECORD_NAME)
    assert entries["step"].tolist() == list(range(STEPS_PER_EPOCH * EPOCHS))
    results = replay(header, entries, 1e-3).results()
    again = {c.name: c.log_e_value for c in results if c.log_e_value is not None}
    report = report_in(tmp_path)
    told = {c.name: c.log_e_value for c in report.checks if c.name in again}
    assert told == pytest.approx(again, rel=1e-12)
    assert report.steps == len(entries)
    assert [row["epoch"] for row in report.epochs] == [0, 1, 2]


def test_a_violation_is_found_across_the_stop(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    options = {"optimizer_class": HalfNoise}
    warns = PrivacyAudit(on_violation="warn")
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path, warns, saver(saved, epoch_end=False), StopAt(12), **options)
    with pytest.raises(PrivacyViolation, match="noise"):
        train(tmp_path, PrivacyAudit(), ckpt=checkpoint_at(saved, 10), **options)
    assert report_in(tmp_path).verdict.kind == "mechanism"


def test_the_accountant_goes_on_with_its_history(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path, PrivacyAudit(), saver(saved, epoch_end=False), StopAt(50))
    module = train(tmp_path, PrivacyAudit(), ckpt=checkpoint_at(saved, 50))
    assert sum(steps for *_, steps in module.engine.accountant.history) == 96


def test_a_history_that_the_user_restored_is_left_alone(tmp_path: Path) -> None:
    class Restores(StepwiseModule):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["accountant"] = [list(p) for p in self.engine.accountant.history]

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.engine.accountant.history = [tuple(p) for p in checkpoint["accountant"]]

    saved = tmp_path / "saved"
    trainer = trainer_for(
        tmp_path,
        PrivacyAudit(),
        saver(saved, epoch_end=True),
        max_epochs=1,
        enable_checkpointing=True,
    )
    trainer.fit(Restores())
    module = Restores()
    trainer_for(tmp_path, PrivacyAudit(), max_epochs=2).fit(
        module, ckpt_path=checkpoint_at(saved, 32), weights_only=True
    )
    assert sum(steps for *_, steps in module.engine.accountant.history) == 64


def test_a_checkpoint_saved_after_the_training_goes_on_too(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), max_epochs=1)
    trainer.fit(StepwiseModule())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    train(tmp_path, PrivacyAudit(), ckpt=tmp_path / "last.ckpt")
    report = report_in(tmp_path)
    assert (report.steps, report.verdict.outcome) == (96, "PASS")
    # The report of the first part is out of a gate's way, its record is in the new one.
    assert AuditReport.load(tmp_path / "audit" / "previous-1" / "report.json").steps == 32
    assert not (tmp_path / "audit" / "previous-1" / RECORD_NAME).exists()


def test_without_the_record_the_checks_go_on_and_the_report_says_so(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path / "a", PrivacyAudit(seed=3), saver(saved, epoch_end=True), StopAt(33))
    train(tmp_path / "b", PrivacyAudit(), ckpt=checkpoint_at(saved, 32))
    report = report_in(tmp_path / "b")
    assert (report.steps, report.verdict.outcome) == (96, "PASS")
    assert any("the record of the first 32 steps is not in" in note for note in report.notes)
    _, entries = read_observations(tmp_path / "b" / "audit" / RECORD_NAME)
    assert entries["step"].tolist() == list(range(32, 96))


@pytest.mark.heavy
def test_another_runs_record_is_not_gone_on_with(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path, PrivacyAudit(seed=3), saver(saved, epoch_end=True), StopAt(33))
    train(tmp_path, PrivacyAudit(seed=3))  # a run of its own, in the same directory
    train(tmp_path, PrivacyAudit(), ckpt=checkpoint_at(saved, 32))
    assert any("is not in" in note for note in report_in(tmp_path).notes)
    _, kept = read_observations(tmp_path / "audit" / "previous-2" / RECORD_NAME)
    assert len(kept) == 96


def test_a_checkpoint_without_the_audit_is_inconclusive(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, max_epochs=1)
    trainer.fit(StepwiseModule())
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    train(tmp_path, PrivacyAudit(), ckpt=tmp_path / "plain.ckpt")
    verdict = report_in(tmp_path).verdict
    assert verdict.outcome == "INCONCLUSIVE"
    assert "from a checkpoint without this audit's state" in verdict.pass_blockers[0]


def test_other_canaries_than_the_checkpoints_are_refused(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path, PrivacyAudit(), saver(saved, epoch_end=True), StopAt(33))
    with pytest.raises(MisconfigurationException, match="resume with the same canaries"):
        train(tmp_path, PrivacyAudit(num_canaries=3), ckpt=checkpoint_at(saved, 32))


def test_a_newer_checkpoint_says_to_upgrade() -> None:
    with pytest.raises(MisconfigurationException, match=r"version 99.* upgrade lightning-audit"):
        PrivacyAudit().load_state_dict({"version": 99})


class Seeded(StepwiseModule):
    """Noise of a generator that is seeded when the module is made."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(generator=torch.Generator().manual_seed(5), **kwargs)


class SeededAndSaved(Seeded):
    """The same, with the generator's state in the checkpoint."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["noise"] = self.generator.get_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.generator.set_state(checkpoint["noise"])


@pytest.mark.parametrize("kind", [Seeded, SeededAndSaved])
def test_noise_that_starts_again_is_a_violation_and_restored_noise_is_not(
    tmp_path: Path, kind: type[StepwiseModule]
) -> None:
    trainer = trainer_for(
        tmp_path,
        PrivacyAudit(),
        saver(tmp_path / "saved", epoch_end=False),
        StopAt(45),
        max_epochs=EPOCHS,
        enable_checkpointing=True,
    )
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.fit(kind())
    ckpt = checkpoint_at(tmp_path / "saved", 40)
    trainer = trainer_for(tmp_path, PrivacyAudit(), max_epochs=EPOCHS)
    if kind is SeededAndSaved:
        trainer.fit(kind(), ckpt_path=ckpt, weights_only=True)
        report = report_in(tmp_path)
        assert (status(report, "reuse.resume"), report.verdict.outcome) == ("ok", "PASS")
        return
    with pytest.raises(PrivacyViolation, match="a seeded generator restarted"):
        trainer.fit(kind(), ckpt_path=ckpt, weights_only=True)
    assert status(report_in(tmp_path), "reuse.resume") == "violated"


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import pytorch_lightning as pl
from lightning_audit import PrivacyAudit
from resume_support import *
from lightning_audit.run import findings
findings.EPOCH_SHARE = float("inf")
class Kill(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 55:
            os.kill(os.getpid(), 9)
folder = Path({folder!r})
audit = PrivacyAudit(seed=3, examinations=1, bounds="all")
train(folder, audit, saver(folder / "saved", epoch_end=False), Kill())
"""


@pytest.mark.heavy
@pytest.mark.whole_report
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    tmp_path: Path, uninterrupted: tuple[Path, StepwiseModule]
) -> None:
    whole, killed = uninterrupted[0], tmp_path / "killed"
    killed.mkdir()
    code = KILLED.format(tests=str(SUPPORT), folder=str(killed))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    _, entries = read_observations(killed / "audit" / RECORD_NAME)
    assert len(entries) >= 50  # those of the last checkpoint are on disk
    train(killed, PrivacyAudit(), ckpt=checkpoint_at(killed / "saved", 50))
    assert numbers(report_in(killed)) == numbers(report_in(whole))
    np.testing.assert_array_equal(
        read_observations(killed / "audit" / RECORD_NAME)[1]["step"], np.arange(96)
    )
