"""Stop a training before the step that would exceed the user's claimed epsilon."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

from lightning_audit.accounting.composition import exceeds, passes_taken
from lightning_audit.accounting.history import Phase, inverse_square, merge
from lightning_audit.accounting.spending import steps_told, steps_within
from lightning_audit.checks.accounting import PlannedCost
from lightning_audit.checks.check import REGISTRY
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.epsilons import run_history
from lightning_audit.run.facts import FrontEnd, steps_of

_log = logging.getLogger(__name__)

#: Fraction of the remaining budget after which unequal steps are counted again.
_PART = 0.25
#: Factor on the cost of a step from which the remaining steps are counted again.
_DEARER = 1.25
_TOO_MANY_STEPS = (
    "the {planned:,} planned steps cost more than claimed_epsilon={claimed:g} at delta {delta:g}, "
    "which allows {left:,} steps"
)
_FEWER_STEPS = "plan fewer, raise noise_multiplier, or lower the sample rate"
_TOO_MANY_EPOCHS = (
    "{what} epsilon {epsilon:.4g}, above claimed_epsilon={claimed:g} at delta {delta:g}"
)
_FEWER_EPOCHS = "train fewer epochs, or raise noise_multiplier"
_STOPPED = (
    "the training was stopped after {steps:,} step{s}: one more would exceed "
    "claimed_epsilon={claimed:g} at delta {delta:g}"
)


class ClaimBudget:
    """The number of steps that the user's claimed epsilon allows a training.

    Inactive if the user claims no epsilon, or if the sample rate is unknown. Equal steps are
    counted once. If noise or rate change, or if several optimizers step, the remaining steps are
    counted again whenever a quarter of them may be used up or a step costs a quarter more. The cost
    is measured by chi-square divergence, which orders steps almost as epsilon does. For shuffled
    batches, the planned epochs are counted instead.

    Args:
        run: of the audit.
        front: runs the training, which is about to begin.
        ends: whether to stop the training once the budget is used up.
    """

    def __init__(self, run: AuditRun, front: FrontEnd, *, ends: bool) -> None:
        config = run.config
        self._run, self._front, self._ends = run, front, ends
        self._planned = front.steps_left()
        #: Whether the budget is watched.
        self.counts = bool(
            run.sessions
            and config.claimed_epsilon is not None
            and not config.mechanism_alone
            and "accounting" not in config.allow
            and not run.trial
        )
        #: The warning about planned steps or epochs that exceed the claim, or empty.
        self.warned = ""
        #: Whether the very first step exceeds the claim.
        self.hopeless = False
        self._taken = self._before = self._steps()
        # Steps of the last batch; next step, steps left and cost used as of the last count.
        self._each = [1] * len(self._taken)
        self._coming_then: list[Phase] = []
        self._left, self._used = 0, 0.0
        if self.counts:
            self._begin()

    def excess(self) -> PlannedCost | None:
        """Return the cost of the first step or of the planned epochs, if it exceeds the claim."""
        coming, config = self._coming(), self._run.config
        if config.shuffled:
            return self._excess_of_epochs(coming)
        known = coming == self._coming_then and self._left  # the last count allows this step
        if any(self._steps()) or known or self._count(coming) != 0:
            return None
        costs = [config.epsilon_of(steps) for steps in (coming, self._accounted(coming))]
        cost = max(math.inf if one is None else one for one in costs)
        return PlannedCost(cost, "the first step costs")

    def _excess_of_epochs(self, coming: list[Phase]) -> PlannedCost | None:
        run, config = self._run, self._run.config
        epochs = run.course.planned_epochs
        if epochs is None:
            return None
        passes = passes_taken(
            [*run_history(run.sessions), *coming],
            steps_told(run.accountants),
            epochs * len(run.sessions),
        )
        cost = config.epsilon_of([passes])
        if cost is None or not exceeds(cost, config.claimed_epsilon or math.inf):
            return None
        many = "planned epoch costs" if epochs == 1 else "planned epochs cost"
        return PlannedCost(cost, f"the {epochs:,} {many}")

    def is_used_up(self) -> bool:
        """Return whether to stop the training because its next batch would exceed the claim."""
        taken, coming = self._steps(), self._coming()
        if self._run.config.shuffled:  # planned epochs are compared once, before the first step
            self.counts = taken == self._before
            return False
        self._each = [now - then for now, then in zip(taken, self._taken, strict=True)]
        self._used += _cost(coming, self._each)
        self._taken = taken
        done = self._gone() == self._planned or self._front.is_over()  # no step is left
        if done or not self._is_near(coming) or self._count(coming) is None:
            return False
        if self._left >= max([1, *self._each]):
            return False
        self.counts = False
        if not self._ends:
            return False
        steps = sum(taken)
        note = self._sentence(_STOPPED, steps=steps, s="" if steps == 1 else "s")
        self._run.optimizers.notes.add(note)
        self._warn(note)
        return True

    def _begin(self) -> None:
        if self._run.config.shuffled:
            self._begin_shuffled()
            return
        left = self._count(self._coming())
        if left is None:
            return
        self.hopeless = not any(self._taken) and not left
        # Of a first step that exceeds the claim the violation is logged, not the plan.
        if self.hopeless or self._planned is None or left >= self._planned:
            return
        then = "the training stops there" if self._ends else "the claim is false from there on"
        excess = self._sentence(_TOO_MANY_STEPS, planned=self._planned, left=left)
        self.warned = f"{excess}; {_FEWER_STEPS}"
        self._warn(f"{excess}: {then}; {_FEWER_STEPS}")

    def _begin_shuffled(self) -> None:
        excess = self._excess_of_epochs(self._coming())
        self.counts = excess is not None
        if excess is not None:
            costs = self._sentence(_TOO_MANY_EPOCHS, epsilon=excess.epsilon, what=excess.what)
            self.warned = f"{costs}; {_FEWER_EPOCHS}"
            if not self._ends:  # else the first step is refused, and the violation is logged
                self._warn(f"{costs}: the claim will be false; {_FEWER_EPOCHS}")

    def _warn(self, sentence: str) -> None:
        if self._run.ranks.is_first:
            _log.warning("privacy audit: %s", sentence)

    def _is_near(self, coming: list[Phase]) -> bool:
        """Return whether enough may be used to count the remaining steps again."""
        once = _cost(self._coming_then)
        whole = self._left * once
        following = self._used + _cost(coming, [max(1, each) for each in self._each])
        alike = len(coming) == 1 and coming == self._coming_then
        # The count of equal steps is exact, except for the rounding of sums.
        if alike:
            return following > whole * (1.0 + 1e-9)
        return following > _PART * whole or _cost(coming) > _DEARER * once

    def _count(self, coming: list[Phase]) -> int | None:
        """Return how many steps each optimizer has left; None if it cannot be computed."""
        run, config = self._run, self._run.config
        seen, recorded = run_history(run.sessions), steps_told(run.accountants)
        accounted = self._accounted(coming)
        differs = bool(recorded) and set(recorded) != set(merge(seen))
        planned, gone = self._planned, self._gone()
        left = steps_within(
            config.claimed_epsilon or math.inf,
            config.delta,
            seen,
            coming,
            told=(recorded, accounted) if differs or accounted != coming else None,
            planned=planned - gone if planned and planned > gone else None,
            adjacency=config.adjacency,
            items=config.items,
        )
        self.counts = left is not None or not any(self._taken)
        self._coming_then, self._left, self._used = coming, left or 0, 0.0
        return left

    def _gone(self) -> int:
        """Return the steps since the beginning, of the optimizer with the most steps."""
        return max(now - then for now, then in zip(self._taken, self._before, strict=True))

    def _steps(self) -> list[int]:
        return steps_of(self._run.sessions)

    def _coming(self) -> list[Phase]:
        """Return the claimed phase of each optimizer's next step."""
        accumulated, coming = self._front.accumulated, []
        for audit in self._run.optimizers.audits:
            claim = audit.session.planner.claim(accumulated)
            rate = audit.facts.current_rate(self._run.config.claim, accumulated)
            coming.append(Phase(claim.noise_multiplier, rate or None, 1))
        return coming

    def _accounted(self, coming: list[Phase]) -> list[Phase]:
        """Return the same steps as their accountants will record them."""
        audits = self._run.optimizers
        each = zip(coming, audits.facts, audits.noise_multipliers, strict=True)
        return [
            replace(one, noise_multiplier=min(float(stated), one.noise_multiplier))
            if facts.accountant
            else one
            for one, facts, stated in each
        ]

    def _sentence(self, template: str, **numbers: Any) -> str:
        config = self._run.config
        text = template.format(claimed=config.claimed_epsilon, delta=config.delta, **numbers)
        doubts = [n for n in config.allow if n in REGISTRY and "spent" in REGISTRY[n].refutes]
        if doubts:
            text += f" (the composed epsilon may not hold, because you allow {', '.join(doubts)})"
        return text


def _cost(coming: list[Phase], steps: list[int] | None = None) -> float:
    """Return the chi-square divergence of steps, which orders them almost as epsilon does.

    Args:
        coming: one step of each optimizer.
        steps: number of steps of each optimizer; None for one.
    """
    counts = steps or [1] * len(coming)
    return sum(_of_one(phase) * count for phase, count in zip(coming, counts, strict=True))


def _of_one(phase: Phase) -> float:
    square = inverse_square(phase) if phase.noise_multiplier > 0.0 else 700.0
    return (phase.sample_rate or 1.0) ** 2 * math.expm1(square)
