"""Input canary: one additional sample in the batch of every step.

A step's direction is the gradient of the canary's loss at the current weights. An extra backward
pass computes it before the coin is used; the reading covers all trained parameters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit._validate import BadArgument
from lightning_audit.canaries.inputs import InputCanary, has_forward, loss_of
from lightning_audit.canaries.sample_batches import Sample, appended, rows, sample_of
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import DROPPED, INJECTED, NOT_PLANNED
from lightning_audit.replay.questions.own_gradient import DenseDirection, own_direction, undisturbed
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.session.canary_source import CanarySource, Tensors
from lightning_audit.session.reading_way import ReadingWay
from lightning_audit.session.step_planner import StepPlanner
from lightning_audit.session.steps import PlannedStep
from lightning_audit.taps.boundary import raised_in_audit

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
            "processes; train with devices=1, or use gradient canaries."
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


class InputSample(CanarySource):
    """Source of a sample that joins the batch of each step whose coin is 1.

    Args:
        canary: makes the sample.
        planner: plans the steps.
        way: reads the gradients.
        chooser: generator that chooses the record of which the sample is made. It is separate
            from the coins' generator: a resumed run draws a sample again, which must not shift
            its coins.
    """

    KEPT = ("_norms",)

    def __init__(
        self,
        canary: InputCanary,
        planner: StepPlanner,
        way: ReadingWay,
        chooser: np.random.Generator,
    ) -> None:
        self._canary = canary
        self._planner = planner
        self._way = way
        self._chooser = chooser
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

    def admit(self, batch: Any, module: torch.nn.Module) -> Any:
        """Flip the step's coin at its first batch; return the batch, with the canary if it is 1.

        Args:
            batch: as the user's ``training_step`` would get it; not modified.
            module: the user's module.

        Raises:
            UnauditableTraining: the canary needs more arguments for this kind of batch or module.
        """
        planner = self._planner
        if planner.plan is not None:
            self._admitted += self._rows(batch)
            return batch
        if not self._is_due():
            return batch
        if hasattr(planner.step.optimizer, "_adjusted_noise_multiplier"):
            raise cannot_take_out([self._canary], "adaptive")
        try:
            claim = planner.claim(accumulated=1)
        except ValueError:  # reported when the claim is read again
            return batch
        if not self._rows(batch):  # a training may skip empty batches, but not one with a canary
            planner.plan = planner.without_canary(claim)
            return batch
        plan = planner.flip(claim)
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
            planner.plan = planner.without_canary(claim, DROPPED)
            return batch
        trained = with_canary if plan.coins.any() else batch
        self._admitted, self._canary_row = rows(trained), rows(batch)
        planner.plan = plan  # last: from here on the canary counts as part of the batch
        return trained

    def skip(self) -> None:
        """Discard a planned step that is not taken."""
        self._planner.withdraw()

    def _rows(self, batch: Any) -> int:
        try:
            return rows(batch)
        except ValueError as error:
            raise UnauditableTraining(f"{type(self._canary).__name__}: {error}") from error

    def _is_due(self) -> bool:
        planner = self._planner
        every = planner.config.every_n_steps or 1
        return (
            # The place of the reading must be known before a canary is inserted.
            self._way.is_sure
            and planner.recorder.steps % every == 0
            and not planner.recorder.clipping_is_broken
            and planner.layout_holds()
        )

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

    # ------------------------------------------------------------------ before clipping

    def inject(self) -> None:
        """Confirm the plan that was made with the batch."""
        planner = self._planner
        entered = planner.entered
        if entered is not None and entered.status == INJECTED:
            return  # the closure runs again, on the same batch
        planner.plan = self._confirmed()
        planner.count_batch()
        if planner.plan is None:
            claim = planner.claim_now()
            if claim is None:
                return
            planner.plan = planner.without_canary(claim)
        planner.entered = planner.plan

    def _confirmed(self) -> PlannedStep | None:
        """Return the plan made with the batch; its status is DROPPED if a batch was dropped."""
        plan, step = self._planner.plan, self._planner.step
        waiting = step.batch_size()
        split = any(getattr(p, "summed_grad", None) is not None for p in step.params)
        if plan is not None and waiting is not None and waiting < self._admitted and not split:
            return replace(plan, status=DROPPED)
        return plan

    def is_late(self) -> bool:
        """Read the claim again; return False, as the canary is in the batch already."""
        self._planner.claim_again()
        return False

    def unplanned(self) -> PlannedStep:
        """Return the plan of a step without a batch, as the second one of a ``training_step``."""
        return self._planner.empty(NOT_PLANNED)

    # ------------------------------------------------------------------ after the noise

    def take_out(self, plan: PlannedStep, divisor: float, grads: Tensors) -> FloatArray | None:
        """Read the gradient along the canary's direction, and remove the canary."""
        direction = self._direction
        if plan.status != INJECTED or direction is None:
            return None
        limit = plan.claim.max_grad_norm
        self._reading = direction.product(grads) * divisor / limit
        self._norms = [*self._norms[1 - _KEPT_NORMS :], direction.norm / limit]
        if plan.coins.any():
            # The amount must not depend on the reading: that would remove noise.
            direction.take_out(grads, _clipped(direction, limit) / divisor)
            self._way.tap.taken_out = True
        return None

    def clear(self, plan: PlannedStep, sums: Tensors) -> None:
        """Remove the canary from the clipped sums."""
        if self._direction is not None:
            self._direction.take_out(sums, _clipped(self._direction, plan.claim.max_grad_norm))

    def end_step(
        self, plan: PlannedStep, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """Return the reading along the direction, canary included; release the direction."""
        reading, self._reading, self._direction = self._reading, math.nan, None
        if plan.status != INJECTED:
            return np.zeros(1)
        # Nothing is kept of a gradient that was replaced.
        return np.array([math.nan if np.isnan(values).all() else reading])

    def rows_of_data(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Return the rows of per-sample gradients without the canary's; None if unknown."""
        plan, at = self._planner.plan, self._canary_row
        if rows is None or plan is None or not plan.coins.any() or len(rows) < self._admitted:
            return rows  # the canary was in an earlier part of the step, or in none
        if plan.status != INJECTED or len(rows) > self._admitted:
            return None
        return torch.cat([rows[:at], rows[at + 1 :]])

    # ------------------------------------------------------------------ the run

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
