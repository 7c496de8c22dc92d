"""Ends a training before the step by which it would exceed the epsilon that its user claims."""

from __future__ import annotations

import logging
import math
from typing import Any

from lightning_audit.accounting.phases import Phase, inverse_square
from lightning_audit.accounting.spending import steps_told
from lightning_audit.accounting.step_budget import steps_within
from lightning_audit.lints.carried_over import splits_batches
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.run_epsilons import run_history
from lightning_audit.run.run_facts import links_of

_log = logging.getLogger(__name__)

#: How many times as much as when it was last counted a step may cost before it is counted again.
_DEARER = 1.5
_WARNING = (
    "the {planned:,} steps that are planned cost more than claimed_epsilon={claimed:g} at delta "
    "{delta:g}, which {left:,} steps keep to: {then}; plan fewer, raise noise_multiplier, or lower "
    "the sample rate"
)
_STOPPED = (
    "the training was stopped after {steps:,} steps: the next one would exceed "
    "claimed_epsilon={claimed:g} at delta {delta:g}"
)


class ClaimBudget:
    """The steps that the user's epsilon leaves to a training.

    Nothing is asked where no epsilon is claimed but the accountant's own, or no sample rate is
    known. While noise and rate stay what they were, the steps are counted once.

    Args:
        run: of the audit.
        trainer: of the training, which is about to begin.
        ends: whether the training is to end for it.
    """

    def __init__(self, run: AuditRun, trainer: Any, *, ends: bool) -> None:
        config = run.config
        self._run, self._ends, self._planned = run, ends, _planned(trainer)
        self._before = run.optimizers.steps
        self._accumulated = trainer.accumulate_grad_batches
        #: Whether the budget is watched.
        self.counts = bool(
            run.sessions
            and config.claimed_epsilon is not None
            and not config.mechanism_alone
            and "accounting" not in config.allow
            and not run.trial
        )
        self._cost = 0.0
        # The number of steps from which on it is counted again, and whether the first step of all
        # is too much: a claim that no training of this kind keeps.
        self._until, self.hopeless = 0, False
        if self.counts:
            self._begin()

    def is_used_up(self) -> bool:
        """Whether the next step would exceed the claim, and the training is to end for it."""
        if not self.counts:
            return False
        steps, coming = self._run.optimizers.steps, self._coming()
        if steps < self._until and _cost(coming) <= _DEARER * self._cost:
            return False
        if self._count(steps, coming) != 0 or not self._ends:
            return False
        self.counts = False
        told = self._told(_STOPPED, steps=steps)
        self._run.optimizers.notes.add(told)
        if self._run.ranks.is_first:
            _log.warning("privacy audit: %s", told)
        return True

    def _begin(self) -> None:
        steps = self._run.optimizers.steps
        left = self._count(steps, self._coming())
        if left is None or self._planned is None or left >= self._planned:
            return
        self.hopeless = not steps and not left
        then = "the training stops there" if self._ends else "the claim is false from there on"
        if self.hopeless:
            then = "the claim is false from the first step on"
        if self._run.ranks.is_first:
            told = self._told(_WARNING, planned=self._planned, left=left, then=then)
            _log.warning("privacy audit: %s", told)

    def _count(self, steps: int, coming: list[Phase]) -> int | None:
        """How many steps of each optimizer are left; None where that cannot be told."""
        run, config = self._run, self._run.config
        seen, told = run_history(run.sessions), steps_told(links_of(run.optimizers.facts))
        longest = max(seen, told, key=lambda phases: sum(phase.steps for phase in phases))
        taken = (steps - self._before) // len(coming)
        left = steps_within(
            config.claimed_epsilon or math.inf,
            config.delta,
            longest,
            coming,
            planned=self._planned - taken if self._planned and self._planned > taken else None,
            adjacency=config.adjacency,
        )
        self.counts = left is not None or not steps
        self._cost = _cost(coming)
        self._until = steps + max(1, (left or 0) * len(coming))
        return left

    def _coming(self) -> list[Phase]:
        """What is claimed of the next step of each optimizer."""
        run, coming = self._run, []
        for audit in run.optimizers.audits:
            claim = audit.session.planner.claim(self._accumulated)
            rate = audit.facts.current_rate(run.config.claim, self._accumulated)
            coming.append(Phase(claim.noise_multiplier, rate or None, 1))
        return coming

    def _told(self, sentence: str, **numbers: Any) -> str:
        config = self._run.config
        return sentence.format(claimed=config.claimed_epsilon, delta=config.delta, **numbers)


def _cost(coming: list[Phase]) -> float:
    """The chi-square divergence of steps, which orders them nearly as epsilon does."""
    noisy = (phase for phase in coming if phase.noise_multiplier > 0.0)
    return sum((p.sample_rate or 1.0) ** 2 * math.expm1(inverse_square(p)) for p in noisy)


def _planned(trainer: Any) -> int | None:
    """How many steps each optimizer is to take from now on; None where nobody knows."""
    try:
        total = trainer.estimated_stepping_batches
    except Exception:  # of a Trainer whose accumulation changes, say
        return None
    if not math.isfinite(total) or splits_batches(trainer.train_dataloader):
        return None
    left = int(total) - int(trainer.global_step)
    return left if left > 0 else None
