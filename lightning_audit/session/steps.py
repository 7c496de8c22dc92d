"""Plan and observation of one step of the optimizer.

A step is planned, its canaries are inserted, its gradient is read
(`taps.gradient_reading.Reading`), and the observation goes to the record and to the checks.

Some entries of a gradient may not be part of its release: they contain neither noise nor canary.
Updates of one block at a time, or noise in a public subspace, leave the other entries exactly zero.
Nothing is released there, and no noise is missing. But code that adds noise only to the nonzero
entries of the data's gradient leaves zeros too, and reveals which entries are zero. That code adds
noise to an entry that a canary makes nonzero. So zeros count as not released only after an inserted
canary was read as exactly zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.checks.noise.noise_seen import NoiseSeen
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.layout import Direction, FloatArray
from lightning_audit.record.store import EARLIER, INJECTED
from lightning_audit.session.coordinates import Coordinates, Located
from lightning_audit.taps.gradient_reading import Reading
from lightning_audit.taps.tensor_views import add_along

#: Note for steps with such zeros.
ZEROS = (
    "entries of the gradient were exactly zero, noise included; if an inserted canary was read as "
    "exactly zero too, they count as not part of the release"
)


@dataclass(frozen=True)
class PlannedStep:
    """Plan of a step: which canaries enter it, and the claim about it.

    Args:
        claim: the claim.
        coins: whether each canary is in, ``[k]``.
        directions: directions of all canaries, ``[k]``; empty if none may enter.
        status: NOT_PLANNED, INJECTED or DROPPED.
        located: the directions restricted to the entries that are read.
        prepared: whether the rows were prepared before the backward pass and not yet inserted.
        adds: whether this process, not another one, adds the canaries.
        earlier: whether they are in a part of a split batch before the last.
        meant: whether they were drawn to enter an earlier part, which the batch may not have.
        first: whether they were prepared for the first of possibly several backward passes of the
            step.
        asked: whether the training's own code requested them.
        turn: index of the inserted canary that is the first row, modulo their number.
        shorter: norm of the middle canary over that of the others; all are clipped.
    """

    claim: StepClaim
    coins: FloatArray
    directions: Sequence[Direction]
    status: int
    located: Located | None = None
    prepared: bool = False
    adds: bool = True
    earlier: bool = False
    meant: bool = False
    first: bool = False
    asked: bool = False
    turn: int = 0
    shorter: float = 1.0

    @property
    def recorded(self) -> int:
        """Status for the record: as drawn, regardless of the batch's number of parts."""
        earlier = self.meant or (self.first and self.claim.accumulated > 1)
        return EARLIER if earlier and self.status == INJECTED else self.status

    @property
    def chosen(self) -> list[Direction]:
        """Directions of the canaries that this process adds, in the order of their rows."""
        if not self.adds:
            return []
        chosen = [d for coin, d in zip(self.coins, self.directions, strict=False) if coin]
        first = self.turn % max(len(chosen), 1)
        return chosen[first:] + chosen[:first]

    @property
    def rows(self) -> list[Direction]:
        """The rows of those canaries, in units of the norm of all but one."""
        rows, middle = self.chosen, int(self.coins.sum()) // 2
        if rows and self.shorter < 1.0:
            rows[middle] = rows[middle].scaled(self.shorter)
        return rows

    def amounts(self, divisor: float, size: int) -> FloatArray | None:
        """Return the canaries' contribution to the gradient under the claim, per coordinate.

        Args:
            divisor: divisor of the noisy sum at the time of the reading.
            size: number of entries that are read.

        Returns:
            The contribution, ``[size]``; None if no canary is in.
        """
        if self.status != INJECTED or self.located is None or not self.coins.any():
            return None
        return self.located.combined(self.claim.max_grad_norm / divisor * self.coins, size)

    def readings(self, values: FloatArray, dead: NDArray[np.bool_] | None) -> FloatArray:
        """Return inner products with the canaries' directions, ``[k]``.

        The removed canaries count as part of the gradient.

        Args:
            values: the reading without canaries, in units of the clipping norm, ``[n]``.
            dead: which entries were exactly zero, ``[n]``; None if none was.
        """
        count = len(self.coins)
        if self.status != INJECTED or self.located is None:
            return np.zeros(count)
        # A canary was not removed from zero entries.
        live = 1.0 if dead is None else self.located.shares(~dead, count)
        return self.located.products(values, count) + self.coins * live

    def take_out(self, sums: Sequence[torch.Tensor | None]) -> None:
        """Remove the canaries that this process added from clipped sums, one per tensor."""
        chosen = self.chosen
        add_along(sums, chosen, np.full(len(chosen), -self.claim.max_grad_norm))


@dataclass(frozen=True)
class UsedRelease:
    """A step's release and update along the canaries' directions, each in any unit, ``[k]``.

    Args:
        rest: the release without canaries.
        used: the gradient after the update; None if it is the release.
        moved: minus the change of the weights; None if it was not read.
    """

    rest: FloatArray
    used: FloatArray | None
    moved: FloatArray | None


