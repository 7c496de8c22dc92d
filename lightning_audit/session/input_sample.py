"""An input canary: one more sample in the batch of every step.

The direction of a step is the canary's own gradient at the present weights. It is known before the
coin is used, from an extra pass, and is read over all trained parameters.
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
from lightning_audit.examine.own_gradient import DenseDirection, own_direction, undisturbed
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import DROPPED, INJECTED, NOT_PLANNED
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.session.canary_source import CanarySource, Tensors
from lightning_audit.session.reading_way import ReadingWay
from lightning_audit.session.step_planner import StepPlanner
from lightning_audit.session.steps import PlannedStep
from lightning_audit.taps.boundary import raised_in_audit

_log = logging.getLogger(__name__)

#: Steps of which the norm of the canary's gradient is kept.
_KEPT_NORMS = 1000
#: Opacus' guard against dividing by a norm of zero.
_EPSILON = 1e-6


def join_batches(canaries: Sequence[Any], world_size: int, module: Any = None) -> bool:
    """Whether canaries join batches.

    Args:
        canaries: of the audit.
        world_size: number of processes.
        module: that is trained; None to look at the other two alone.

    Raises:
        UnauditableTraining: several processes, each with a batch of its own, or nothing that gives
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
    """A sample that joins the batch of every step if its coin says so.

    Args:
        canary: makes the sample.
        planner: plans the steps.
        way: how the steps are read.
        chooser: chooses the record that the sample is made of. It is a generator of its own: a
            resumed run draws a sample again, which must not shift its coins.
    """

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
        #: The canary's sample, a record of the data, is in no checkpoint: a run goes on with
        #: another one.
        self._base: Sample | None = None
        self._made: Sample | None = None
        self._made_at = -1
        self._direction: DenseDirection | None = None
        #: Samples of the batches that were trained on since the coin was flipped.
        self._admitted = 0
        #: Number of the canary's row among them.
        self._canary_row = 0
        self._reading = math.nan
        #: Norm of the canary's gradient over the clipping norm, of the last steps.
        self._norms: list[float] = []

    # ------------------------------------------------------------------ the batch

    def admit(self, batch: Any, module: torch.nn.Module) -> Any:
        """Flip the coin of the coming step at its first batch; the batch with the canary or not.

        Args:
            batch: as the user's ``training_step`` would see it; it is left as it is.
            module: the user's module.

        Raises:
            UnauditableTraining: the batch or the module is of a kind for which the canary
                must be told more.
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
        except ValueError:  # said where the claim is read again
            return batch
        if not self._rows(batch):  # a training may skip empty batches, but not one with a canary
            planner.plan = planner.without_canary(claim)
            return batch
        plan = planner.flip(claim)
        try:
            with undisturbed(module):
                sample = self._sample(batch, module)
                self._direction = self._own_direction(sample, module)
                # Made whatever the coin: whether a step counts must not depend on it.
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
        planner.plan = plan  # last: from here on the canary counts as being in the batch
        return trained

    def skip(self) -> None:
        """Forget a planned step that is not taken."""
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
            # Where the gradient is read must be known before a canary is in it.
            self._way.is_sure
            and planner.recorder.steps % every == 0
            and not planner.recorder.clipping_is_broken
            and planner.layout_holds()
        )

    def _sample(self, batch: Any, module: torch.nn.Module) -> Sample:
        """The canary of this step."""
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
                self._planner.recorder.steps,
                self._canary.amplitude,
            )
        return direction

    # ------------------------------------------------------------------ before clipping

    def inject(self) -> None:
        """Hold the step to the plan that was made with its batch; it was counted by then."""
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
        """The plan that was made with the batch, if no batch was dropped since."""
        plan, step = self._planner.plan, self._planner.step
        waiting = step.batch_size()
        split = any(getattr(p, "summed_grad", None) is not None for p in step.params)
        if plan is not None and waiting is not None and waiting < self._admitted and not split:
            return replace(plan, status=DROPPED)
        return plan

    def is_late(self) -> bool:
        """Nothing is late: the canary is in the batch."""
        self._planner.claim_again()
        return False

    def unplanned(self) -> PlannedStep:
        """For a step that no batch announced, such as the second one of a ``training_step``."""
        return self._planner.empty(NOT_PLANNED)

    # ------------------------------------------------------------------ behind the noise

    def take_out(self, plan: PlannedStep, divisor: float, grads: Tensors) -> FloatArray | None:
        """Read the gradient along the canary's direction, and take the canary out."""
        direction = self._direction
        if plan.status != INJECTED or direction is None:
            return None
        limit = plan.claim.max_grad_norm
        self._reading = direction.product(grads) * divisor / limit
        self._norms = [*self._norms[1 - _KEPT_NORMS :], direction.norm / limit]
        if plan.coins.any():
            # Never a function of what was read: that would take noise out.
            direction.take_out(grads, _clipped(direction, limit) / divisor)
            self._way.tap.taken_out = True
        return None

    def clear(self, plan: PlannedStep, sums: Tensors) -> None:
        """Take the canary out of the clipped sums."""
        if self._direction is not None:
            self._direction.take_out(sums, _clipped(self._direction, plan.claim.max_grad_norm))

    def end_step(
        self, plan: PlannedStep, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """The inner product with the canary's direction, the canary included; both are let go."""
        reading, self._reading, self._direction = self._reading, math.nan, None
        if plan.status != INJECTED:
            return np.zeros(1)
        # Of a gradient that was replaced nothing is kept.
        return np.array([math.nan if np.isnan(values).all() else reading])

    def rows_of_data(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Rows of per-sample gradients without the canary's; None where that is not known."""
        plan, at = self._planner.plan, self._canary_row
        if rows is None or plan is None or not plan.coins.any() or len(rows) < self._admitted:
            return rows  # the canary was in an earlier part of the step, or in none
        if plan.status != INJECTED or len(rows) > self._admitted:
            return None
        return torch.cat([rows[:at], rows[at + 1 :]])

    # ------------------------------------------------------------------ the run

    @property
    def oversize(self) -> float:
        """Norm of the canary over the clipping norm, of nine steps in ten at least that."""
        return float(np.quantile(self._norms, 0.1)) if self._norms else 0.0

    def state(self) -> dict[str, Any]:
        """The norms of the canary's gradient."""
        return {"norms": list(self._norms)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self._norms = list(state["norms"])


def refuse_other_clipping(step: DPSGDStep, canaries: Sequence[object]) -> None:
    """Raise where it is not known beforehand what clipping makes of an input canary.

    Raises:
        UnauditableTraining: per-layer or adaptive clipping.
    """
    if any(slot.clip_share is not None for slot in step.layout):
        raise cannot_take_out(canaries, "per-layer")
    if step.adapts_its_norm:
        raise cannot_take_out(canaries, "adaptive")


def cannot_take_out(canaries: Sequence[object], clipping: str) -> UnauditableTraining:
    """The refusal of an input canary under a way of clipping."""
    return UnauditableTraining(
        f"canaries={list(canaries)!r} cannot be taken out again under {clipping} clipping; use "
        "gradient canaries, such as Dirac()."
    )


def _clipped(direction: DenseDirection, limit: float) -> float:
    """Norm of the canary's gradient once it is clipped."""
    return direction.norm * min(1.0, limit / (direction.norm + _EPSILON))
