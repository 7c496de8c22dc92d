"""Trainings on shuffled batches that claim what they cost, and ones that do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hand_written_support import BATCH, CLAIM, HandWritten
from opacus import GradSampleModule
from pytorch_lightning.utilities import CombinedLoader
from resume_support import RESUMING, checkpoint_at, saver
from torch.utils.data import DataLoader, RandomSampler, default_collate
from training_support import PrivateModule, fit, random_data, trainer_for, violation

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.accounting.composition import epsilon_of_passes
from lightning_audit.cli.main import main
from lightning_audit.testing.faulty import HalfNoise

pytestmark = RESUMING

DELTA, EPOCHS = 1e-5, 3
HOLDS = epsilon_of_passes(1.0, EPOCHS, DELTA)


class Shuffled(PrivateModule):
    """Batches as torch's own loader deals them out."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(poisson=False, make_poisson=False, **kwargs)

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True)


def audit_of(epsilon: float | None = 1.01 * HOLDS, **claimed: object) -> PrivacyAudit:
    claim = PrivacyClaim(epsilon=epsilon, delta=DELTA, sampling="shuffled", **claimed)
    return PrivacyAudit(claim=claim, seed=1)


def by_name(report: object) -> dict[str, object]:
    return {check.name: check for check in report.checks}


def module(**kwargs: object) -> Shuffled:
    return Shuffled(dataset=random_data(1600), **kwargs)


def test_the_epsilon_that_holds_is_reported_and_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = fit(tmp_path, module(), audit_of(), max_epochs=EPOCHS)
    assert report.verdict.outcome == "PASS", report.verdict
    assert report.epsilon_spent == HOLDS
    checks = by_name(report)
    assert checks["sampling.not_poisson"].status == "ok"
    assert checks["accounting"].status == "ok"
    assert "with each record in one step an epoch" in checks["accounting"].message
    assert checks["epsilon"].status == "not_run"
    assert report.epsilon_lower is None
    assert main(["check", str(tmp_path / "audit" / "report.json")]) == 0
    assert capsys.readouterr().err == ""


def test_a_claim_that_they_exceed_is_wrong_accounting(tmp_path: Path) -> None:
    report = violation(tmp_path, module(), audit_of(0.98 * HOLDS), max_epochs=EPOCHS)
    assert report.verdict.faults[0].name == "wrong_accounting"
    assert main(["check", str(tmp_path / "audit" / "report.json")]) == 1


def test_a_replaced_record_costs_more(tmp_path: Path) -> None:
    holds = epsilon_of_passes(1.0, EPOCHS, DELTA, "replace_one")
    audit = audit_of(1.01 * holds, adjacency="replace_one")
    report = fit(tmp_path, module(), audit, max_epochs=EPOCHS)
    assert (report.verdict.outcome, report.epsilon_spent) == ("PASS", holds)


def test_what_an_accountant_says_is_no_claim(tmp_path: Path) -> None:
    audit = PrivacyAudit(claim=PrivacyClaim(sampling="shuffled", delta=DELTA), seed=1)
    report = fit(tmp_path, module(), audit, max_epochs=EPOCHS)
    assert (report.claimed_epsilon, report.epsilon_spent) == (None, HOLDS)
    assert "no epsilon is claimed" in by_name(report)["accounting"].message


def test_a_poisson_loader_is_not_what_is_claimed(tmp_path: Path) -> None:
    poisson = PrivateModule(dataset=random_data(1600))
    report = fit(tmp_path, poisson, audit_of(20.0), max_epochs=EPOCHS)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("leave sampling out" in lack for lack in report.verdict.pass_blockers)


def test_faults_of_the_noise_are_found_as_ever(tmp_path: Path) -> None:
    report = violation(tmp_path, module(optimizer_class=HalfNoise), audit_of(), max_epochs=EPOCHS)
    assert report.verdict.faults[0].name == "noise_too_small"


class Resumed(Shuffled):
    """Wrapped before a checkpoint is loaded, so that the names of its weights are the same."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.net = GradSampleModule(self.net)


def test_a_training_that_goes_on_counts_all_its_epochs(tmp_path: Path) -> None:
    saved, checkpoints = tmp_path / "saved", {"enable_checkpointing": True}
    first = saver(saved, epoch_end=True)
    resumed = Resumed(dataset=random_data(1600))
    trainer_for(tmp_path, audit_of(), first, max_epochs=2, **checkpoints).fit(resumed)
    trainer = trainer_for(
        tmp_path,
        audit := audit_of(),
        saver(saved, epoch_end=True),
        max_epochs=EPOCHS,
        **checkpoints,
    )
    trainer.fit(
        Resumed(dataset=random_data(1600)), ckpt_path=checkpoint_at(saved, 200), weights_only=True
    )
    assert audit.report is not None
    assert audit.report.epsilon_spent == HOLDS


class ThreeSteps(Shuffled):
    """Takes three steps on each batch."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for _ in range(3):
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()


class ThreePasses(Shuffled):
    """Goes through the data three times an epoch."""

    def plain_loader(self) -> DataLoader:
        sampler = RandomSampler(self.dataset, num_samples=3 * len(self.dataset))
        return DataLoader(self.dataset, batch_size=self.batch_size, sampler=sampler)


