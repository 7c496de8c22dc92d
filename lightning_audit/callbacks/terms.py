"""What is claimed of a training and asked of its audit: the arguments of the callback."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.checks.resolution import Resolution
from lightning_audit.claims import PrivacyClaim
from lightning_audit.composition import Neighbouring


@dataclass(frozen=True)
class Terms:
    """What is claimed and asked for: the callback's arguments."""

    epsilon: float | None
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
    reactions: Mapping[str, str]
    replay_neighbours: bool = False

    @property
    def neighbouring(self) -> Neighbouring:
        """Between which data sets epsilon is promised."""
        stated = self.claim.neighbouring if self.claim else None
        return stated or "add_remove"

    def kept(self) -> dict[str, Any]:
        """What a checkpoint holds of the terms: all that a run may go on with other values of."""
        claim = self.claim.to_dict() if self.claim else {}
        named = ("noise_multiplier", "max_grad_norm", "expected_batch_size", "sample_rate")
        return {
            "significance": self.significance,
            "claimed_epsilon": self.epsilon,
            "delta": self.delta,
            "neighbouring": self.neighbouring,
            **{f"claim.{name}": claim.get(name) for name in named},
            **{f"resolution.{k}": v for k, v in dataclasses.asdict(self.resolution).items()},
            "oversize": self.oversize,
            "every_n_steps": self.every_n_steps,
            "replay_neighbours": self.replay_neighbours,
            "bound_significance": self.bound_significance,
            "bounds": list(self.bounds),
            "allow": sorted(self.allow),
        }

    def settings(self) -> dict[str, Any]:
        """The terms, as they go into the report."""
        return {
            "claimed_epsilon": self.epsilon,
            "delta": self.delta,
            "claim": self.claim.to_dict() if self.claim else None,
            "canaries": [repr(canary) for canary in self.canaries],
            "oversize": self.oversize,
            "every_n_steps": self.every_n_steps,
            "significance": self.significance,
            "bound_significance": self.bound_significance,
            "bounds": self.bounds,
            "resolution": dataclasses.asdict(self.resolution),
            "allow": tuple(self.allow),
            "replay_neighbours": self.replay_neighbours,
            **self.reactions,
            "seed": self.seed,
        }
