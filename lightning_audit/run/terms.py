"""What is claimed of a training and asked of its audit: the arguments of the callback."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import Adjacency
from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.verdict.pass_blockers import Asked, Resolution


@dataclass(frozen=True)
class Terms:
    """What is claimed and asked for: the callback's attributes of the same names."""

    claimed_epsilon: float | None
    delta: float
    claim: PrivacyClaim | None
    canaries: tuple[GradientCanary | InputCanary, ...]
    oversize: float
    every_n_steps: int | None
    significance: float
    bound_significance: float
    bounds: tuple[str, ...]
    resolution: Resolution
    allow: Collection[str]
    seed: int
    replay_neighbours: bool
    on_violation: str
    on_inconclusive: str

    @property
    def adjacency(self) -> Adjacency:
        """Between which data sets epsilon is promised."""
        stated = self.claim.adjacency if self.claim else None
        return stated or "add_remove"

    @property
    def private_size(self) -> bool:
        """Whether the number of records is stated as private."""
        return bool(self.claim and self.claim.private_dataset_size)

    @property
    def asked(self) -> Asked:
        """Those terms on which the outcome rests."""
        return Asked(
            claimed_epsilon=self.claimed_epsilon,
            delta=self.delta,
            significance=self.significance,
            bound_significance=self.bound_significance,
            resolution=self.resolution,
            allow=tuple(self.allow),
            replay_neighbours=self.replay_neighbours,
        )

    def kept(self) -> dict[str, Any]:
        """What a checkpoint holds of the terms: all that a run may go on with other values of."""
        claim = self.claim.to_dict() if self.claim else {}
        named = ("noise_multiplier", "max_grad_norm", "expected_batch_size", "sample_rate")
        return {
            "significance": self.significance,
            "claimed_epsilon": self.claimed_epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            **{f"claim.{name}": claim.get(name) for name in named},
            **{f"resolution.{k}": v for k, v in dataclasses.asdict(self.resolution).items()},
            "oversize": self.oversize,
            "every_n_steps": self.every_n_steps,
            "replay_neighbours": self.replay_neighbours,
            "bound_significance": self.bound_significance,
            "bounds": list(self.bounds),
            "allow": sorted(self.allow),
            "private_dataset_size": self.private_size,
        }

    def settings(self) -> dict[str, Any]:
        """The terms, as they go into the report."""
        return {
            **dataclasses.asdict(self.asked),
            "claim": self.claim.to_dict() if self.claim else None,
            "canaries": [repr(canary) for canary in self.canaries],
            "oversize": self.oversize,
            "every_n_steps": self.every_n_steps,
            "bounds": self.bounds,
            "on_violation": self.on_violation,
            "on_inconclusive": self.on_inconclusive,
            "seed": self.seed,
        }
