"""Removes canaries from a step whose audit has failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.record.store import INJECTED
from lightning_audit.session.canary_source import CanarySource
from lightning_audit.session.reading_way import ReadingWay
from lightning_audit.session.step_planner import StepPlanner
from lightning_audit.taps.boundary import attempt, current
from lightning_audit.taps.tensor_views import add_along


class Rescue:
    """The part of a session that still runs after the audit has failed.

    Canaries that are rows are removed immediately. Canaries that are already summed are removed
    from the gradient after its noise was added, as the session would have done.

    Args:
        planner: plans the steps.
        source: inserts and removes the canaries.
        way: reads the gradients.
        divisor: returns the divisor of a step's noisy sum at the time of the reading.
        claim_at_cut: stores the divisor after a private optimizer added its noise, and returns the
            claim; None if unknown.
    """

    def __init__(
        self,
        planner: StepPlanner,
        source: CanarySource,
        way: ReadingWay,
        divisor: Callable[[StepClaim], float],
        claim_at_cut: Callable[[], StepClaim | None],
    ) -> None:
        self._planner, self._source, self._way = planner, source, way
        self._divisor, self._claim_at_cut = divisor, claim_at_cut
        #: Whether the noise of the current step was added, or its update has begun.
        self.behind = False
        #: Whether the rows of the current step are kept, since other processes subtract them.
        self.agreed = False
        if (boundary := current()) is not None:
            boundary.on_leave(self._retract)

    def _retract(self) -> None:
        if self.behind or not self.agreed:
            self._source.retract(behind=self.behind)

    @property
    def in_transit(self) -> bool:
        """Whether canaries are in sums, and must be removed from the gradient."""
        plan, out = self._planner.plan, self._way.tap.taken_out
        return not out and plan is not None and plan.status == INJECTED and bool(plan.coins.any())

    def arrive(self, level: int) -> None:
        """Remove the canaries when the updating optimizer has its gradient.

        Args:
            level: number of nested steps.
        """
        if self._way.tap.reads_at(level):
            self.take_out()

    def at_cut(self) -> None:
        """Remove the canaries after a private optimizer added its noise."""
        if self.in_transit and attempt(self._claim_at_cut):
            self.take_out()

    def take_out(self, tensors: Sequence[torch.Tensor | None] | None = None) -> None:
        """Remove the canaries from a gradient whose noise was added.

        Args:
            tensors: the gradient, one tensor per parameter; None for ``p.grad``.
        """
        planner, tap = self._planner, self._way.tap
        if not self.in_transit:
            return
        attempt(lambda: planner.settle(planner.known_claim()))
        plan = planner.plan
        assert plan is not None
        params = planner.step.params
        grads = [p.grad for p in params] if tensors is None else tensors
        divisor = self._divisor(plan.claim)

        def as_read() -> None:
            taken = None if tap.taken_out else self._source.take_out(plan, divisor, grads)
            if taken is not None:
                tap.take_out(taken, grads)

        # If the first way failed: subtract along the directions, by other code.
        if not attempt(as_read) and not tap.taken_out:
            entered = [d for coin, d in zip(plan.coins, plan.directions, strict=False) if coin]
            amounts = np.full(len(entered), -plan.claim.max_grad_norm / divisor)
            attempt(lambda: add_along(grads, entered, amounts))
        planner.plan, tap.taken_out = None, False