class TwoLoaders(Shuffled):
    """The shorter loader begins again while the longer one lasts."""

    def train_dataloader(self) -> CombinedLoader:
        short = DataLoader(random_data(160), batch_size=self.batch_size, shuffle=True)
        return CombinedLoader([self.plain_loader(), short], "max_size_cycle")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch[batch_idx % 2], batch_idx)


class InOrder(Shuffled):
    """The same batches in every epoch."""

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size)


def test_the_same_batches_in_every_epoch_are_dealt_out_as_well(tmp_path: Path) -> None:
    ordered = InOrder(dataset=random_data(1600))
    report = fit(tmp_path, ordered, audit_of(), max_epochs=EPOCHS)
    assert report.verdict.outcome == "PASS", report.verdict


@pytest.mark.parametrize(
    ("kind", "holds"),
    [(Shuffled, True), (ThreeSteps, False), (ThreePasses, False), (TwoLoaders, False)],
)
def test_the_epsilon_of_one_step_an_epoch_is_told_only_where_it_holds(
    tmp_path: Path, kind: type[Shuffled], holds: bool
) -> None:
    audit = PrivacyAudit(seed=1, on_violation="warn", delta=DELTA)
    report = fit(tmp_path, kind(dataset=random_data(320)), audit, max_epochs=1)
    assert ("What holds" in by_name(report)["sampling.not_poisson"].message) == holds


def test_more_batches_added_up_than_a_pass_has_end_no_training(tmp_path: Path) -> None:
    class AllAtOnce(Shuffled):
        def __init__(self, **kwargs: object) -> None:
            super().__init__(**kwargs)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(super().training_step(batch, batch_idx))
            if batch_idx == 5:
                self.optimizers().step()

    audit = PrivacyAudit(seed=1, on_violation="warn", delta=DELTA)
    data = random_data(96)
    module = AllAtOnce(dataset=data, batch_size=24)
    trainer_for(tmp_path, audit, max_epochs=2, limit_train_batches=6).fit(module)
    assert audit.report is not None


def test_a_resumed_epoch_is_shuffled_anew_and_counts_twice(tmp_path: Path) -> None:
    saved, checkpoints = tmp_path / "saved", {"enable_checkpointing": True}
    first = saver(saved, epoch_end=False)
    module = Resumed(dataset=random_data(1600))
    trainer_for(tmp_path, audit_of(40.0), first, max_steps=150, **checkpoints).fit(module)
    others = saver(saved, epoch_end=False)
    trainer = trainer_for(tmp_path, audit := audit_of(40.0), others, max_epochs=3, **checkpoints)
    again = Resumed(dataset=random_data(1600))
    trainer.fit(again, ckpt_path=checkpoint_at(saved, 150), weights_only=True)
    assert audit.report is not None
    assert audit.report.epsilon_spent == epsilon_of_passes(1.0, EPOCHS + 1, DELTA)


class TwoViews(Shuffled):
    """Each record enters its batch twice."""

    def plain_loader(self) -> DataLoader:
        def twice(records: list[Any]) -> Any:
            return default_collate([*records, *records])

        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True, collate_fn=twice)


class Reloaded(Shuffled):
    """From the second epoch on records are drawn with replacement."""

    def train_dataloader(self) -> DataLoader:
        if not self.current_epoch:
            return self.plain_loader()
        sampler = RandomSampler(self.dataset, replacement=True)
        return DataLoader(self.dataset, batch_size=self.batch_size, sampler=sampler)


@pytest.mark.parametrize("kind", [TwoViews, Reloaded])
def test_records_that_enter_more_than_one_row_or_step_do_not_pass(
    tmp_path: Path, kind: type[Shuffled]
) -> None:
    every = {"reload_dataloaders_every_n_epochs": int(kind is Reloaded)}
    audit = audit_of(40.0)
    report = fit(tmp_path, kind(dataset=random_data(1600)), audit, max_epochs=EPOCHS, **every)
    assert report.verdict.outcome == "INCONCLUSIVE", report.verdict


def test_several_steps_a_batch_by_hand_are_several_passes(tmp_path: Path) -> None:
    class Thrice(HandWritten):
        def train_dataloader(self) -> DataLoader:
            return DataLoader(self.dataset, batch_size=BATCH, shuffle=True)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for _ in range(3):
                super().training_step(batch, batch_idx)

    stated = dataclasses.replace(CLAIM, sampling="shuffled", epsilon=99.0, delta=DELTA)
    audit = PrivacyAudit(claim=stated, seed=1, on_violation="warn")
    report = fit(tmp_path, Thrice(), audit, max_epochs=2)
    assert report.epsilon_spent == epsilon_of_passes(stated.noise_multiplier, 6, DELTA)


def test_ten_steps_on_one_of_many_batches_are_ten_passes_for_its_records(tmp_path: Path) -> None:
    class TenOnOne(ThreeSteps):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            for _ in range(10 if batch_idx == 7 else 1):
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(Shuffled.training_step(self, batch, batch_idx))
                optimizer.step()

    audit = PrivacyAudit(
        claim=PrivacyClaim(epsilon=1.01 * HOLDS, delta=DELTA, sampling="shuffled"),
        seed=1,
        on_violation="warn",
    )
    report = fit(tmp_path, TenOnOne(dataset=random_data(1600)), audit, max_epochs=1)
    assert report.epsilon_spent == epsilon_of_passes(1.0, 10, DELTA)
    assert by_name(report)["accounting"].status == "violated"
