"""Plan and observation of one step of the optimizer, and the entries that are read.

**Plan and observation of one step of the optimizer.** A step is planned, its canaries are inserted,
its gradient is read (`hooks.gradient_tap.Reading`), and the observation goes to the record and
to the checks.

Some entries of a gradient may not be part of its release: they contain neither noise nor canary.
Updates of one block at a time, or noise in a public subspace, leave the other entries exactly zero.
Nothing is released there, and no noise is missing. But code that adds noise only to the nonzero
entries of the data's gradient leaves zeros too, and reveals which entries are zero. That code adds
noise to an entry that a canary makes nonzero. So zeros count as not released only after an inserted
canary was read as exactly zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.canaries.gradient import Placement
from lightning_audit.checks.probes import NoiseSeen, Witnesses
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.hooks.gradient_tap import CanaryRows, Reading
from lightning_audit.layout import Direction, FloatArray, IndexArray
from lightning_audit.record.store import EARLIER, INJECTED

# --- Entries of the gradient that are read at every step, and the canaries' positions in them.


@dataclass(frozen=True)
class Located:
    """Canary directions restricted to the entries that are read, in sparse form.

    Args:
        row: index of the direction, ``[m]``.
        at: position in the reading, ``[m]``.
        value: the direction's entry at that position, ``[m]``.
    """

    row: IndexArray
    at: IndexArray
    value: FloatArray

    def products(self, values: FloatArray, count: int) -> FloatArray:
        """Return inner products of ``count`` directions with a reading, ``[n]`` to ``[count]``."""
        sums = np.bincount(self.row, weights=self.value * values[self.at], minlength=count)
        return np.asarray(sums, dtype=np.float64)

    def shares(self, chosen: NDArray[np.bool_], count: int) -> FloatArray:
        """Return each direction's share of squared norm on ``chosen``, ``[n]`` to ``[count]``."""
        weights = self.value**2 * chosen[self.at]
        sums = np.bincount(self.row, weights=weights, minlength=count)
        norms = np.bincount(self.row, weights=self.value**2, minlength=count)
        return np.asarray(sums / np.where(norms > 0, norms, 1.0), dtype=np.float64)

    def combined(self, weights: FloatArray, size: int) -> FloatArray:
        """Return the sum of the directions times ``weights``, ``[count]`` to ``[size]``."""
        sums = np.bincount(self.at, weights=weights[self.row] * self.value, minlength=size)
        return np.asarray(sums, dtype=np.float64)


class Coordinates:
    """The entries that are read in each tensor: probe coordinates and canary coordinates.

    Args:
        witnesses: probe coordinates, which carry no canary.
        placement: the canaries.
    """

    def __init__(self, witnesses: Witnesses, placement: Placement) -> None:
        self._fixed = [not item.canary.moving for item in placement.placed]
        self._known: Located | None = None
        self._start: dict[int, int] = {}
        #: Tensor -> flat coordinates, sorted and distinct.
        self.by_tensor: dict[int, IndexArray] = {}
        #: Number of all entries.
        self.size = 0
        canaries, none, witness_at = placement.support(), np.zeros(0, dtype=np.int64), []
        for j, own in sorted(witnesses.index.items()):
            # In a tensor that canaries fill, probe coordinates are canary coordinates too.
            self.by_tensor[j] = np.union1d(own, canaries.get(j, none))
            self._start[j] = self.size
            witness_at.append(self.size + np.searchsorted(self.by_tensor[j], own))
            self.size += len(self.by_tensor[j])
        #: Positions of the probe coordinates, in their order.
        self.witness_at: IndexArray = np.concatenate(witness_at)

    def empty_tensors(self, dead: NDArray[np.bool_]) -> bool:
        """Return whether the dead entries are exactly those of some tensors, but not of all."""
        ends = [*self._start.values(), self.size]
        parts = [dead[a:b] for a, b in itertools.pairwise(ends)]
        return all(part.all() or not part.any() for part in parts) and not dead.all()

    def locate(self, directions: Sequence[Direction]) -> Located:
        """Return the positions of a step's canary directions."""
        if self._known is None:
            # Fixed directions are the same at every step.
            self._known = self._located(directions, fixed=True)
        if all(self._fixed):
            return self._known
        moving = self._located(directions, fixed=False)
        both = zip(
            (self._known.row, self._known.at, self._known.value),
            (moving.row, moving.at, moving.value),
            strict=True,
        )
        return Located(*(np.concatenate(parts) for parts in both))

    def _located(self, directions: Sequence[Direction], *, fixed: bool) -> Located:
        rows = [row for row, kind in enumerate(self._fixed) if kind == fixed]
        found = [self._entries(directions[row]) for row in rows]
        return Located(
            np.repeat(np.array(rows, dtype=np.int64), [len(at) for at, _ in found]),
            np.concatenate([np.zeros(0, dtype=np.int64), *(at for at, _ in found)]),
            np.concatenate([np.zeros(0), *(value for _, value in found)]),
        )

    def _entries(self, direction: Direction) -> tuple[IndexArray, FloatArray]:
        at = [
            self._start[part.tensor] + np.searchsorted(self.by_tensor[part.tensor], part.index)
            for part in direction.parts
        ]
        return np.concatenate(at), np.concatenate([part.value for part in direction.parts])


# --- Plan and observation of one step of the optimizer.

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
        weights: what each canary adds to the sum, in units of the clipping norm, ``[k]``; empty if
            this is 1 for all.
        made: the rows, once made; the same in all later versions of the plan.
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
    weights: Sequence[float] = ()
    made: dict[Any, CanaryRows] = field(default_factory=dict, compare=False, repr=False)

    @property
    def added(self) -> int:
        """Number of rows that all processes add."""
        return int(self.coins.sum()) * self.claim.views

    @property
    def weighed(self) -> FloatArray:
        """What each canary adds to the sum of the step, in units of the clipping norm, ``[k]``."""
        return self.coins * np.array(self.weights) if len(self.weights) else self.coins

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
    def rows(self) -> CanaryRows:
        """The rows of those canaries, in units of the norm of all but one."""
        if not self.adds:
            return CanaryRows([])
        key = (self.coins.tobytes(), self.turn, self.shorter, self.claim.views)
        if key not in self.made:
            chosen, middle = self.chosen, int(self.coins.sum()) // 2
            lengths = np.ones(len(chosen))
            if chosen and self.shorter < 1.0:
                lengths[middle] = self.shorter
            views = self.claim.views
            rows = [row for row in chosen for _ in range(views)]
            self.made[key] = CanaryRows(rows, lengths.repeat(views))
        return self.made[key]

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
        amount = self.claim.max_grad_norm / divisor
        return self.located.combined(amount * self.weighed, size)

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
        return self.located.products(values, count) + self.weighed * live

    def take_out(self, sums: Sequence[torch.Tensor | None]) -> None:
        """Remove the canaries that this process added from clipped sums, one per tensor."""
        norm = self.claim.max_grad_norm
        if self.claim.views == 1 and not len(self.weights):
            self.rows.add(sums, np.full(len(self.rows), -norm), plain=True)
        elif self.adds:
            entered = self.made.setdefault("all", CanaryRows(self.directions))
            entered.add(sums, -norm * self.weighed)


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
