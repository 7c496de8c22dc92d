"""A step to be examined: of a loop without Lightning, or the first one of a training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_support import trainer_for

from lightning_audit import Examination, PrivacyClaim
from lightning_audit.callbacks import examination as of_trainings
from lightning_audit.checks.replay import Answer
from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.replay.examiner import FACTORS, NAMES, Examined, examine_step
from lightning_audit.replay.order import BatchSource, Order
from lightning_audit.replay.step_replay import StepReplay
from lightning_audit.replay.taken_step import TakenStep
from lightning_audit.replay.training_state import TrainingState

#: The checks that an examination answers.
ANSWERED = {*NAMES} - {FACTORS}


class OverTheBatch(nn.Module):
    """Batch normalisation without buffers, which Opacus lets pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, None, None, training=True)


class PlainStep:
    """A step of a loop without Lightning, of a net of six inputs and three scores."""

    precision = "32-true"
    aside: Sequence[object] = ()
    logged: ClassVar[dict[str, set[Any]]] = {}
    whole = sure = True

    def __init__(
        self,
        kind: type[DPOptimizer] | None = None,
        net: nn.Module | None = None,
        noise_multiplier: float = 1.0,
        max_grad_norm: float = 1.0,
    ) -> None:
        torch.manual_seed(0)
        net = net or nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        self.data = (torch.randn(64, 6), torch.arange(64) % 3)
        self.module, optimizer, _ = PrivacyEngine().make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(*self.data), batch_size=8),
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
        )
        if kind is not None:
            optimizer.__class__ = kind
        self.optimizers = [optimizer]
        self.held: list[object] = []

    def begin(self) -> bool:
        """Nothing to note."""
        return True

    def source(self) -> BatchSource:
        """No loader: batches are made by hand."""
        return BatchSource()

    @property
    def adapter(self) -> Any:
        """The adapter of the private optimizer."""
        names = {id(p): name for name, p in self.module.named_parameters()}
        return opacus_step(self.optimizers[0], names, self.module.modules())

    def batch(self, records: int = 8) -> tuple[torch.Tensor, ...]:
        """The first records."""
        return tuple(part[:records] for part in self.data)

    def roots(self) -> list[object]:
        return [self.module, *self.optimizers, *self.held]

    def take(self, batches: Sequence[Any]) -> None:
        for x, y in batches:
            self.optimizers[0].zero_grad()
            nn.functional.cross_entropy(self.module(x), y).backward()
            self.optimizers[0].step()


def examined(user: PlainStep, records: int = 8, **options: Any) -> Examined:
    """Take a step, and examine it."""
    step, batch = user.adapter, user.batch(records)
    torch.manual_seed(5)
    user.take([batch])
    taken = TakenStep([batch], [False])
    return examine_step(Order(user, step, step.claim(1), taken, **{"seed": 1, **options}))


def replay_of(user: PlainStep, taken: TakenStep | None = None, **options: Any) -> StepReplay:
    """Replays of a step, from the present state."""
    step = user.adapter
    order = Order(user, step, step.claim(1), taken or TakenStep(), **options)
    return StepReplay(order, TrainingState(user.roots()))


def asked(
    module: Any,
    *questions: str,
    seed: int = 0,
    trials: int | None = None,
    claim: PrivacyClaim | None = None,
    **trainer: Any,
) -> Mapping[str, Answer]:
    """Answers to some questions, or to all, asked of the first step of a training."""
    examination = Examination(claim=claim)
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:

        def examine(order: Order) -> Examined:
            return examine_step(replace(order, names=questions, trials=trials))

        patch.setattr(of_trainings, "examine_step", examine)
        trainer_for(Path(), examination, **{"max_steps": 3, **trainer}).fit(module)
    return examination.answers
