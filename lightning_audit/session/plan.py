"""The plan of a step: its canaries, where they are read, and how they come out again.

A `Plan` is frozen: who changes it gets another one, and the session holds the one in force.
Canaries are rows of gradients, rows that hand-written code requests, or a sample of the batch;
`session.step` says when they go in and out.

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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.canaries.gradient import Placement
from lightning_audit.checks.probes import Witnesses
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.hooks.gradient_tap import CanaryRows
from lightning_audit.layout import Direction, FloatArray, IndexArray
from lightning_audit.record.store import DROPPED, EARLIER, INJECTED, Observation

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
        return _sums(self.row, self.value * values[self.at], count)

    def shares(self, chosen: NDArray[np.bool_], count: int) -> FloatArray:
        """Return each direction's share of squared norm on ``chosen``, ``[n]`` to ``[count]``."""
        squares = self.value**2
        norms = _sums(self.row, squares, count)
        return _sums(self.row, squares * chosen[self.at], count) / np.where(norms > 0, norms, 1.0)

    def combined(self, weights: FloatArray, size: int) -> FloatArray:
        """Return the sum of the directions times ``weights``, ``[count]`` to ``[size]``."""
        return _sums(self.at, weights[self.row] * self.value, size)


def _sums(places: IndexArray, values: FloatArray, size: int) -> FloatArray:
    """Return the sums of the values of each place, ``[size]``."""
    return np.bincount(places, weights=values, minlength=size).astype(np.float64, copy=False)


class Coordinates:
    """The entries that are read in each tensor: probe coordinates and canary coordinates.

    Args:
        witnesses: probe coordinates, which carry no canary.
        placement: the canaries.
    """

    def __init__(self, witnesses: Witnesses, placement: Placement) -> None:
        self.placement = placement
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
        both = zip(vars(self._known).values(), vars(moving).values(), strict=True)
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


# --- The plan of one step.


@dataclass(frozen=True)
class Plan:
    """Plan of a step: which canaries enter it and where, and the claim about it.

    Args:
        claim: the claim.
        coins: whether each canary is in, ``[k]``.
        status: NOT_PLANNED, INJECTED or DROPPED.
        directions: directions of all canaries, ``[k]``; empty if none may enter.
        located: the directions restricted to the entries that are read.
        rows: what this process adds, in units of the norm of all but one.
        adds: whether this process, not another one, adds the canaries.
        seed: of the rows' positions among those of the data; None: after them.
        weights: what each canary adds to the sum, in units of the clipping norm, ``[k]``; empty if
            this is 1 for all.
        earlier: whether they are in a part of a split batch before the last.
        summed: whether that part has been clipped and added up.
        meant: whether they were drawn to enter an earlier part, which the batch may not have.
        first: whether they were laid out for the first of possibly several backward passes of the
            step.
        added: number of rows that all processes have in the step.
        norm: of the longest row, in the unit of a per-sample gradient.
    """

    claim: StepClaim
    coins: FloatArray
    status: int
    directions: Sequence[Direction] = ()
    located: Located | None = None
    rows: CanaryRows = field(default_factory=lambda: CanaryRows([]), compare=False, repr=False)
    adds: bool = True
    seed: tuple[int, int] | None = None
    weights: Sequence[float] = ()
    earlier: bool = False
    summed: bool = False
    meant: bool = False
    first: bool = False
    added: int = 0
    norm: float = 0.0

    def dropped(self) -> Plan:
        """Return the plan of a step that its canaries could not enter."""
        return replace(self, status=DROPPED, added=0)

    @property
    def weighed(self) -> FloatArray:
        """What each canary adds to the sum of the step, in units of the clipping norm, ``[k]``."""
        return self.coins * np.array(self.weights) if len(self.weights) else self.coins

    @property
    def recorded(self) -> int:
        """Status for the record: as drawn, regardless of the batch's number of parts."""
        earlier = self.meant or (self.first and self.claim.accumulated > 1)
        return EARLIER if earlier and self.status == INJECTED else self.status

    def amounts(self, divisor: float, size: int) -> FloatArray | None:
        """Return the canaries' contribution to the gradient under the claim, per coordinate.

        Args:
            divisor: divisor of the noisy sum at the time of the reading.
            size: number of entries that are read.

        Returns:
            The contribution, ``[size]``; None if no canary is in.
        """
        if self.located is None or not self.added:
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

    def clear(self, sums: Sequence[torch.Tensor | None]) -> None:
        """Remove the canaries that this process added from clipped sums, one per tensor."""
        norm = self.claim.max_grad_norm
        if self.claim.views == 1 and not len(self.weights):
            self.rows.add(sums, np.full(len(self.rows), -norm), plain=True)
        elif self.adds:
            CanaryRows(self.directions).add(sums, -norm * self.weighed)

    def completed(
        self, seen: Observation, drawn: FloatArray, coordinates: Coordinates
    ) -> Observation:
        """Return an observation with the plan, and what shows at probe coordinates and canaries.

        Args:
            seen: the step's gradient before and after its update.
            drawn: the reading without canaries, in units of the clipping norm, ``[n]``.
            coordinates: the entries that were read.
        """
        located, count, at = self.located, len(self.coins), coordinates.witness_at
        own: dict[str, Any] = {
            "canaries": self.recorded,
            "noise_multiplier": self.claim.noise_multiplier,
            "max_grad_norm": self.claim.max_grad_norm,
            "scale": self.claim.scale,
            "coins": self.coins,
            "readings": self.readings(drawn, seen.dead),
            "witnesses": drawn[at],
            "live": np.ones(count),
        }
        if seen.dead is not None:
            whole = coordinates.empty_tensors(seen.dead)
            own |= {"dead_witnesses": seen.dead[at], "dead_tensors": whole}
        if seen.at_cut and not seen.replaced:
            own["followed"] = seen.values[at], None if seen.used is None else seen.used[at]
        if located is None or self.status != INJECTED:
            return seen.having(**own)
        if seen.dead is not None:
            hit = (self.coins[located.row] > 0) & seen.dead[located.at]
            own |= {"live": located.shares(~seen.dead, count), "dead_canary": bool(hit.any())}

        def in_noise_units(values: FloatArray | None) -> FloatArray | None:
            if values is None:
                return None
            size = float(np.sqrt(np.mean(values[at] ** 2)))
            if not math.isfinite(size) or size == 0.0:
                return None
            return located.products(values, count) / size

        rest = None if seen.replaced else in_noise_units(seen.values)
        if rest is not None:
            moved = None if seen.moves is None else -seen.moves.update
            own["along"] = rest, in_noise_units(seen.used), in_noise_units(moved)
        return seen.having(**own)
