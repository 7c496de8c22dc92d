"""What a session asks of the source of its canaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.dpsgd.protocol import Backward
from lightning_audit.layout import FloatArray
from lightning_audit.session.steps import PlannedStep

Tensors = Sequence[torch.Tensor | None]


class CanarySource:
    """Where a session's canaries come from; a source overrides what it takes part in."""

    # ------------------------------------------------------------------ before clipping

    def start_batch(self) -> None:
        """A batch is trained on from now on."""

    def prepare(self, coming: Backward) -> None:
        """Before a backward pass: lay the canaries out, where that is possible."""

    def conceal(self) -> None:
        """After a backward pass: what was laid out is seen by nobody until it is put in."""

    def inject(self) -> None:
        """Before clipping: put the canaries of the step in."""

    def inject_part(self) -> None:
        """Before a part of a split batch is clipped that is not the last."""

    def is_late(self) -> bool:
        """Just before clipping: whether nobody announced the step, so that `inject` is due."""
        return False

    def end_part(self) -> None:
        """When a part of a split batch is clipped: leave no canary in its gradients."""

    def unplanned(self) -> PlannedStep:
        """The plan of a step that came without one: its witnesses are read all the same."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Take the canaries out of a batch that is not completed."""

    def retract(self, *, behind: bool) -> None:
        """The audit has failed: take out the canaries of a step that is not summed up yet.

        The planner keeps the plan of a step whose canaries are in its sums.

        Args:
            behind: whether the noise of the step under way is in.
        """

    # ------------------------------------------------------------------ behind the noise

    def take_out(self, plan: PlannedStep, divisor: float, grads: Tensors) -> FloatArray | None:
        """Take the canaries out of the gradient, or say what is to be taken out of what is read.

        Args:
            plan: of the step.
            divisor: of the noisy sum, where it is read.
            grads: the noisy gradient, one tensor for each parameter.

        Returns:
            An amount for each coordinate that is read, ``[n]``; None for nothing.
        """
        raise NotImplementedError

    def clear(self, plan: PlannedStep, sums: Tensors) -> None:
        """Take the canaries out of the clipped sums, which Opacus keeps beyond the step."""

    def end_step(
        self, plan: PlannedStep, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """The update is done: inner products with the canaries' directions, ``[k]``.

        What was taken out counts as read.

        Args:
            plan: of the step.
            values: what was read, canaries taken out, in units of the clipping norm, ``[n]``.
            dead: which entries were exactly zero, ``[n]``; None where none was.
        """
        raise NotImplementedError

    def rows_of_data(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Rows of per-sample gradients without the audit's own; None where they are not known."""
        return rows

    # ------------------------------------------------------------------ the run

    @property
    def oversize(self) -> float:
        """Norm of the canaries over the clipping norm."""
        raise NotImplementedError

    def pass_blockers(self) -> list[str]:
        """What of this source stands in the way of a pass, in sentences."""
        return []

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it, as plain data."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
