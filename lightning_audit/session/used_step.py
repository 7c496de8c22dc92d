"""What was made of a step's release, along its canaries' directions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lightning_audit.layout import FloatArray
from lightning_audit.record.store import INJECTED
from lightning_audit.session.coordinates import Coordinates
from lightning_audit.session.step_plan import StepPlan
from lightning_audit.taps.gradient_tap import Reading


@dataclass(frozen=True)
class UsedStep:
    """What was made of a step's release, along the canaries' directions, in any unit, ``[k]``.

    Args:
        rest: the release itself, canaries taken out.
        used: the gradient when the update was done; None if it is the release.
        moved: minus the change of the weights; None if it was not watched.
    """

    rest: FloatArray
    used: FloatArray | None
    moved: FloatArray | None


def used_step(plan: StepPlan, reading: Reading, coordinates: Coordinates) -> UsedStep | None:
    """What a step's update used, in units of its own size; None where no canary was in it.

    Args:
        plan: of the step.
        reading: of its gradient.
        coordinates: of what was read.
    """
    located = plan.located
    if plan.status != INJECTED or located is None or reading.replaced:
        return None
    count, moves = len(plan.coins), reading.moves

    def along(values: FloatArray | None) -> FloatArray | None:
        if values is None:
            return None
        size = float(np.sqrt(np.mean(values[coordinates.witness_at] ** 2)))
        if not math.isfinite(size) or size == 0.0:
            return None
        return located.products(values, count) / size

    rest = along(reading.values)
    if rest is None:
        return None
    moved = None if moves is None else along(-moves.update)
    return UsedStep(rest, along(reading.used), moved)