@dataclass(frozen=True)
class FollowedRelease:
    """A step's release and the gradient used, at the probe coordinates, in any unit, ``[n]``.

    Args:
        release: entries of the noisy gradient without canaries.
        used: the same entries after the update; None if they are those of the release.
    """

    release: FloatArray
    used: FloatArray | None


@dataclass(frozen=True)
class ZeroEntries:
    """Entries of one step that are exactly zero.

    Args:
        witnesses: which probe coordinates are zero, ``[n]``.
        whole: whether the zero entries are exactly those of some tensors, but not of all.
        live: share of each canary's squared norm on the other entries, ``[k]``.
        proved: whether an inserted canary was read as exactly zero somewhere.
    """

    witnesses: NDArray[np.bool_]
    whole: bool
    live: FloatArray
    proved: bool

    def filled(self, witnesses: FloatArray, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Return probe-coordinate readings, with fresh claimed noise at unreleased entries.

        Args:
            witnesses: readings at the probe coordinates, in units of the clipping norm, ``[n]``.
            sigma: the claimed noise multiplier.
            rng: the audit's own generator.
        """
        noise = sigma * rng.standard_normal(len(witnesses))
        return np.where(self.witnesses, noise, witnesses)

    def readings(self, readings: FloatArray, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Return readings along the part of each canary's direction that was released.

        Args:
            readings: readings along the whole direction, in units of the signal, ``[k]``.
            sigma: the claimed noise multiplier.
            rng: the audit's own generator.

        Returns:
            The readings; fresh claimed noise for a direction that was not released at all.
        """
        noise = sigma * rng.standard_normal(len(readings))
        share = np.sqrt(np.where(self.live > 0, self.live, 1.0))
        return np.where(self.live > 0, readings / share, noise)


@dataclass(frozen=True)
class ObservedStep:
    """Observation of one step of the optimizer.

    Args:
        claim: the claim about it.
        status: NOT_PLANNED, INJECTED, DROPPED or EARLIER.
        coins: whether each canary was in, ``[k]``.
        readings: inner products with the canaries' directions, in units of the signal, ``[k]``.
        witnesses: readings at the probe coordinates, in the same unit, ``[n]``.
        epoch: number of the epoch.
        replaced: whether the update used another gradient than the one that was read.
        sample_rate: the sampling rate; None if unknown.
        noise: the noisy gradient together with its clipped sums; None if they were not read.
        dead: entries that are exactly zero; None if none is.
        used: release and update along the canaries; None if unknown.
        followed: release and gradient used; None if it was not read right after the noise.
    """

    claim: StepClaim
    status: int
    coins: FloatArray
    readings: FloatArray
    witnesses: FloatArray
    epoch: int
    replaced: bool
    sample_rate: float | None
    noise: NoiseSeen | None = None
    dead: ZeroEntries | None = None
    used: UsedRelease | None = None
    followed: FollowedRelease | None = None


def followed_release(reading: Reading, coordinates: Coordinates) -> FollowedRelease | None:
    """Return release and gradient used; None if not read at the cut, or replaced."""
    if not reading.at_cut or reading.replaced:
        return None
    at, used = coordinates.witness_at, reading.used
    return FollowedRelease(reading.values[at], None if used is None else used[at])


def used_release(
    plan: PlannedStep, reading: Reading, coordinates: Coordinates
) -> UsedRelease | None:
    """Return what a step's update used, in units of its own size; None if it has no canaries.

    Args:
        plan: the step's plan.
        reading: the reading of its gradient.
        coordinates: the entries that were read.
    """
    located = plan.located
    if plan.status != INJECTED or located is None or reading.replaced:
        return None
    count, moves = len(plan.coins), reading.moves

    def along(values: FloatArray | None) -> FloatArray | None:
        if values is None:
            return None
        size = float(np.sqrt(np.mean(values[coordinates.witness_at] ** 2)))
        if not math.isfinite(size) or size == 0.0:
            return None
        return located.products(values, count) / size

    rest = along(reading.values)
    if rest is None:
        return None
    moved = None if moves is None else along(-moves.update)
    return UsedRelease(rest, along(reading.used), moved)


def zero_entries(
    plan: PlannedStep, reading: Reading, coordinates: Coordinates
) -> ZeroEntries | None:
    """Return the zero entries of a step; None if no entry that was read is zero.

    Args:
        plan: the step's plan.
        reading: the reading of its gradient.
        coordinates: the entries that were read.
    """
    dead = reading.dead
    if dead is None:
        return None
    live, proved = np.ones(len(plan.coins)), False
    if plan.status == INJECTED and plan.located is not None:
        live = plan.located.shares(~dead, len(plan.coins))
        entered = plan.coins[plan.located.row] > 0
        proved = bool((entered & dead[plan.located.at]).any())
    whole = coordinates.empty_tensors(dead)
    return ZeroEntries(dead[coordinates.witness_at], whole, live, proved)
