"""One step of the optimizer between its planning and its observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.layout import Direction, FloatArray
from lightning_audit.record.store import EARLIER, INJECTED
from lightning_audit.session.coordinates import Located


@dataclass(frozen=True)
class StepPlan:
    """What is done in a step, and what is claimed of it.

    Args:
        claim: what is claimed.
        coins: whether each canary is in, ``[k]``.
        directions: of all canaries, ``[k]``; empty where none may enter.
        status: NOT_PLANNED, INJECTED or DROPPED.
        located: the directions among the entries that are read.
        prepared: whether the rows were laid out before the backward pass and wait to be put in.
        adds: whether this process adds the canaries, rather than another one.
        earlier: whether they enter an earlier part of a split batch than the last.
    """

    claim: StepClaim
    coins: FloatArray
    directions: Sequence[Direction]
    status: int
    located: Located | None = None
    prepared: bool = False
    adds: bool = True
    earlier: bool = False

    @property
    def recorded(self) -> int:
        """What the record says of the canaries."""
        return EARLIER if self.earlier and self.status == INJECTED else self.status

    @property
    def chosen(self) -> list[Direction]:
        """Directions of the canaries that this process adds."""
        if not self.adds:
            return []
        return [d for coin, d in zip(self.coins, self.directions, strict=False) if coin]
