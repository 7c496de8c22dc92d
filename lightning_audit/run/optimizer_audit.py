"""The audit of one private optimizer of a run: its session and its facts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer

from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.dpsgd.accountant_link import (
    AccountantLink,
    accountant_link,
    hook_is_unread,
)
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.lints.carried_over import splits_batches
from lightning_audit.record.store import ObservationStore, RecordHeader
from lightning_audit.run.checkpoint import (
    accountant_history,
    restore_accountant,
    to_arrays,
    to_tensors,
)
from lightning_audit.run.hand_written_front import HandWrittenFront
from lightning_audit.run.run_facts import OptimizerFacts
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.begin import begin_session
from lightning_audit.session.ranks import Ranks

#: Largest shift of a correctly clipped canary if low precision rounds it.
_SIGNALS = {"bf16": 1.0 + 2.0**-7}


class OptimizerAudit:
    """The audit of one private optimizer.

    Args:
        session: audits the optimizer's steps.
        facts: of the optimizer.
    """

    def __init__(self, session: AuditSession, facts: OptimizerFacts) -> None:
        self.session = session
        self.facts = facts
        self._front: HandWrittenFront | None = None
        self._keep_hook()

    def _keep_hook(self) -> None:
        """Remember the current optimizer and its step hook."""
        self.optimizer = self.session.step.optimizer
        self.hook = getattr(self.optimizer, "step_hook", None)

    def follow(self, step: DPSGDStep) -> bool:
        """Continue with a step over the same parameters; see `AuditSession.follow`."""
        followed = self.session.follow(step)
        self._keep_hook()
        return followed

    def follow_hook(self) -> None:
        """Read the accountant of a step hook that was attached since."""
        self._keep_hook()
        self.facts.accountant, self.facts.hook = _told_by(self.optimizer)

    def open_to(self, root: torch.nn.Module) -> None:
        """Register the module of a hand-written training, whose code can then get canaries."""
        self._front = self._front or HandWrittenFront(self.session)
        self._front.open_to(root)

    def state(self) -> dict[str, Any]:
        """Return the checkpoint state of this optimizer's audit."""
        return {
            "session": to_tensors(self.session.state()),
            "accountant": accountant_history(self.facts.accountant),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Load a checkpoint's state; see `AuditSession.load`."""
        self.session.load(to_arrays(state["session"]))
        restore_accountant(self.facts.accountant, state["accountant"])

    def detach(self) -> None:
        """Remove all hooks."""
        self.session.detach()
        if self._front is not None:
            self._front.remove()


def _told_by(optimizer: DPOptimizer) -> tuple[AccountantLink | None, str]:
    """Return the accountant that the step hook calls, and whether the hook can be read."""
    link = accountant_link(optimizer)
    return link, "read" if link else "unread" if hook_is_unread(optimizer) else "none"


def facts_of(optimizer: DPOptimizer) -> OptimizerFacts:
    """Read the facts of a private optimizer, apart from its steps."""
    expected = None
    if optimizer.loss_reduction == "mean":
        # Each of several processes divides by its own batch size; then their mean is taken.
        expected = optimizer.expected_batch_size * getattr(optimizer, "world_size", 1)
    accountant, hook = _told_by(optimizer)
    return OptimizerFacts(
        accountant=accountant,
        hook=hook,
        expected_batch_size=expected,
        loss_reduction=optimizer.loss_reduction,
    )


def label_of(step: DPSGDStep, number: int) -> str:
    """Return the label of one of several private optimizers: its number and first parameter."""
    more = ", ..." if len(step.layout) > 1 else ""
    return f"optimizer {number} (`{step.layout[0].name}`{more})"


def new_session(
    step: DPSGDStep,
    place: tuple[int, int],
    config: AuditConfig,
    trainer: Any,
    sample_rate: Callable[[int], float | None],
    open_store: Callable[[RecordHeader], ObservationStore | None] | None,
    ranks: Ranks,
    *,
    track_batch_sizes: bool = False,
) -> AuditSession:
    """Begin the audit of one private optimizer.

    Args:
        step: the adapter.
        place: its number among the private optimizers, from 1, and how many there are; each tests
            at an equal share of the significance.
        config: of the run.
        trainer: gives the precision and the planned steps.
        sample_rate: see `AuditSession`.
        open_store: see `begin_session`.
        ranks: the processes that train together.
        track_batch_sizes: see `StepPlanner`.
    """
    number, count = place
    return begin_session(
        step,
        replace(config, significance=config.significance / count),
        _coins(config.coin_seed, number),
        sample_rate,
        open_store,
        ranks,
        signal=_SIGNALS.get(str(trainer.precision).split("-")[0], 1.0),
        track_batch_sizes=track_batch_sizes,
        planned_steps=planned_steps(trainer),
    )


def planned_steps(trainer: Any) -> int | None:
    """Return the steps of each optimizer in the whole training; None if unknown."""
    if len(trainer.optimizers) > 1:  # Lightning counts the steps of all of them
        return None
    try:
        total = trainer.estimated_stepping_batches
    except Exception:  # of a Trainer whose accumulation changes, say
        return None
    if not math.isfinite(total) or splits_batches(trainer.train_dataloader):
        return None
    return int(total)


def draw_seed() -> int:
    """Return a seed from the operating system."""
    return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]  # an int if drawn


def _coins(seed: int, number: int) -> np.random.Generator:
    """Return the generator of an optimizer's coins: independent ones from the audit's seed."""
    if number == 1:
        return np.random.default_rng(seed)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
