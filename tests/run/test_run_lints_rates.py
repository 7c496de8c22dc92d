"""Sample rates that change while a training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.data_loader import DPDataLoader
from torch.utils.data import DataLoader
from training_support import PrivateModule, digits, mlp, trainer_for

from lightning_audit import AuditReport, PrivacyAudit

pytestmark = pytest.mark.training

RAISED, BATCH, RECORDS = 2, 32, 512


def report(tmp_path: Path, kind: Any, **trainer: Any) -> AuditReport:
    torch.manual_seed(0)
    audit = PrivacyAudit(on_violation="warn", seed=1)
    module = kind(mlp(64), dataset=digits(RECORDS), batch_size=BATCH)
    trainer_for(tmp_path, audit, max_epochs=4, **trainer).fit(module)
    assert audit.report is not None
    return audit.report


def rates(found: AuditReport) -> Any:
    return next(check for check in found.checks if check.name == "sampling.rate")


class SetInPlace(PrivateModule):
    """The sampler of the loader draws twice as often."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == RAISED:
            self.trainer.train_dataloader.batch_sampler.sample_rate *= 2.0


class SetAmidAnEpoch(PrivateModule):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if (self.current_epoch, batch_idx) == (RAISED, 5):
            self.trainer.train_dataloader.batch_sampler.sample_rate *= 2.0


class Exchanged(PrivateModule):
    """A loader of twice the batch size."""

    def train_dataloader(self) -> Any:
        size = self.batch_size * (2 if self.trainer.current_epoch >= RAISED else 1)
        return DPDataLoader.from_data_loader(DataLoader(self.dataset, size))


@pytest.mark.parametrize("kind", [SetInPlace, SetAmidAnEpoch, Exchanged])
def test_a_rate_that_rises_in_a_later_epoch_is_named_with_it(tmp_path: Path, kind: Any) -> None:
    found = report(tmp_path, kind, reload_dataloaders_every_n_epochs=int(kind is Exchanged))
    assert [fault.name for fault in found.verdict.faults] == ["sampled_too_often_later"]
    evidence = dict(rates(found).evidence)
    assert "train_dataloader at tests/" in str(evidence.pop("where"))
    assert evidence == {"loader_rate": 0.125, "accounted_rate": 0.0625, "raised_in": RAISED}
    assert "from epoch 2 on (the first is 0)" in found.verdict.summary


class Told(Exchanged):
    """The accountant is told of the new rate."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == RAISED:
            hook = self.engine.accountant.get_optimizer_hook_fn(sample_rate=2 * BATCH / RECORDS)
            self.trainer.optimizers[0].attach_step_hook(hook)


class Falls(PrivateModule):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == RAISED:
            self.trainer.train_dataloader.batch_sampler.sample_rate /= 2.0


@pytest.mark.parametrize("kind", [Told, Falls, PrivateModule])
def test_a_rate_that_is_told_or_falls_is_no_fault(tmp_path: Path, kind: Any) -> None:
    found = report(tmp_path, kind, reload_dataloaders_every_n_epochs=int(kind is not Falls))
    assert found.verdict.outcome != "VIOLATION", found.verdict
    assert rates(found).status == "ok"
    told = {rate for _, rate, _ in found.history}
    assert told == ({0.0625, 0.125} if kind is Told else {0.0625})


class BecomesShuffled(PrivateModule):
    def train_dataloader(self) -> Any:
        if self.trainer.current_epoch < RAISED:
            return super().train_dataloader()
        return DataLoader(self.dataset, self.batch_size, shuffle=True)


def test_a_loader_that_is_exchanged_for_a_shuffled_one_is_named(tmp_path: Path) -> None:
    found = report(tmp_path, BecomesShuffled, reload_dataloaders_every_n_epochs=1)
    assert found.verdict.faults[0].name == "not_poisson"
