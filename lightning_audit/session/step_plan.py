"""One step of the optimizer between its planning and its observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.layout import Direction, FloatArray
from lightning_audit.record.store import EARLIER, INJECTED
from lightning_audit.session.coordinates import Located
from lightning_audit.taps.tensor_views import add_along


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

    def amounts(self, divisor: float, size: int) -> FloatArray | None:
        """What the canaries add to the gradient under the claim, by coordinate, ``[size]``.

        Args:
            divisor: of the noisy sum, where it is read.
            size: number of entries that are read.

        Returns:
            The amounts; None where no canary is in.
        """
        if self.status != INJECTED or self.located is None or not self.coins.any():
            return None
        return self.located.combined(self.claim.max_grad_norm / divisor * self.coins, size)

    def readings(self, values: FloatArray, dead: NDArray[np.bool_] | None) -> FloatArray:
        """Inner products with the canaries' directions; what was taken out counts as read, ``[k]``.

        Args:
            values: what was read, canaries taken out, in units of the clipping norm, ``[n]``.
            dead: which entries were exactly zero, ``[n]``; None where none was.
        """
        count = len(self.coins)
        if self.status != INJECTED or self.located is None:
            return np.zeros(count)
        # It was taken out where it was.
        live = 1.0 if dead is None else self.located.shares(~dead, count)
        return self.located.products(values, count) + self.coins * live

    def take_out(self, sums: Sequence[torch.Tensor | None]) -> None:
        """Take the canaries that this process added out of clipped sums, one for each tensor."""
        chosen = self.chosen
        add_along(sums, chosen, np.full(len(chosen), -self.claim.max_grad_norm))
