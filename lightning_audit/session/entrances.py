"""How canaries enter: as rows of gradients, as rows that are requested, or as a sample.

**Input canary: one additional sample in the batch of every step.** A step's direction is the
gradient of the canary's loss at the current weights. An extra backward pass computes it before the
coin is used; the reading covers all trained parameters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lightning_audit._validate import BadArgument
from lightning_audit.canaries.inputs import (
    InputCanary,
    Sample,
    appended,
    has_forward,
    loss_of,
    rows,
    sample_of,
)
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.hooks.boundary import raised_in_audit
from lightning_audit.hooks.gradient_tap import Tensors, summed_by_opacus
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import INJECTED, Kept, Observation
from lightning_audit.replay.clipping import DenseDirection, own_direction, undisturbed
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.session.plan import Plan
from lightning_audit.session.planner import StepPlanner
from lightning_audit.verdict.judge import MAX_LOST

# --- Canaries as rows of the per-sample gradients that Opacus' optimizers clip.


class GradientRows(Kept):
    """Canaries that are rows among the per-sample gradients.

    Args:
        planner: plans the steps.
    """

    def __init__(self, planner: StepPlanner) -> None:
        self._planner = planner

    def take_out(
        self, plan: Plan, divisor: float, grads: Tensors
    ) -> tuple[FloatArray | None, bool]:
        """Remove the canaries from the gradient, or return what to subtract from the reading.

        Args:
            plan: the step's plan.
            divisor: divisor of the noisy sum at the time of the reading.
            grads: the noisy gradient, one tensor per parameter.

        Returns:
            The amount to subtract at each coordinate that is read, ``[n]``, None for nothing; and
            whether the gradient was changed.
        """
        return plan.amounts(divisor, self._planner.coordinates.size), False

    def clear(self, plan: Plan, sums: Tensors) -> None:
        """Remove the canaries from the clipped sums, which Opacus keeps after the step."""
        plan.clear(sums)

    def completed(self, plan: Plan, seen: Observation, drawn: FloatArray) -> Observation:
        """See `Plan.completed`."""
        return plan.completed(seen, drawn, self._planner.coordinates)

    def rows_of_data(self, rows: torch.Tensor | None, plan: Plan | None) -> torch.Tensor | None:
        """Return the rows of per-sample gradients without canaries; None if unknown."""
        return rows

    @property
    def oversize(self) -> float:
        """Norm of the canaries, in units of the clipping norm."""
        return self._planner.oversize

    def pass_blockers(self) -> list[str]:
        """Return what of these canaries prevents a pass, as text."""
        return []


# --- Canaries as rows that hand-written DP-SGD requests with `per_sample` or `rows`.

_SILENT = (
    "no canary could enter {silent} of {steps} steps: call grads = "
    "lightning_audit.per_sample(grads, module=net) once in each step before clipping, or "
    "lightning_audit.rows(module=net) in a loop over samples"
)


class HandedRows(GradientRows):
    """Canaries that the adapter holds after a step's code first requests them.

    A step that requests no canary is still read, so that too little noise is detected without any
    change to the training.
    """

    KEPT = ("silent",)

    def __init__(self, planner: StepPlanner) -> None:
        super().__init__(planner)
        #: Number of steps that requested no canary.
        self.silent = 0

    def clear(self, plan: Plan, sums: Tensors) -> None:
        """Do nothing: the sums are the user's."""

    def pass_blockers(self) -> list[str]:
        """Return a message if too many steps requested no canary."""
        steps = self._planner.recorder.steps
        if self.silent <= MAX_LOST * steps:
            return []
        return [_SILENT.format(silent=self.silent, steps=steps)]


# --- Input canary: one additional sample in the batch of every step.

_log = logging.getLogger(__name__)

#: Number of steps for which the norm of the canary's gradient is kept.
_KEPT_NORMS = 1000
#: Opacus' guard against dividing by a norm of zero.
_EPSILON = 1e-6


