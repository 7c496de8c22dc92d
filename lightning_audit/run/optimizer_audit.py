"""One private optimizer of a run: its session, what is known of it, its noise at the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from opacus.optimizers import DPOptimizer

from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.dpsgd.accountant_link import accountant_link
from lightning_audit.dpsgd.cut import watch_cut
from lightning_audit.dpsgd.manual import ManualStep
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.record.store import ObservationStore, RecordHeader
from lightning_audit.run.checkpoint import (
    accountant_history,
    restore_accountant,
    to_arrays,
    to_tensors,
)
from lightning_audit.run.run_facts import OptimizerFacts
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.hand_written_input_session import HandWrittenInputSession
from lightning_audit.session.hand_written_session import HandWrittenSession
from lightning_audit.session.input_session import InputSession
from lightning_audit.session.ranks import Ranks
from lightning_audit.taps.method_hook import MethodHook

#: Largest shift that a correctly clipped canary shows where low precision rounds it.
_SIGNALS = {"bf16": 1.0 + 2.0**-7}


class OptimizerAudit:
    """The audit of one private optimizer.

    Args:
        session: audits its steps.
        facts: what is known of it.
        look: called before the first step that this process sees, with the audit and the state of
            the noise generator.
    """

    def __init__(
        self,
        session: AuditSession,
        facts: OptimizerFacts,
        look: Callable[[OptimizerAudit, str | None], None],
    ) -> None:
        self.session = session
        self.facts = facts
        #: State of the noise generator before the first step of the training.
        self.first_noise: str | None = None
        self._look = look
        self._looked = False
        self._hooks: list[MethodHook] = []

    def watch(self, optimizer: DPOptimizer | None) -> None:
        """Follow this optimizer's steps, whoever takes them: before it clips, and behind its noise.

        Args:
            optimizer: the private optimizer; None to take all hooks off.
        """
        for hook in reversed(self._hooks):
            hook.remove()
        self._hooks = []
        if optimizer is not None:
            late, end = self._inject_late, self.session.end_part
            self._hooks = [
                MethodHook(optimizer, "pre_step", late, end),
                watch_cut(optimizer, self.session.noise_is_in),
            ]

    def inject(self) -> None:
        """After a backward pass, before clipping: put the canaries in."""
        self.session.inject()
        self._look_at_noise()

    def _inject_late(self) -> None:
        self.session.inject_late()
        self._look_at_noise()

    def _look_at_noise(self) -> None:
        if not self._looked:
            self._looked = True
            self._look(self, self.session.step.noise_state())

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of this optimizer's audit."""
        return {
            "session": to_tensors(self.session.state()),
            "first_noise": self.first_noise,
            "accountant": accountant_history(self.facts.accountant),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; see `AuditSession.load`."""
        self.session.load(to_arrays(state["session"]))
        self.first_noise = state["first_noise"]
        restore_accountant(self.facts.accountant, state["accountant"])

    def detach(self) -> None:
        """Take all hooks off."""
        self.watch(None)
        self.session.detach()


def facts_of(optimizer: DPOptimizer) -> OptimizerFacts:
    """What can be read off a private optimizer beside its steps."""
    expected = None
    if optimizer.loss_reduction == "mean":
        # Of several processes each divides by its share, and then their mean is taken.
        expected = optimizer.expected_batch_size * getattr(optimizer, "world_size", 1)
    return OptimizerFacts(
        accountant=accountant_link(optimizer),
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
    precision: str,
    sample_rate: Callable[[int], float | None],
    open_store: Callable[[RecordHeader], ObservationStore | None] | None,
    ranks: Ranks,
) -> AuditSession:
    """Begin to audit one private optimizer.

    Args:
        step: the adapter.
        place: its number among the private optimizers, from 1, and how many there are; each tests
            at an equal share of the significance.
        config: what is claimed and asked for.
        precision: the Trainer's precision.
        sample_rate: see `AuditSession`.
        open_store: see `AuditSession`.
        ranks: the processes that train together.
    """
    number, count = place
    share = replace(config, significance=config.significance / count)
    signal = _SIGNALS.get(precision.split("-")[0], 1.0)
    by_hand = isinstance(step, ManualStep)
    if isinstance(config.canaries[0], InputCanary):
        kind: type[AuditSession] = HandWrittenInputSession if by_hand else InputSession
    else:
        kind = HandWrittenSession if by_hand else AuditSession
    coins = _coins(config.seed, number)
    return kind(step, share, coins, sample_rate, open_store, ranks, signal)


def _coins(seed: int, number: int) -> np.random.Generator:
    """A generator for each optimizer's coins, all of the audit's one seed and independent."""
    if number == 1:
        return np.random.default_rng(seed)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
