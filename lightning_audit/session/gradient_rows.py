"""Canaries as rows of the per-sample gradients that Opacus' optimizers clip."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lightning_audit.dpsgd.protocol import Backward, CannotEnter, StepClaim
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import DROPPED, INJECTED
from lightning_audit.session.canary_source import CanarySource, Tensors
from lightning_audit.session.step_planner import StepPlanner
from lightning_audit.session.steps import PlannedStep

_log = logging.getLogger(__name__)

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
        if planner.plan is None and self._may_inject():
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
