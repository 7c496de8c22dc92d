"""One private optimizer of a run: its session, what is known of it, its noise at the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opacus.optimizers import DPOptimizer

from lightning_audit.dpsgd.accountant_link import accountant_link
from lightning_audit.dpsgd.cut import watch_cut
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.run.checkpoint import (
    accountant_history,
    restore_accountant,
    to_arrays,
    to_tensors,
)
from lightning_audit.run.run_facts import OptimizerFacts
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.taps.method_hook import MethodHook

#: Number of parameter names that tell an optimizer from the others.
_SHOWN = 1


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
    """A private optimizer among several: its number and its first parameters."""
    names = [f"`{slot.name}`" for slot in step.layout]
    more = ", ..." if len(names) > _SHOWN else ""
    return f"optimizer {number} ({', '.join(names[:_SHOWN])}{more})"
