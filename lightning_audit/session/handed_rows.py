"""Canaries as rows that the code of a hand-written DP-SGD asks for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    "per-sample gradients are copied for them; every_n_steps=1 has them enter every step"
)
_SILENT = (
    "no canary could enter {silent} of {steps} steps: call grads = "
    "lightning_audit.per_sample(grads, module=self) once in each step before clipping, or "
    "lightning_audit.rows(module=self) in a loop over samples"
)


class HandedRows(CanarySource):
    """Rows that wait in the adapter, from the first time that a step's code asks for them.

    A step that asks for no canary is read all the same, so that too little noise is found without
    any change to the training.

    Args:
        planner: plans the steps.
        way: how the steps are read.
    """

    def __init__(self, planner: StepPlanner, way: HandWrittenReading) -> None:
        self._planner = planner
        self._way = way
        #: Steps that asked for no canary.
        self._silent = 0
        #: Whether the step's code has asked for canaries.
        self._asked = False
        #: Whether the step's code has been given its canaries.
        self.handed = False

    def enter(self) -> bool:
        """Plan the coming step; whether canaries are in it, and this is the first to ask."""
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
        """Hand over no row that waits; those that the training's code has are in its sums."""
        self._planner.step.withdraw()
        if not self.handed:
            self._planner.plan = None

    def unplanned(self) -> PlannedStep:
        """For a step whose code has asked for no canary."""
        self._silent += self._planner.changed_at is None and not self._asked
        return self._planner.empty(NOT_PLANNED)

    def take_out(self, plan: PlannedStep, divisor: float, grads: Tensors) -> FloatArray | None:
        """What the canaries that are in add to the gradient under the claim, by coordinate."""
        return plan.amounts(divisor, self._planner.coordinates.size)

    def end_step(
        self, plan: PlannedStep, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """See `PlannedStep.readings`; the coming step's code has not asked yet."""
        self._asked = self.handed = False
        return plan.readings(values, dead)

    @property
    def oversize(self) -> float:
        """Norm of the canaries over the clipping norm."""
        return self._planner.oversize

    def pass_blockers(self) -> list[str]:
        """Whether too many steps asked for no canary."""
        steps = self._planner.recorder.steps
        if self._silent <= MAX_LOST * steps:
            return []
        return [_SILENT.format(silent=self._silent, steps=steps)]

    def state(self) -> dict[str, Any]:
        """The number of steps that asked for no canary."""
        return {"silent": self._silent}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self._silent = state["silent"]
