"""One private optimizer of a run: its session, and what is known of it."""

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

#: Largest shift that a correctly clipped canary shows where low precision rounds it.
_SIGNALS = {"bf16": 1.0 + 2.0**-7}


class OptimizerAudit:
    """The audit of one private optimizer.

    Args:
        session: audits its steps.
        facts: what is known of it.
    """

    def __init__(self, session: AuditSession, facts: OptimizerFacts) -> None:
        self.session = session
        self.facts = facts
        self._front: HandWrittenFront | None = None
        self._keep_hook()

    def _keep_hook(self) -> None:
        """Know the optimizer of now, and its step hook."""
        self.optimizer = self.session.step.optimizer
        self.hook = getattr(self.optimizer, "step_hook", None)

    def follow(self, step: DPSGDStep) -> bool:
        """Go on with a step over the same parameters; see `AuditSession.follow`."""
        followed = self.session.follow(step)
        self._keep_hook()
        return followed

    def follow_hook(self) -> None:
        """Read the accountant of a step hook that was attached meanwhile."""
        self._keep_hook()
        self.facts.accountant, self.facts.hook = _told_by(self.optimizer)

    def open_to(self, root: torch.nn.Module) -> None:
        """Let the code of a hand-written training ask for canaries, by its module."""
        self._front = self._front or HandWrittenFront(self.session)
        self._front.open_to(root)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of this optimizer's audit."""
        return {
            "session": to_tensors(self.session.state()),
            "accountant": accountant_history(self.facts.accountant),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; see `AuditSession.load`."""
        self.session.load(to_arrays(state["session"]))
        restore_accountant(self.facts.accountant, state["accountant"])

    def detach(self) -> None:
        """Take all hooks off."""
        self.session.detach()
        if self._front is not None:
            self._front.remove()


def _told_by(optimizer: DPOptimizer) -> tuple[AccountantLink | None, str]:
    """The accountant that its step hook feeds, and whether that can be read."""
    link = accountant_link(optimizer)
    return link, "read" if link else "unread" if hook_is_unread(optimizer) else "none"


def facts_of(optimizer: DPOptimizer) -> OptimizerFacts:
    """What can be read off a private optimizer beside its steps."""
    expected = None
    if optimizer.loss_reduction == "mean":
        # Of several processes each divides by its share, and then their mean is taken.
        expected = optimizer.expected_batch_size * getattr(optimizer, "world_size", 1)
    accountant, hook = _told_by(optimizer)
    return OptimizerFacts(
        accountant=accountant,
        hook=hook,
        expected_batch_size=expected,
        loss_reduction=optimizer.loss_reduction,
    )


def label_of(step: DPSGDStep, number: int) -> str:
    """A private optimizer among several: its number and its first parameter."""
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
    """Begin to audit one private optimizer.

    Args:
        step: the adapter.
        place: its number among the private optimizers, from 1, and how many there are; each tests
            at an equal share of the significance.
        config: what is claimed and asked for.
        trainer: whose precision and planned steps count.
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
    """Steps that each optimizer takes in the whole training; None if the Trainer cannot tell."""
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
    """A seed from the operating system."""
    return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]  # an int if drawn


def _coins(seed: int, number: int) -> np.random.Generator:
    """A generator for each optimizer's coins, all of the audit's one seed and independent."""
    if number == 1:
        return np.random.default_rng(seed)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
