from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest
import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from lightning_audit import Examination
from lightning_audit.checks.replay import Answer
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.faulty import ClipAfterAverage, ClipAtTwice
from lightning_audit.testing.trainings import (
    ChangedAfterStep,
    Configured,
    DeepTraining,
    GhostInParts,
    PhysicalBatches,
    SplitBatches,
    Training,
    ViewsClippedApart,
)


class BatchesOf8(Training):
    size = 8

    def plain_loader(self) -> DataLoader[Any]:
        return DataLoader(self.data, self.size)


class BatchesOf100(BatchesOf8):
    size = 100


class WithMomentum(Training):
    def configure_optimizers(self) -> Any:
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9),
            data_loader=self.plain_loader(),
            **self.settings,
        )
        return self.plant(optimizer)


class AddedUp(Configured):
    """The Trainer adds up the gradients of four batches."""

    engine_arguments: ClassVar[dict[str, Any]] = {"poisson_sampling": False}


class ClipSum(DPOptimizer):
    """Clips the sum of the batch at five times the norm."""

    def clip_and_accumulate(self) -> None:
        sums = [g.sum(0) for g in self.grad_samples]
        norm = torch.stack([each.norm() for each in sums]).norm()
        for p, each in zip(self.params, sums, strict=True):
            p.summed_grad = each * (5.0 * self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)


class ClipAtThreeHalves(ClipAtTwice):
    def clip_and_accumulate(self) -> None:
        stated = self.max_grad_norm
        self.max_grad_norm = 1.5 * stated
        DPOptimizer.clip_and_accumulate(self)
        self.max_grad_norm = stated


class LargestPasses(DPOptimizer):
    """The largest gradient of a batch is not clipped."""

    def clip_and_accumulate(self) -> None:
        rows = torch.cat([g.flatten(1) for g in self.grad_samples], dim=1)
        norms = rows.norm(dim=1)
        factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        factors[norms.argmax()] = 1.0
        for p, g in zip(self.params, self.grad_samples, strict=True):
            p.summed_grad = torch.einsum("i,i...", factors, g)


def asked(
    optimizer: type[DPOptimizer] | None,
    training: type[Training],
    settings: dict[str, float],
    question: str = "replay.clipping",
) -> Answer:
    fault = Fault("made", "", "", "sensitivity", "made", optimizer=optimizer, training=training)
    module = dataclasses.replace(fault, settings=settings).module(pl.LightningModule)
    examination = Examination()
    torch.manual_seed(0)
    pl.Trainer(
        max_steps=3,
        accumulate_grad_batches=4 if training is AddedUp else 1,
        callbacks=[examination],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module)
    return examination.answers[question]


@pytest.mark.parametrize("training", [Training, BatchesOf8, BatchesOf100, WithMomentum])
@pytest.mark.parametrize("optimizer", [ClipAfterAverage, ClipSum])
def test_gradients_that_are_clipped_together_are_told_by_that(
    optimizer: type[DPOptimizer], training: type[Training]
) -> None:
    assert asked(optimizer, training, {}).kind == "sum"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("no_clipping", "none"),
        ("clip_at_twice", "norm"),
        ("clip_per_tensor", "tensors"),
        ("norm_misses_biases", "some"),
        ("clip_by_median_norm", "batch"),
    ],
)
@pytest.mark.parametrize("training", [BatchesOf8, DeepTraining])
def test_other_ways_to_clip_are_told_from_each_other(
    name: str, kind: str, training: type[Training]
) -> None:
    assert asked(FAULTS[name].optimizer, training, {}).kind == kind


def test_a_norm_that_is_a_little_too_large_is_told() -> None:
    answer = asked(ClipAtThreeHalves, Training, {"max_grad_norm": 0.3})
    assert answer.kind == "norm"


@pytest.mark.parametrize("name", ["first_row_not_clipped", "two_clipped_together", ""])
def test_what_depends_on_the_place_or_on_single_others_has_no_kind(name: str) -> None:
    optimizer = FAULTS[name].optimizer if name else LargestPasses
    answer = asked(optimizer, Training, {})
    assert answer.findings
    assert answer.kind == ""


@pytest.mark.parametrize(
    ("name", "training", "kind"),
    [
        ("no_clipping", SplitBatches, "none"),
        ("clip_at_twice", SplitBatches, "norm"),
        ("clip_at_twice", AddedUp, "norm"),
        ("clip_per_tensor", SplitBatches, "tensors"),
        ("clip_by_median_norm", SplitBatches, "batch"),
        ("parts_are_added_again", SplitBatches, "parts"),
        ("parts_are_added_again", PhysicalBatches, "parts"),
        ("parts_share_memory", GhostInParts, "parts"),
        ("views_clipped_apart", ViewsClippedApart, "rows"),
        ("first_row_not_clipped", SplitBatches, ""),
        ("two_clipped_together", SplitBatches, ""),
        ("first_row_not_clipped", PhysicalBatches, ""),
    ],
)
def test_why_a_record_moves_too_much_is_told_in_parts_of_a_batch_too(
    name: str, training: type[Training], kind: str
) -> None:
    # Lightning divides the loss by the number of batches that it adds up.
    settings = {"max_grad_norm": 0.2} if training is AddedUp else {}
    answer = asked(FAULTS[name].optimizer, training, settings, "replay.sensitivity")
    assert answer.findings
    # Crafted gradients name it where they are asked of a part.
    assert answer.kind == kind


@pytest.mark.parametrize("training", [SplitBatches, PhysicalBatches, GhostInParts, AddedUp])
def test_correct_steps_in_parts_have_no_kind(training: type[Training]) -> None:
    answer = asked(None, training, {}, "replay.sensitivity")
    assert answer.asked
    assert not answer.findings
    assert answer.kind == ""


@pytest.mark.parametrize(
    ("name", "training", "kind"),
    [
        ("divides_by_realised_batch", Training, "divisor"),
        ("divides_by_realised_batch", WithMomentum, "divisor"),
        ("divides_by_realised_batch", SplitBatches, "divisor"),
        ("divides_by_realised_batch", PhysicalBatches, "divisor"),
        ("momentum_of_raw_gradients", Training, ""),
        ("learning_rate_by_raw_norm", Training, ""),
        ("changed_after_step", ChangedAfterStep, ""),
    ],
)
def test_a_divisor_that_is_a_number_of_records_is_told_from_other_uses_of_them(
    name: str, training: type[Training], kind: str
) -> None:
    answer = asked(FAULTS[name].optimizer, training, {}, "replay.release")
    assert answer.findings
    assert answer.kind == kind


def test_a_correct_step_has_no_kind() -> None:
    answer = asked(None, WithMomentum, {})
    assert answer.asked
    assert not answer.findings
    assert answer.kind == ""
