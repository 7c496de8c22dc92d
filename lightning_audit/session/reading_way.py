"""Ways to read the gradient of a session's steps: from a private or a plain optimizer."""

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
    "the inner optimizer changes p.grad inside its step, so it is not known which gradient the "
    "update used; change a copy there, or use one of torch's optimizers"
)
_UNREADABLE = (
    "the optimizer clips or adds noise inside its own step, where its gradient cannot be read: end "
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
    """Interface of the ways to read a session's steps."""

    @property
    def tap(self) -> GradientTap:
        """The tap that reads the gradient."""

    @property
    def is_sure(self) -> bool:
        """Whether the update is known to use the gradient that is read."""

    @property
    def is_shown(self) -> bool:
        """Whether the training's own code passes its noisy gradients to the audit."""

    def hooks(self, arrives: Arrives, leaves: Callable[[], None], otherwise: Arrives) -> StepHooks:
        """Return hooks on the optimizer that updates; see `StepHooks`."""

    def follow(self, step: Any) -> None:
        """Switch to a new optimizer over the same parameters."""

    def start_batch(self) -> None:
        """Called before a batch is trained on."""

    def end_batch(self) -> None:
        """Called after a batch was trained on."""

    def end_step(self) -> None:
        """Called after a step was observed."""

    def samples(self, plan: PlannedStep | None) -> int | None:
        """Return the number of samples clipped for a step, with canaries; None if unknown."""

    def judged(self, reading: Reading, *, asked: bool) -> tuple[Reading, str]:
        """Return the usable part of a reading, and what it has that prevents a pass, or "".

        Args:
            reading: a step's reading.
            asked: whether the step's code had requested canaries before it was read.
        """


class PrivateReading:
    """Reader of a private optimizer's steps: after the noise if hooked there, else at the update.

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
        """True: the innermost optimizer steps after clipping and noise."""
        return True

    @property
    def is_shown(self) -> bool:
        """False: the optimizer adds the noise, not the training's code."""
        return False

    def hooks(self, arrives: Arrives, leaves: Callable[[], None], otherwise: Arrives) -> StepHooks:
        """Return hooks around the innermost optimizer's step."""
        return StepHooks(
            self._step.inner, self.tap.enters, arrives, leaves, otherwise, self.tap.skips
        )

    def follow(self, step: DPSGDStep) -> None:
        """Switch to a new optimizer over the same parameters."""
        self._step = step
        self.tap = GradientTap(step.inner, step.params, self._coordinates)

    def start_batch(self) -> None:
        """Discard a step that was not completed."""
        self.tap.reset()

    def end_batch(self) -> None:
        """Do nothing: no state is kept per batch."""

    def end_step(self) -> None:
        """Do nothing: no state is kept per step."""

    def samples(self, plan: PlannedStep | None) -> int | None:
        """Return the number of samples clipped for the step, with canaries; None if unknown."""
        return self._step.batch_size()

    def judged(self, reading: Reading, *, asked: bool) -> tuple[Reading, str]:
        """Return the reading unchanged."""
        return reading, _UNCLEAR if reading.unclear else ""


class HandWrittenReading:
    """Reader of a plain optimizer's steps: the training's code has clipped and added noise.

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
        """Whether the gradient that is read is known to be the update's, with no later change."""
        return not (self.tap.trial or self.tap.opaque)

    @property
    def is_shown(self) -> bool:
        """Whether the code calls `lightning_audit.released`."""
        return self.tap.cut_known

    def hooks(self, arrives: Arrives, leaves: Callable[[], None], otherwise: Arrives) -> StepHooks:
        """Return hooks around the optimizer's steps and after the closures passed to them."""
        return ClosureHooks(
            self._step.inner, self.tap.enters, arrives, leaves, otherwise, self.tap.skips
        )

    def follow(self, step: ManualStep) -> None:
        """Switch to a new optimizer over the same parameters, also within a batch."""
        known, self._step = self.tap.cut_known, step
        self.tap = UpdateTap(step.inner, step.params, self._coordinates, cut_known=known)

    def start_batch(self) -> None:
        """Discard a step that was not completed; accept calls of `released` from now on."""
        self.tap.reset()
        self.trains = True

    def end_batch(self) -> None:
        """Drop the batch's gradients, except for what a later update needs."""
        self.trains = False
        self._step.settle()

    def end_step(self) -> None:
        """Drop the gradients that were handed over for the step."""
        self._step.release()

    def samples(self, plan: PlannedStep | None) -> int | None:
        """Return the number of samples given to `lightning_audit.per_sample`, with canaries."""
        samples = self._step.samples
        canaries = int(plan.coins.sum()) if plan is not None and plan.status == INJECTED else 0
        return samples + canaries if samples else None

    def judged(self, reading: Reading, *, asked: bool) -> tuple[Reading, str]:
        """Set the values to NaN if the gradient may not be the update's, and say why."""
        doubtful = self.tap.opaque and not asked and not reading.at_cut
        if not (reading.unclear or doubtful):
            return reading, ""
        values = np.full(len(reading.values), np.nan)
        lack = _NOT_RELEASED if self.tap.cut_known else _UNREADABLE
        return replace(reading, values=values, unclear=False), lack

    def released(
        self, grads: Any, module: torch.nn.Module, root: torch.nn.Module
    ) -> list[torch.Tensor | None]:
        """Return the noisy gradients passed to `released`, one per parameter.

        Raises:
            ValueError: names or shapes are not those of the parameters.
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
