"""The order of an examination: a step, how the user's code runs it again, and what is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.replay.taken_step import TakenStep
from lightning_audit.replay.training_state import GlobalGenerators, TrainingState


@dataclass(frozen=True)
class BatchSource:
    """The way from records to the batch that a training's step gets.

    Args:
        loader: of the training; None if it is unknown.
        transfer: what the training does with a collated batch before its step.
        where: the user's code of that, as text.
        held: objects whose state it may change, such as a data module.
    """

    loader: Any = None
    transfer: Callable[[Any], Any] = field(default=lambda batch: batch)
    where: str = "the batch transfer hooks"
    held: Sequence[object] = ()


class UserStep(Protocol):
    """The user's step, which can be run again for a replay."""

    @property
    def module(self) -> torch.nn.Module:
        """The user's module."""

    @property
    def optimizers(self) -> Sequence[Any]:
        """The optimizers of the training."""

    @property
    def precision(self) -> str:
        """The precision of the training, by Lightning's name."""

    @property
    def logged(self) -> dict[str, set[Any]]:
        """Values that the step logged when it was replayed, by name; in memory only."""

    @property
    def aside(self) -> Sequence[object]:
        """Objects whose state is neither saved nor restored."""

    def obstacle(self) -> str:
        """Return why no step can be run again, or empty."""

    @property
    def sure(self) -> bool:
        """Whether what is run again surely is the step; else it must give the same weights."""

    @property
    def whole(self) -> bool:
        """Whether the replays of a step run all of it, also what follows the update."""

    def doubt(self, reason: str, repeated: bool) -> str:
        """Return why no question is answered, given the reason, and whether the step ran again."""

    def roots(self) -> list[object]:
        """Return the objects that a step may change."""

    def begin(self) -> bool:
        """Note the place in the training at which a step that will be run again begins.

        Returns:
            Whether `roots` has all that the step may change, as it is before the step.
        """

    def source(self) -> BatchSource:
        """Return the way from records to the batch that a step gets."""

    def take(self, batches: Sequence[Any]) -> None:
        """Train on the physical batches of one logical step."""


@dataclass(frozen=True)
class Before:
    """A training before the step that is examined.

    Args:
        state: of the training.
        claim: reads what is claimed of the step, once the state is restored.
    """

    state: TrainingState
    claim: Callable[[], StepClaim]

    def restored(self) -> tuple[TrainingState, StepClaim]:
        """Restore the state, and return it with the claim."""
        self.state.shared = GlobalGenerators()
        self.state.put_back()
        return self.state, self.claim()


@dataclass(frozen=True)
class Order:
    """A step that was taken, and the settings of its examination.

    Args:
        user: runs the step again.
        step: the adapter of the private optimizer.
        claim: what is claimed of the step, read before any replay: faulty code may change it.
        taken: the step's batches.
        seed: of the replays.
        names: of the questions; empty for all.
        replaced: whether neighbors differ by a replaced record, not by an added or removed one.
        trials: largest number of crafted gradients; None for the usual one.
        earlier_trials: number of crafted gradients in earlier examinations.
        budget: largest number of replayed steps, whose time is limited then; None for no limit.
        before: the training before the step; None to replay from the state after it.
        level: probability that noise as claimed counts as too little to hide a record.
        forked: whether this process is a fork, in which the user's code may write.
    """

    user: UserStep
    step: DPSGDStep
    claim: StepClaim
    taken: TakenStep
    seed: int = 0
    names: Collection[str] = ()
    replaced: bool = False
    trials: int | None = None
    earlier_trials: int = 0
    budget: int | None = None
    before: Before | None = None
    level: float = 1e-4
    forked: bool = False
