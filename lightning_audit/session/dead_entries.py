"""Entries of a step's gradient that are no part of its release: neither noise nor canary came out.

Updates of one block at a time, or noise in a public subspace, leave the other entries exactly zero.
Nothing is released there, and no noise is missing. But noise that is left out where the data's
gradient is zero leaves zeros too, and tells which they are: there a canary that enters brings its
noise with it. So zeros are taken for no part of the release only once a canary that had entered has
come out as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_audit.layout import FloatArray
from lightning_audit.record.store import INJECTED
from lightning_audit.session.coordinates import Coordinates
from lightning_audit.session.step_plan import StepPlan


@dataclass(frozen=True)
class DeadEntries:
    """What of one step is exactly zero.

    Args:
        witnesses: which witnesses, ``[n]``.
        whole: whether the entries that were read are those of whole tensors, but not of all.
        live: of each canary's square norm, the share on the other entries, ``[k]``.
        proved: whether a canary that had entered came out as zero somewhere.
    """

    witnesses: NDArray[np.bool_]
    whole: bool
    live: FloatArray
    proved: bool

    def filled(self, witnesses: FloatArray, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Readings of the witnesses with fresh noise as claimed where nothing was released.

        Args:
            witnesses: the readings, in units of the clipping norm, ``[n]``.
            sigma: the claimed noise multiplier.
            rng: the audit's own generator.
        """
        noise = sigma * rng.standard_normal(len(witnesses))
        return np.where(self.witnesses, noise, witnesses)

    def readings(self, readings: FloatArray, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Readings along the part of each canary's direction that was released.

        Args:
            readings: along the whole direction, in units of the signal, ``[k]``.
            sigma: the claimed noise multiplier.
            rng: the audit's own generator.

        Returns:
            The readings; fresh noise as claimed where nothing of a direction was released.
        """
        noise = sigma * rng.standard_normal(len(readings))
        share = np.sqrt(np.where(self.live > 0, self.live, 1.0))
        return np.where(self.live > 0, readings / share, noise)


def dead_entries(plan: StepPlan, dead: NDArray[np.bool_], coordinates: Coordinates) -> DeadEntries:
    """What of a step is no part of its release.

    Args:
        plan: of the step.
        dead: which of the entries that were read are zero, ``[n]``.
        coordinates: of what was read.
    """
    live, proved = np.ones(len(plan.coins)), False
    if plan.status == INJECTED and plan.located is not None:
        live = plan.located.shares(~dead, len(plan.coins))
        entered = plan.coins[plan.located.row] > 0
        proved = bool((entered & dead[plan.located.at]).any())
    whole = coordinates.empty_tensors(dead)
    return DeadEntries(dead[coordinates.witness_at], whole, live, proved)


class ReleasedShares:
    """How much of what is read was released, over the steps that said so.

    Args:
        witnesses: number of witnesses of each tensor.
        canaries: number of canaries of a step.
    """

    def __init__(self, witnesses: Sequence[int], canaries: int) -> None:
        self._tensor = np.repeat(np.arange(len(witnesses)), witnesses)
        self._counts = np.maximum(np.asarray(witnesses, dtype=np.float64), 1.0)
        self._filled = np.zeros(len(witnesses))
        self._live = np.zeros(canaries)
        self._steps = 0

    def update(self, dead: DeadEntries | None) -> None:
        """Take in a step; None where all of it was released."""
        self._steps += 1
        if dead is None:
            self._live += 1.0
            return
        self._live += dead.live
        self._filled += np.bincount(self._tensor[dead.witnesses], minlength=len(self._filled))

    @property
    def canaries(self) -> FloatArray:
        """Share of each canary's square norm, ``[k]``."""
        return np.asarray(self._live / self._steps) if self._steps else np.ones(len(self._live))

    @property
    def tensors(self) -> FloatArray:
        """Share of each tensor's witnesses."""
        return np.asarray(1.0 - self._filled / (self._counts * max(self._steps, 1)))
