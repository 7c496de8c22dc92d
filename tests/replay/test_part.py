"""A step is replayed on a part of its batch: what needs more records is found on the whole one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from training_support import PrivateModule, digits, trainer_for

from lightning_audit.callbacks.examination import Examination
from lightning_audit.replay.examiner import Asked
from lightning_audit.replay.step_replay import StepReplay

pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing when gradients are computed:UserWarning"
)
#: Expected records of a batch.
MANY = 128


class NotInLargeBatches(DPOptimizer):
    """Gradients are clipped in batches of up to 64 records."""

    def clip_and_accumulate(self) -> None:
        norm = self.max_grad_norm
        if len(self.grad_samples[0]) > 64:
            self.max_grad_norm = 1e6
        super().clip_and_accumulate()
        self.max_grad_norm = norm


class ByAQuantile(DPOptimizer):
    """Batches of 32 or more are clipped at a quantile of their own norms."""

    def clip_and_accumulate(self) -> None:
        norm, rows = self.max_grad_norm, self.grad_samples
        if len(rows[0]) >= 32:
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in rows]).norm(dim=0)
            self.max_grad_norm = float(norms.quantile(0.9))
        super().clip_and_accumulate()
        self.max_grad_norm = norm


class OneLate(DPOptimizer):
    """The hundredth record of a batch is not clipped."""

    def clip_and_accumulate(self) -> None:
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in self.grad_samples]).norm(dim=0)
        factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        factors[99:100] = 1.0
        for p, g in zip(self.params, self.grad_samples, strict=True):
            total = torch.einsum("i,i...", factors, g)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            p.grad_sample._processed = True


class ClassWeights(PrivateModule):
    """Losses are divided by the number of the batch's records of their class, in large batches."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        losses = functional.cross_entropy(self.net(x), y, reduction="none")
        if len(y) > 32:
            losses = losses * 10.0 / torch.bincount(y, minlength=10)[y]
        return losses.mean()


class CenteredIfLarge(PrivateModule):
    """Batches of more than 48 records are centered."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x - x.mean(0) if len(x) > 48 else x), y)


class SkipsSmall(PrivateModule):
    """A correct training that takes no step on few records, as a public rule."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor | None:
        return None if len(batch[0]) < 20 else super().training_step(batch, batch_idx)


def examined(
    folder: Path, patch: pytest.MonkeyPatch, kind: Any = PrivateModule, **settings: Any
) -> tuple[Examination, list[int]]:
    """Return an examination, and the records of the batches that were replayed with gradients."""
    sizes = list[int]()
    take = StepReplay.take_first

    def counted(self: StepReplay, batches: Any, rows: Any, *, alone: bool) -> None:
        sizes.extend(len(batch[0]) for batch in batches if not alone)
        take(self, batches, rows, alone=alone)

    patch.setattr(StepReplay, "take_first", counted)
    patch.setattr("lightning_audit.replay.examiner.may_fork", lambda _: False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    module = kind(
        net, **{"dataset": digits(1024), "batch_size": MANY, "max_grad_norm": 0.3, **settings}
    )
    examination = Examination()
    trainer_for(folder, examination, max_steps=1).fit(module)
    return examination, sizes


def test_most_replays_are_of_a_part_of_the_batch(tmp_path, monkeypatch):
    examination, sizes = examined(tmp_path, monkeypatch)
    assert all(answer.asked and not answer.findings for answer in examination.answers.values())
    assert sum(size > 64 for size in sizes) <= 4
    assert sum(size <= 17 for size in sizes) > len(sizes) / 2


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"optimizer_class": NotInLargeBatches}, {"replay.sensitivity", "replay.clipping"}),
        ({"optimizer_class": ByAQuantile}, {"replay.sensitivity", "replay.clipping"}),
        ({"optimizer_class": OneLate}, {"replay.sensitivity"}),
        ({"kind": ClassWeights}, {"coupling"}),
        ({"kind": CenteredIfLarge}, {"coupling"}),
    ],
    ids=["not in large batches", "quantile", "one late", "class weights", "centered if large"],
)
def test_what_needs_many_records_is_found(tmp_path, monkeypatch, settings, found):
    examination, _ = examined(tmp_path, monkeypatch, **settings)
    assert found & {name for name, answer in examination.answers.items() if answer.findings}


def test_a_step_that_treats_a_part_differently_is_replayed_whole(tmp_path, monkeypatch):
    examination, sizes = examined(tmp_path, monkeypatch, SkipsSmall)
    answers = examination.answers
    assert not any(answer.findings for answer in answers.values())
    assert all(answers[name].asked for name in ("coupling", "replay.sensitivity"))
    assert sum(size > 64 for size in sizes) > len(sizes) / 2


def test_only_batches_of_poisson_sampling_have_parts():
    replay = SimpleNamespace(skips=[], fixed_size=False)
    assert Asked(replay, [torch.zeros(30, 1)], 0).may_shrink
    assert not Asked(replay, [torch.zeros(30, 1)] * 2, 0).may_shrink
    replay.fixed_size = True
    assert not Asked(replay, [torch.zeros(30, 1)], 0).may_shrink
