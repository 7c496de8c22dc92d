"""One step of the optimizer, as it is planned, and as it was observed.

A step is planned, its canaries enter, its gradient is read (`taps.gradient_reading.Reading`), and
what was observed goes to the record and to the checks.

Some entries of a gradient may be no part of its release: neither noise nor canary came out. Updates
of one block at a time, or noise in a public subspace, leave the other entries exactly zero. Nothing
is released there, and no noise is missing. But noise that is left out where the data's gradient is
zero leaves zeros too, and tells which they are: there a canary that enters brings its noise with
it. So zeros are taken for no part of the release only once a canary that had entered has come out
as zero.
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

#: What is said where a step has such zeros.
ZEROS = (
    "entries of the gradient were exactly zero, noise included; where a canary that had entered "
    "came out as zero as well, they are taken for no part of the release"
)


@dataclass(frozen=True)
class PlannedStep:
    """What is planned of a step: which canaries enter it, and what is claimed of it.

    Args:
        claim: what is claimed.
        coins: whether each canary is in, ``[k]``.
        directions: of all canaries, ``[k]``; empty where none may enter.
        status: NOT_PLANNED, INJECTED or DROPPED.
        located: the directions among the entries that are read.
        prepared: whether the rows were laid out before the backward pass and wait to be put in.
        adds: whether this process adds the canaries, rather than another one.
        earlier: whether they are in an earlier part of a split batch than the last.
        meant: whether they were drawn to enter an earlier part, which the batch may not have.
        first: whether they were laid out for the first of the step's backward passes, of which
            there may be several.
        asked: whether the training's own code asked for them.
        turn: which of the canaries that are in is the first row, modulo their number.
        shorter: norm of the canary in their middle over that of the others; all are clipped.
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
        """What the record says of the canaries: what was drawn, whatever parts the batch had."""
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
        """The rows of those canaries, over the norm of all but one."""
        rows, middle = self.chosen, int(self.coins.sum()) // 2
        if rows and self.shorter < 1.0:
            rows[middle] = rows[middle].scaled(self.shorter)
        return rows

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


@dataclass(frozen=True)
class UsedRelease:
    """What was made of a step's release, along the canaries' directions, in any unit, ``[k]``.

    Args:
        rest: the release itself, canaries taken out.
        used: the gradient when the update was done; None if it is the release.
        moved: minus the change of the weights; None if it was not watched.
    """

    rest: FloatArray
    used: FloatArray | None
    moved: FloatArray | None


@dataclass(frozen=True)
class FollowedRelease:
    """A step's release and what the update used, at the witnesses, in any unit, ``[n]``.

    Args:
        release: entries of the noisy gradient, canaries taken out.
        used: the same when the update was done; None if it is the release.
    """

    release: FloatArray
    used: FloatArray | None


@dataclass(frozen=True)
class ZeroEntries:
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


@dataclass(frozen=True)
class ObservedStep:
    """One step of the optimizer, as it was read.

    Args:
        claim: what was claimed of it.
        status: NOT_PLANNED, INJECTED, DROPPED or EARLIER.
        coins: whether each canary was in, ``[k]``.
        readings: inner products with the canaries' directions, in units of the signal, ``[k]``.
        witnesses: entries of the gradient that carry no canary, in the same unit, ``[n]``.
        epoch: number of the epoch.
        replaced: whether the update used another gradient than the one that was read.
        sample_rate: None if unknown.
        noise: the gradient beside the sums that it was made of, None if it was not read.
        dead: what of the step is exactly zero; None if nothing is.
        used: what was made of the release; None if that is not known.
        followed: the release and what was made of it; None where it was not read at the cut.
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
    """What can be followed of a step's release: None where it was not read, or is not used."""
    if not reading.at_cut or reading.replaced:
        return None
    at, used = coordinates.witness_at, reading.used
    return FollowedRelease(reading.values[at], None if used is None else used[at])


def used_release(
    plan: PlannedStep, reading: Reading, coordinates: Coordinates
) -> UsedRelease | None:
    """What a step's update used, in units of its own size; None where no canary was in it.

    Args:
        plan: of the step.
        reading: of its gradient.
        coordinates: of what was read.
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
    """What of a step is no part of its release; None where nothing that was read was zero.

    Args:
        plan: of the step.
        reading: of its gradient.
        coordinates: of what was read.
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
