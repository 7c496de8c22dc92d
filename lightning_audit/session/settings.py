"""What is asked of a session: its canaries, its share of the significance, what is claimed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.dpsgd.protocol import StepClaim


@dataclass(frozen=True)
class SessionSettings:
    """What the callback's arguments come to.

    Args:
        canaries: the canaries of every audited step.
        oversize: their norm over the clipping norm.
        every_n_steps: canaries enter each n-th step; None for every step, and where rows must be
            copied for every step at first and fewer later.
        significance: probability of a false alarm over the run.
        claim: overrides what the optimizer states.
        signal: largest shift that correct clipping shows in this precision.
    """

    canaries: tuple[GradientCanary | InputCanary, ...]
    oversize: float
    every_n_steps: int | None
    significance: float
    claim: PrivacyClaim | None
    signal: float = 1.0

    def stated(self, claim: StepClaim) -> StepClaim:
        """What is claimed of a step: by the optimizer, unless stated otherwise."""
        own = self.claim
        if own is None:
            return claim
        batch = own.expected_batch_size
        return replace(
            claim,
            noise_multiplier=own.noise_multiplier or claim.noise_multiplier,
            max_grad_norm=own.max_grad_norm or claim.max_grad_norm,
            scale=batch * claim.accumulated if batch else claim.scale,
        )
