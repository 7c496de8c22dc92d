"""Takes canaries out of a step whose audit has failed."""

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
    """What is left of a session once the audit has failed.

    Canaries that are rows are taken out at once. Those that are summed up already are taken out of
    the gradient when its noise is in, as the session would have done.

    Args:
        planner: plans the steps.
        source: of the canaries.
        way: how the steps are read.
        divisor: what a step's noisy sum is divided by where it is read.
        claim_at_cut: notes the divisor where a private optimizer's noise is in; None if unknown.
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
        #: Whether the noise of the step under way is in, or its update has begun.
        self.behind = False
        #: Whether the rows of the step under way stay in, since other processes count on them.
        self.agreed = False
        if (boundary := current()) is not None:
            boundary.on_leave(self._retract)

    def _retract(self) -> None:
        if self.behind or not self.agreed:
            self._source.retract(behind=self.behind)

    @property
    def in_transit(self) -> bool:
        """Whether canaries are in sums, and must be taken out of the gradient."""
        plan, out = self._planner.plan, self._way.tap.taken_out
        return not out and plan is not None and plan.status == INJECTED and bool(plan.coins.any())

    def arrive(self, level: int) -> None:
        """The optimizer that updates has its gradient, within so many steps."""
        if self._way.tap.reads_at(level):
            self.take_out()

    def at_cut(self) -> None:
        """A private optimizer's noise is in."""
        if self.in_transit and attempt(self._claim_at_cut):
            self.take_out()

    def take_out(self, tensors: Sequence[torch.Tensor | None] | None = None) -> None:
        """The noise of a step is in: take the canaries out.

        Args:
            tensors: the gradient, one tensor for each parameter; None for ``p.grad``.
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

        # The second way writes along the directions, by other code.
        if not attempt(as_read) and not tap.taken_out:
            entered = [d for coin, d in zip(plan.coins, plan.directions, strict=False) if coin]
            amounts = np.full(len(entered), -plan.claim.max_grad_norm / divisor)
            attempt(lambda: add_along(grads, entered, amounts))
        planner.plan, tap.taken_out = None, False