def join_batches(canaries: Sequence[Any], world_size: int, module: Any = None) -> bool:
    """Return whether the audit's canaries are samples that join batches.

    Args:
        canaries: the audit's canaries.
        world_size: number of processes.
        module: the trained module; None to check the other arguments only.

    Raises:
        UnauditableTraining: several processes, each with its own batch, or no function that gives
            the loss of a sample.
    """
    by_input = isinstance(canaries[0], InputCanary)
    if by_input and world_size > 1:
        raise UnauditableTraining(
            f"canaries={list(canaries)!r} would join the batch of each of the {world_size} "
            "processes; train in one process, or use gradient canaries."
        )
    if by_input and module is not None and canaries[0].loss is None and not has_forward(module):
        children = (name for name, child in module.named_children() if list(child.parameters()))
        net = next(children, "net")
        raise UnauditableTraining(
            f"{type(module).__name__} has no forward, which {type(canaries[0]).__name__} calls for "
            f"the loss of its sample: add `def forward(self, x): return self.{net}(x)`, or give "
            "the canary loss=, a function of (module, batch), and num_classes=."
        )
    return by_input


class InputSample(GradientRows):
    """A sample that joins the batch of each step whose coin is 1.

    Args:
        canary: makes the sample.
        planner: plans the steps.
        chooser: generator that chooses the record of which the sample is made. It is separate
            from the coins' generator: a resumed run draws a sample again, which must not shift
            its coins.
    """

    KEPT = ("_norms",)

    def __init__(
        self, canary: InputCanary, planner: StepPlanner, chooser: np.random.Generator
    ) -> None:
        super().__init__(planner)
        self._canary, self._chooser = canary, chooser
        #: The canary's sample is a record of the data and is not in checkpoints: a resumed run
        #: chooses another one.
        self._base: Sample | None = None
        self._made: Sample | None = None
        self._made_at = -1
        self._direction: DenseDirection | None = None
        #: Number of samples in batches since the coin was flipped.
        self._admitted = 0
        #: Index of the canary's row among them.
        self._canary_row = 0
        self._reading = math.nan
        #: Norms of the canary's gradient at the last steps, in units of the clipping norm.
        self._norms: list[float] = []

    # ------------------------------------------------------------------ the batch

    def lay_out(self, batch: Any, module: torch.nn.Module, plan: Plan) -> Any | None:
        """Return the batch of a new step, with the canary if its coin is 1.

        Args:
            batch: as the user's ``training_step`` would get it; not modified.
            module: the user's module.
            plan: with the step's coin.

        Returns:
            The batch; None if the canary's gradient is zero or not finite.

        Raises:
            UnauditableTraining: the canary needs more arguments for this kind of batch or module.
        """
        try:
            with undisturbed(module):
                sample = self._sample(batch, module)
                self._direction = self._own_direction(sample, module)
                # Made for either coin: whether a step counts must not depend on the coin.
                with_canary = appended(batch, sample)
        except ValueError as error:
            if raised_in_audit(error) and not isinstance(error, BadArgument):
                raise
            raise UnauditableTraining(f"{type(self._canary).__name__}: {error}") from error
        if self._direction is None:
            return None
        trained = with_canary if plan.coins.any() else batch
        self._admitted, self._canary_row = rows(trained), rows(batch)
        return trained

    def admit(self, batch: Any) -> None:
        """Count the samples of a further batch of the step."""
        self._admitted += self.rows_of(batch)

    def refuse_adaptive(self) -> None:
        """Raise `UnauditableTraining` if the clipping adapts, so that it cannot be taken out."""
        if hasattr(self._planner.step.optimizer, "_adjusted_noise_multiplier"):
            raise cannot_take_out([self._canary], "adaptive")

    def rows_of(self, batch: Any) -> int:
        """Return a batch's number of samples."""
        try:
            return rows(batch)
        except ValueError as error:
            raise UnauditableTraining(f"{type(self._canary).__name__}: {error}") from error

    def is_due(self) -> bool:
        """Return whether the canary may join the batch of the coming step."""
        planner, every = self._planner, self._planner.config.every_n_steps or 1
        number, broken = planner.recorder.steps, planner.recorder.clipping_is_broken
        return number % every == 0 and not broken and planner.layout_holds()

    def _sample(self, batch: Any, module: torch.nn.Module) -> Sample:
        """Return the canary's sample of this step."""
        canary = self._canary
        if self._base is None:
            row = int(self._chooser.integers(rows(batch)))
            self._base = sample_of(batch, row, canary.input, canary.label)
        every, step = canary.remade_every, self._planner.recorder.steps
        if self._made is None or (every is not None and step - self._made_at >= every):
            self._made = canary.made(module, self._base, batch, self._planner.step.params)
            self._made_at = step
        return canary.at_step(module, self._made)

    def _own_direction(self, sample: Sample, module: torch.nn.Module) -> DenseDirection | None:
        loss = loss_of(self._canary, module, sample.batch, sample)
        direction = own_direction(loss, self._planner.step.params)
        if direction is None:
            _log.warning(
                "the gradient of the canary is zero or not finite at step %d; with another "
                "amplitude than %g it may not be",
                self._planner.recorder.steps + 1,
                self._canary.amplitude,
            )
        return direction

    def lost_part(self) -> bool:
        """Return, before clipping, whether a batch of the step was dropped."""
        step = self._planner.step
        waiting = step.batch_size()
        split = any(total is not None for total in summed_by_opacus(step.params))
        return waiting is not None and waiting < self._admitted and not split

    # ------------------------------------------------------------------ after the noise

    def take_out(
        self, plan: Plan, divisor: float, grads: Tensors
    ) -> tuple[FloatArray | None, bool]:
        """Read the gradient along the canary's direction, and remove the canary."""
        direction = self._direction
        if plan.status != INJECTED or direction is None:
            return None, False
        limit = plan.claim.max_grad_norm
        self._reading = direction.product(grads) * divisor / limit
        self._norms = [*self._norms[1 - _KEPT_NORMS :], direction.norm / limit]
        if not plan.coins.any():
            return None, False
        # The amount must not depend on the reading: that would remove noise.
        direction.take_out(grads, _clipped(direction, limit) / divisor)
        return None, True

    def clear(self, plan: Plan, sums: Tensors) -> None:
        """Remove the canary from the clipped sums."""
        if self._direction is not None:
            self._direction.take_out(sums, _clipped(self._direction, plan.claim.max_grad_norm))

    def completed(self, plan: Plan, seen: Observation, drawn: FloatArray) -> Observation:
        """Add the reading along the direction, canary included; release the direction."""
        reading, self._reading, self._direction = self._reading, math.nan, None
        # Nothing is kept of a gradient that was replaced.
        own = [math.nan if np.isnan(drawn).all() else reading] if plan.status == INJECTED else [0.0]
        return super().completed(plan, seen, drawn).having(readings=np.array(own))

    def rows_of_data(self, rows: torch.Tensor | None, plan: Plan | None) -> torch.Tensor | None:
        """Return the rows of per-sample gradients without the canary's; None if unknown."""
        at = self._canary_row
        if rows is None or plan is None or not plan.coins.any() or len(rows) < self._admitted:
            return rows  # the canary was in an earlier part of the step, or in none
        if plan.status != INJECTED or len(rows) > self._admitted:
            return None
        return torch.cat([rows[:at], rows[at + 1 :]])

    @property
    def oversize(self) -> float:
        """10 % quantile of the canary's norm over the last steps, over the clipping norm."""
        return float(np.quantile(self._norms, 0.1)) if self._norms else 0.0


def refuse_other_clipping(step: DPSGDStep, canaries: Sequence[object]) -> None:
    """Raise if the norm of a clipped input canary cannot be computed in advance.

    Raises:
        UnauditableTraining: per-layer or adaptive clipping.
    """
    if any(slot.clip_share is not None for slot in step.layout):
        raise cannot_take_out(canaries, "per-layer")
    if step.adapts_its_norm:
        raise cannot_take_out(canaries, "adaptive")


def cannot_take_out(canaries: Sequence[object], clipping: str) -> UnauditableTraining:
    """Return the refusal of an input canary under a kind of clipping."""
    return UnauditableTraining(
        f"canaries={list(canaries)!r} cannot be taken out again under {clipping} clipping; use "
        "gradient canaries, such as Dirac()."
    )


def _clipped(direction: DenseDirection, limit: float) -> float:
    """Return the norm of the canary's clipped gradient."""
    return direction.norm * min(1.0, limit / (direction.norm + _EPSILON))
