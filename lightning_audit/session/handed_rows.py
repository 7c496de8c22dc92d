"""Canaries as rows that hand-written DP-SGD requests with `per_sample` or `rows`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lightning_audit.layout import FloatArray
from lightning_audit.record.store import INJECTED, NOT_PLANNED
from lightning_audit.session.canary_source import CanarySource, Tensors
from lightning_audit.session.reading_way import HandWrittenReading
from lightning_audit.session.step_planner import FULL_STEPS, THINNED, StepPlanner
from lightning_audit.session.steps import PlannedStep
from lightning_audit.verdict.pass_blockers import MAX_LOST

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
