"""How the gradient of a session's steps is read: of a private optimizer, or of a plain one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from lightning_audit._validate import BadArgument
from lightning_audit.dpsgd.manual import ManualStep
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.layout import IndexArray
from lightning_audit.record.store import INJECTED
from lightning_audit.session.steps import PlannedStep
from lightning_audit.taps.gradient_reading import Reading
from lightning_audit.taps.gradient_tap import GradientTap
from lightning_audit.taps.step_hooks import ClosureHooks, StepHooks
from lightning_audit.taps.update_tap import UpdateTap

_UNCLEAR = (
    "the inner optimizer changes p.grad inside its step, so it cannot be told which gradient the "
    "update used; change a copy there, or use one of torch's optimizers"
)
_UNREADABLE = (
    "the optimizer clips or noises inside its own step, where its gradient cannot be read: end "
    "its step with super().step() of one of torch's optimizers or with the step of one that it "
    "holds, after writing the noisy gradient to p.grad"
)
_NOT_RELEASED = (
    "in some steps lightning_audit.released was not called, so that their gradients were not read; "
    "call it once in each step"
)


Arrives = Callable[[int], None]
Coordinates = dict[int, IndexArray]


class ReadingWay(Protocol):
    """How a session reads its steps."""

    @property
    def tap(self) -> GradientTap:
        """What reads the gradient."""

    @property
    def is_sure(self) -> bool:
        """Whether it is known that the update uses the gradient that is read."""

    @property
    def is_shown(self) -> bool:
        """Whether the training's own code shows where its noise is in."""

    def hooks(self, arrives: Arrives, leaves: Callable[[], None], otherwise: Arrives) -> StepHooks:
        """Hooks on the optimizer that updates; see `StepHooks`."""

    def follow(self, step: Any) -> None:
        """Go on with a new optimizer over the same parameters."""

    def start_batch(self) -> None:
        """A batch is trained on from now on."""

    def end_batch(self) -> None:
        """Until the next batch nothing is trained."""

    def end_step(self) -> None:
        """A step was observed."""

    def samples(self, plan: PlannedStep | None) -> int | None:
        """Samples that were clipped for a step, canaries included; None if unknown."""

    def judged(self, reading: Reading, *, asked: bool) -> tuple[Reading, str]:
        """What counts of a reading, and what stands in the way of a pass by it; or empty.

        Args:
            reading: of a step.
            asked: whether the step's code had asked for canaries before it was read.
        """


class PrivateReading:
    """Reads a private optimizer's steps when the update begins, unless noise is seen before.

    Args:
        step: the adapter.
        coordinates: tensor -> flat coordinates to read.
    """

    def __init__(self, step: DPSGDStep, coordinates: Coordinates) -> None:
        self._step = step
        self._coordinates = coordinates
        self.tap = GradientTap(step.inner, step.params, coordinates)

    @property
    def is_sure(self) -> bool:
        """Clipping and noise are over when the innermost optimizer is stepped."""
        return True

    @property
    def is_shown(self) -> bool:
        """It is the optimizer that shows it."""
        return False

    def hooks(self, arrives: Arrives, leaves: Callable[[], None], otherwise: Arrives) -> StepHooks:
        """Hooks around the innermost optimizer's step."""
        return StepHooks(
            self._step.inner, self.tap.enters, arrives, leaves, otherwise, self.tap.skips
        )

    def follow(self, step: DPSGDStep) -> None:
        """Go on with a new optimizer over the same parameters."""
        self._step = step
        self.tap = GradientTap(step.inner, step.params, self._coordinates)

    def start_batch(self) -> None:
        """Forget a step that broke off."""
        self.tap.reset()

    def end_batch(self) -> None:
        """Nothing is kept of a batch."""

    def end_step(self) -> None:
        """Nothing is kept of a step."""

    def samples(self, plan: PlannedStep | None) -> int | None:
        """Samples that were clipped for the step, canaries included; None if unknown."""
        return self._step.batch_size()

    def judged(self, reading: Reading, *, asked: bool) -> tuple[Reading, str]:
        """The reading as it is."""
        return reading, _UNCLEAR if reading.unclear else ""


class HandWrittenReading:
    """Reads a plain optimizer's steps when its update has its gradient, clipped and noised by hand.

    Args:
        step: the adapter.
        coordinates: tensor -> flat coordinates to read.
    """

    def __init__(self, step: ManualStep, coordinates: Coordinates) -> None:
        self._step = step
        self._coordinates = coordinates
        self.tap = UpdateTap(step.inner, step.params, coordinates)
        #: Whether a batch is being trained on.
        self.trains = False

    @property
    def is_sure(self) -> bool:
        """Whether it is known where the gradient is made, and that nothing is done to it then."""
        return not (self.tap.trial or self.tap.opaque)

    @property
    def is_shown(self) -> bool:
        """Whether the code calls `lightning_audit.released`."""
        return self.tap.cut_known

    def hooks(self, arrives: Arrives, leaves: Callable[[], None], otherwise: Arrives) -> StepHooks:
        """Hooks around the steps of the optimizer and behind the closures that they are given."""
        return ClosureHooks(
            self._step.inner, self.tap.enters, arrives, leaves, otherwise, self.tap.skips
        )

    def follow(self, step: ManualStep) -> None:
        """Go on with a new optimizer over the same parameters, in the middle of a batch too."""
        known, self._step = self.tap.cut_known, step
        self.tap = UpdateTap(step.inner, step.params, self._coordinates, cut_known=known)

    def start_batch(self) -> None:
        """Forget a step that broke off; from now on releases may be shown."""
        self.tap.reset()
        self.trains = True

    def end_batch(self) -> None:
        """Keep of the batch's gradients only what a later update needs."""
        self.trains = False
        self._step.settle()

    def end_step(self) -> None:
        """Forget the gradients that were handed over for the step."""
        self._step.release()

    def samples(self, plan: PlannedStep | None) -> int | None:
        """Samples given to `lightning_audit.per_sample`, and the canaries that joined them."""
        samples = self._step.samples
        canaries = int(plan.coins.sum()) if plan is not None and plan.status == INJECTED else 0
        return samples + canaries if samples else None

    def judged(self, reading: Reading, *, asked: bool) -> tuple[Reading, str]:
        """Nothing of a gradient that need not be the update's: nothing may be concluded from it."""
        doubtful = self.tap.opaque and not asked and not reading.at_cut
        if not (reading.unclear or doubtful):
            return reading, ""
        values = np.full(len(reading.values), np.nan)
        lack = _NOT_RELEASED if self.tap.cut_known else _UNREADABLE
        return replace(reading, values=values, unclear=False), lack

    def released(
        self, grads: Any, module: torch.nn.Module, root: torch.nn.Module
    ) -> list[torch.Tensor | None]:
        """The noisy gradients that the code shows, one for each parameter.

        Raises:
            ValueError: they are not those of the parameters; see `lightning_audit.released`.
        """
        if not isinstance(grads, dict):
            raise BadArgument(
                f"grads={type(grads).__name__} must be a dict of parameter names to tensors of the "
                "parameters' shapes: the noisy gradients."
            )
        places = self._step.places(list(grads), module, root)
        self._step.check_released(grads, places)
        tensors: list[torch.Tensor | None] = [None] * len(self._step.params)
        for name, place in places.items():
            if place is not None:
                tensors[place] = grads[name]
        return tensors
