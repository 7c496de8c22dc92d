"""Where canaries enter a step: rows of gradients, rows handed over, a sample of the batch.

**Input canary: one additional sample in the batch of every step.** A step's direction is the
gradient of the canary's loss at the current weights. An extra backward pass computes it before the
coin is used; the reading covers all trained parameters.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
from lightning_audit.dpsgd.protocol import Backward, CannotEnter, DPSGDStep, StepClaim
from lightning_audit.hooks.boundary import raised_in_audit
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import DROPPED, INJECTED, NOT_PLANNED, Kept
from lightning_audit.replay.clipping import DenseDirection, own_direction, undisturbed
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.session.planner import FULL_STEPS, THINNED, StepPlanner
from lightning_audit.session.reading import HandWrittenReading, ReadingWay
from lightning_audit.session.step import PlannedStep
from lightning_audit.verdict.judge import MAX_LOST

# --- Interface of a session's canary source.

Tensors = Sequence[torch.Tensor | None]


class CanarySource(Kept):
    """Base class of canary sources; subclasses override the hooks that they need."""

    # ------------------------------------------------------------------ before clipping

    def start_batch(self) -> None:
        """Called before a batch is trained on."""

    def prepare(self, coming: Backward) -> None:
        """Prepare the canaries' rows before a backward pass, if possible."""

    def conceal(self) -> None:
        """Hide the prepared rows from user code after a backward pass, until `inject`."""

    def inject(self) -> None:
        """Insert the canaries of the step, before clipping."""

    def inject_part(self) -> None:
        """Called before a part of a split batch is clipped, except for the last part."""

    def is_late(self) -> bool:
        """Return, just before clipping, whether an unannounced step still needs `inject`."""
        return False

    def end_part(self) -> None:
        """Remove any canary from the gradients of a part of a split batch that was clipped."""

    def unplanned(self) -> PlannedStep:
        """Return a plan for a step without one: its probe coordinates are read anyway."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Remove the canaries from a batch that is not completed."""

    def retract(self, *, behind: bool) -> None:
        """Remove, after the audit has failed, the canaries of a step that is not summed yet.

        The planner keeps the plan of a step whose canaries are in its sums.

        Args:
            behind: whether the noise of the current step was added.
        """

    # ------------------------------------------------------------------ after the noise

    def take_out(self, plan: PlannedStep, divisor: float, grads: Tensors) -> FloatArray | None:
        """Remove the canaries from the gradient, or return what to subtract from the reading.

        Args:
            plan: the step's plan.
            divisor: divisor of the noisy sum at the time of the reading.
            grads: the noisy gradient, one tensor per parameter.

        Returns:
            The amount to subtract at each coordinate that is read, ``[n]``; None for nothing.
        """
        raise NotImplementedError

    def clear(self, plan: PlannedStep, sums: Tensors) -> None:
        """Remove the canaries from the clipped sums, which Opacus keeps after the step."""

    def end_step(
        self, plan: PlannedStep, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """Return, after the update, inner products with the canaries' directions, ``[k]``.

        The removed canaries count as part of the gradient.

        Args:
            plan: the step's plan.
            values: the reading without canaries, in units of the clipping norm, ``[n]``.
            dead: which entries were exactly zero, ``[n]``; None if none was.
        """
        raise NotImplementedError

    def rows_of_data(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Return the rows of per-sample gradients without canaries; None if unknown."""
        return rows

    # ------------------------------------------------------------------ the run

    @property
    def oversize(self) -> float:
        """Norm of the canaries, in units of the clipping norm."""
        raise NotImplementedError

    def pass_blockers(self) -> list[str]:
        """Return what of this source prevents a pass, as text."""
        return []


# --- Canaries as rows of the per-sample gradients that Opacus' optimizers clip.

_UNANNOUNCED = (
    "the optimizer was stepped without Lightning's on_before_optimizer_step, so no canary could "
    "enter; in manual optimization step what self.optimizers() returns"
)
#: Probability that canaries enter the last part of a split batch; otherwise any of the others.
_LAST = 0.5
#: Index of the step's random generator that chooses a part.
_PART = 4


class GradientRows(CanarySource):
    """Source of rows that are prepared before the backward pass if possible, else appended.

    Args:
        planner: plans the steps.
    """

    def __init__(self, planner: StepPlanner) -> None:
        self._planner = planner
        #: Plan of the coming step, if its canaries are in an earlier part of a split batch.
        self._earlier: PlannedStep | None = None
        self._parts, self._part_announced = PartChoice(), False

    # ------------------------------------------------------------------ before clipping

    def start_batch(self) -> None:
        """Discard a step that was not completed: a new batch starts a new step."""
        self._planner.withdraw()

    def prepare(self, coming: Backward) -> None:
        """Prepare the canaries' rows before a backward pass, if possible."""
        planner, again = self._planner, self._runs_again
        if planner.plan is not None and not planner.plan.prepared and not again:
            planner.withdraw()  # the optimizer never took the earlier step
        if again is None and (planner.plan is not None or not self._may_inject()):
            return
        if again is None and not planner.is_due(free=True):
            return
        # Coins are flipped only if they are used, so that a seed gives the same record whether
        # rows are copied or not.
        if obstacle := planner.step.obstacle(coming):
            planner.note(obstacle)
            planner.copied = True
            return
        try:
            claim = planner.claim(accumulated=1)
        except ValueError:  # `inject` reports it
            return
        plan = again or planner.flip(claim)
        planner.step.prepare(plan.rows, planner.norm(claim))
        planner.plan = replace(plan, prepared=True)

    def conceal(self) -> None:
        """Hide the prepared rows from user code after a backward pass, until `inject`."""
        plan = self._planner.plan
        if plan is not None and plan.prepared:
            self._planner.step.conceal()

    def inject(self) -> None:
        """Insert the prepared rows, or append rows if none were prepared."""
        planner = self._planner
        self._parts.ended()
        meant = self._meant_earlier  # before the optimizer clears its skip signal
        if self._runs_again is not None:
            self._inject_again()
            return
        plan, self._earlier = self._earlier, None
        planner.plan = plan or self._confirmed()
        planner.count_batch()
        if planner.plan is None:
            claim = planner.claim_now()
            if claim is None:
                return
            planner.plan = self._late(claim)
        if meant:
            planner.plan = replace(planner.plan, meant=True)
        planner.entered = planner.plan

    def inject_part(self) -> None:
        """Insert the canaries into a non-final part of a split batch, if it was chosen."""
        self._planner.count_part()
        if self._may_inject():
            plan = self._confirmed()
            if plan is None:
                with contextlib.suppress(ValueError):  # reported at the end of the step
                    plan = self._late(self._planner.claim())
            if plan is not None and plan.status == INJECTED:
                self._earlier = replace(plan, earlier=True)
        self._parts.passed()
        self._part_announced = True

    def is_late(self) -> bool:
        """Return, just before clipping, whether an unannounced step still needs `inject`."""
        planner = self._planner
        announced, self._part_announced = self._part_announced, False
        if announced and not planner.step.final_step_of_batch():
            return False
        if planner.plan is None and self._may_inject() and not planner.copied:
            planner.note(planner.step.obstacle(Backward(None, announced=False)))
        if planner.plan is None or planner.plan.prepared:
            return True
        planner.claim_again()
        return False

    def end_part(self) -> None:
        """Remove any canary from the gradients of a part of a split batch that was clipped."""
        if self._planner.plan is None:
            self._planner.step.withdraw()

    def give_up(self) -> None:
        """Remove the canaries from the sum of a split batch that is not completed."""
        plan, self._earlier = self._earlier, None
        if plan is not None:
            plan.take_out([getattr(p, "summed_grad", None) for p in self._planner.step.params])

    def retract(self, *, behind: bool) -> None:
        """Remove the rows, or the canaries that an earlier part of the batch has summed."""
        planner = self._planner
        plan, waits = self._earlier or planner.plan, planner.step.withdraw()
        if plan is not None and (plan.status != INJECTED or plan.prepared or waits):
            plan = None
        if plan is not None and plan.earlier and not behind:
            plan.take_out([getattr(p, "summed_grad", None) for p in planner.step.params])
            plan = None
        planner.plan, planner.entered, self._earlier = plan, None, None

    def unplanned(self) -> PlannedStep:
        """Return a plan for a step without `inject`: its probe coordinates are read anyway."""
        if self._planner.changed_at is None:
            self._planner.note(_UNANNOUNCED)
        return self._planner.empty(DROPPED)

    @property
    def _runs_again(self) -> PlannedStep | None:
        """Plan of a step whose closure runs again before the optimizer takes the step.

        Optimizers that mix gradients at several points do this. The coins do not change: each of
        the step's gradients, and any mixture of them, contains the same canaries.
        """
        entered = self._planner.entered
        return entered if entered is not None and entered.status == INJECTED else None

    def _inject_again(self) -> None:
        """Insert a step's canaries into the gradients of a closure that ran again."""
        planner, step = self._planner, self._planner.step
        plan = planner.plan
        if plan is not None and plan.prepared:
            planner.plan = plan = replace(plan, prepared=False)
            if step.confirm():
                return
        # The closure of manual optimization computes nothing: then there is nothing to do.
        computed = not step.holds_canaries() and step.batch_size() is not None
        if plan is not None and computed:
            try:
                step.inject(plan.rows, planner.norm(plan.claim))
            except CannotEnter as error:
                planner.note(f"no canary entered a step: {error}")
                planner.plan = replace(plan, status=DROPPED)

    def _late(self, claim: StepClaim) -> PlannedStep:
        """Plan a step after its backward passes, and insert its canaries."""
        planner = self._planner
        if not planner.is_due(free=False) or planner.recorder.clipping_is_broken:
            return planner.without_canary(claim)
        number, plan, part = planner.recorder.steps, planner.flip(claim), -1
        if claim.accumulated > 1 and self._parts_are_equal:
            part = draw_part(claim.accumulated, planner.rng)
            plan = replace(plan, earlier=part >= 0, meant=part >= 0)
        try:
            # Even if no coin is 1: whether a step counts must not depend on its coins.
            planner.step.inject(plan.rows, planner.norm(claim), part)
        except CannotEnter as error:
            if planner.note(f"no canary entered a step: {error}"):
                _log.warning("no canary entered step %d: %s", number + 1, error)
            plan = replace(plan, status=DROPPED)
        return plan

    def _confirmed(self) -> PlannedStep | None:
        """Return the plan of the prepared rows, if they are in the step's gradients."""
        planner, plan = self._planner, self._planner.plan
        if plan is None or not plan.prepared:
            planner.withdraw()
            return None
        planner.plan = None
        entered = replace(plan, prepared=False, first=self._parts_are_equal)
        # If not, another backward pass ran, or its gradients were dropped.
        return entered if planner.step.confirm() else None

    def _may_inject(self) -> bool:
        """Return whether canaries may enter the part of the batch that is clipped next."""
        planner = self._planner
        chosen = self._earlier is None and (
            planner.step.final_step_of_batch()
            or (self._parts_are_equal and self._parts.chosen(planner.chance(_PART)))
        )
        return chosen and planner.layout_holds() and not planner.recorder.clipping_is_broken

    @property
    def _meant_earlier(self) -> bool:
        """Whether the canaries were drawn to enter an earlier part, if the batch has several.

        The record stores this, not the part that they entered, which would reveal the number of
        parts and so, roughly, the batch size.
        """
        splits = self._parts_are_equal and self._planner.step.splits_batches()
        return splits and draw_part(self._parts.usual, self._planner.chance(_PART)) >= 0

    @property
    def _parts_are_equal(self) -> bool:
        """Whether canaries may enter any part of a step.

        Not with several processes, which do not know each other's parts. Not under adaptive
        clipping, which may clip an earlier part to another norm than the step's.
        """
        return not (self._planner.ranks.several or self._planner.step.adapts_its_norm)

    # ------------------------------------------------------------------ after the noise

    def take_out(self, plan: PlannedStep, divisor: float, grads: Tensors) -> FloatArray | None:
        """Return the canaries' contribution to the gradient under the claim, per coordinate."""
        return plan.amounts(divisor, self._planner.coordinates.size)

    def clear(self, plan: PlannedStep, sums: Tensors) -> None:
        """Remove the canaries that this process added from the clipped sums."""
        plan.take_out(sums)

    def end_step(
        self, plan: PlannedStep, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """See `PlannedStep.readings`."""
        return plan.readings(values, dead)

    # ------------------------------------------------------------------ the run

    @property
    def oversize(self) -> float:
        """Norm of the canaries, in units of the clipping norm."""
        return self._planner.oversize


class PartChoice:
    """Random choice of a part of a split batch whose number of parts is not yet known.

    A batch memory manager signals only whether more parts follow. The number of parts of the last
    split step is used; if the present step has fewer, its last part is entered.
    """

    def __init__(self) -> None:
        #: Number of parts of the last step that had several.
        self.usual = 2
        self._passed = 0
        self._target: int | None = None

    def chosen(self, rng: np.random.Generator) -> bool:
        """Return whether the canaries enter the present part, which is not the last."""
        if self._target is None:
            self._target = draw_part(self.usual, rng)
        return self._passed == self._target

    def passed(self) -> None:
        """Count a part that is followed by another."""
        self._passed += 1

    def ended(self) -> None:
        """Reset at the last part."""
        if self._passed:
            self.usual = self._passed + 1
        self._passed, self._target = 0, None


def draw_part(parts: int, rng: np.random.Generator) -> int:
    """Draw the index of the part to enter; -1 for the last one.

    Args:
        parts: number of parts, at least 2.
        rng: the audit's own generator.
    """
    return -1 if rng.random() < _LAST else int(rng.integers(parts - 1))


# --- Canaries as rows that hand-written DP-SGD requests with `per_sample` or `rows`.

_THINNED = (
    f"canaries entered each of the first {FULL_STEPS} steps and every {THINNED}th later, since "
    "per-sample gradients are copied for them; set every_n_steps=1 to insert them at every step"
)
_SILENT = (
    "no canary could enter {silent} of {steps} steps: call grads = "
    "lightning_audit.per_sample(grads, module=self) once in each step before clipping, or "
    "lightning_audit.rows(module=self) in a loop over samples"
)


class HandedRows(CanarySource):
    """Source of rows that the adapter holds after a step's code first requests them.

    A step that requests no canary is still read, so that too little noise is detected without any
    change to the training.

    Args:
        planner: plans the steps.
        way: reads the gradients.
    """

    KEPT = ("_silent",)

    def __init__(self, planner: StepPlanner, way: HandWrittenReading) -> None:
        self._planner = planner
        self._way = way
        #: Number of steps that requested no canary.
        self._silent = 0
        #: Whether the step's code has requested canaries.
        self._asked = False
        #: Whether the step's code has received its canaries.
        self.handed = False

    def enter(self) -> bool:
        """Plan the step on its first request; return whether it gets canaries."""
        planner = self._planner
        self._asked = True
        if planner.plan is not None or self._way.tap.inside_step or not planner.layout_holds():
            return False
        if self._way.tap.trial:
            planner.plan = replace(planner.empty(NOT_PLANNED), asked=True)
            return False
        claim, broken = planner.claim(), planner.recorder.clipping_is_broken
        if broken or not planner.is_due(free=False):
            plan = planner.without_canary(claim)
        else:
            plan = planner.flip(claim)
            planner.step.inject(plan.rows, planner.norm(claim))
        planner.plan = replace(plan, asked=True)
        thinned = planner.config.every_n_steps is None and planner.canary_steps >= FULL_STEPS
        if thinned and not broken:
            planner.note(_THINNED)
        return plan.status == INJECTED

    def retract(self, *, behind: bool) -> None:
        """Drop rows not yet handed over; the training's code has the others in its sums."""
        self._planner.step.withdraw()
        if not self.handed:
            self._planner.plan = None

    def unplanned(self) -> PlannedStep:
        """Return the plan of a step whose code requested no canary."""
        self._silent += self._planner.changed_at is None and not self._asked
        return self._planner.empty(NOT_PLANNED)

    def take_out(self, plan: PlannedStep, divisor: float, grads: Tensors) -> FloatArray | None:
        """Return the canaries' contribution to the gradient under the claim, per coordinate."""
        return plan.amounts(divisor, self._planner.coordinates.size)

    def end_step(
        self, plan: PlannedStep, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """Reset for the next step, and return `PlannedStep.readings`."""
        self._asked = self.handed = False
        self._planner.rows_handed += self._planner.step.samples  # type: ignore[attr-defined]
        return plan.readings(values, dead)

    @property
    def oversize(self) -> float:
        """Norm of the canaries, in units of the clipping norm."""
        return self._planner.oversize

    def pass_blockers(self) -> list[str]:
        """Return a message if too many steps requested no canary."""
        steps = self._planner.recorder.steps
        if self._silent <= MAX_LOST * steps:
            return []
        return [_SILENT.format(silent=self._silent, steps=steps)]


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
            "processes; train in one process (Lightning: devices=1), or use gradient canaries."
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
