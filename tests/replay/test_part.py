"""A step is replayed on a part of its batch: what needs more records is found on the whole one."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_step import asked
from torch import nn
from torch.nn import functional
from training_support import PrivateModule, digits

from lightning_audit.checks.replay import Answer
from lightning_audit.replay.question import Asked
from lightning_audit.replay.step_replay import StepReplay
from lightning_audit.testing.faulty import OwnFactors

pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing when gradients are computed:UserWarning"
)
#: Expected records of a batch.
MANY = 128


class NotInLargeBatches(OwnFactors):
    """Gradients are clipped in batches of up to 64 records."""

    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        return super().factors(rows) if len(rows) <= 64 else torch.ones(len(rows))


class ByAQuantile(OwnFactors):
    """Batches of 32 or more are clipped at a quantile of their own norms."""

    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        norms = rows.norm(dim=1)
        own = (norms.quantile(0.9) / (norms + 1e-6)).clamp(max=1.0)
        return super().factors(rows) if len(rows) < 32 else own


class OneLate(OwnFactors):
    """The hundredth record of a batch is not clipped."""

    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        factors = super().factors(rows).clone()
        factors[99:100] = 1.0
        return factors


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
    patch: pytest.MonkeyPatch, kind: Any = PrivateModule, *questions: str, **settings: Any
) -> tuple[Mapping[str, Answer], list[int]]:
    """Return answers, and the records of the batches that were replayed with gradients."""
    sizes = list[int]()
    take = StepReplay.take_first

    def counted(self: StepReplay, batches: Any, rows: Any, *, alone: bool) -> None:
        sizes.extend(len(batch[0]) for batch in batches if not alone)
        take(self, batches, rows, alone=alone)

    patch.setattr(StepReplay, "take_first", counted)
    patch.setattr("lightning_audit.replay.examiner.may_fork", lambda _: False)
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    given = {"dataset": digits(1024), "batch_size": MANY, "max_grad_norm": 0.3, **settings}
    return asked(kind(net, **given), *questions), sizes


def test_most_replays_are_of_a_part_of_the_batch(monkeypatch):
    answers, sizes = examined(monkeypatch)
    assert all(answer.asked and not answer.findings for answer in answers.values())
    assert sum(size > 64 for size in sizes) <= 4
    assert sum(size <= 17 for size in sizes) > len(sizes) / 2


@pytest.mark.parametrize(
    ("kind", "plant", "questions"),
    [
        (PrivateModule, NotInLargeBatches, ("replay.sensitivity", "replay.clipping")),
        (PrivateModule, ByAQuantile, ("replay.sensitivity", "replay.clipping")),
        (PrivateModule, OneLate, ("replay.sensitivity", "replay.factors")),
        (ClassWeights, None, ("coupling",)),
        (CenteredIfLarge, None, ("coupling",)),
    ],
)
def test_what_needs_many_records_is_found(monkeypatch, kind, plant, questions):
    answers, _ = examined(monkeypatch, kind, *questions, optimizer_class=plant)
    assert any(answer.findings for answer in answers.values())


def test_a_step_that_treats_a_part_differently_is_replayed_whole(monkeypatch):
    answers, sizes = examined(monkeypatch, SkipsSmall)
    assert not any(answer.findings for answer in answers.values())
    assert all(answers[name].asked for name in ("coupling", "replay.sensitivity"))
    assert sum(size > 64 for size in sizes) > len(sizes) / 2


def test_only_batches_of_poisson_sampling_have_parts():
    replay = SimpleNamespace(skips=[], claim=SimpleNamespace(fixed_size=False))
    assert Asked(replay, [torch.zeros(30, 1)]).may_shrink
    assert not Asked(replay, [torch.zeros(30, 1)] * 2).may_shrink
    replay.claim.fixed_size = True
    assert not Asked(replay, [torch.zeros(30, 1)]).may_shrink
