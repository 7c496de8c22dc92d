"""Interface of a session's canary source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.dpsgd.protocol import Backward
from lightning_audit.layout import FloatArray
from lightning_audit.record.kept import Kept
from lightning_audit.session.steps import PlannedStep

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
