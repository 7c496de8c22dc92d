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

**Input canary: one additional sample in the batch of every step.** A step's direction is the
gradient of the canary's loss at the current weights. An extra backward pass computes it before the
coin is used; the reading covers all trained parameters.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit._validate import BadArgument
from lightning_audit.canaries.gradient import Placement
from lightning_audit.canaries.inputs import (
    InputCanary,
    Sample,
    appended,
    has_forward,
    loss_of,
    rows,
    sample_of,
)
from lightning_audit.checks.probes import Witnesses
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.hooks.boundary import raised_in_audit
from lightning_audit.hooks.gradient_tap import CanaryRows
from lightning_audit.layout import Direction, FloatArray, IndexArray
from lightning_audit.record.store import DROPPED, EARLIER, INJECTED, Kept, Observation
from lightning_audit.replay.clipping import DenseDirection, own_direction, undisturbed
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.verdict.judge import MAX_LOST

if TYPE_CHECKING:
    from lightning_audit.session.planner import StepPlanner

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


# --- The plan of one step.


def no_rows() -> CanaryRows:
    """Return the rows of a step to which this process adds no canary."""
    return CanaryRows([])


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
    rows: CanaryRows = field(default_factory=no_rows, compare=False, repr=False)
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
        seen = seen.having(
            canaries=self.recorded,
            noise_multiplier=self.claim.noise_multiplier,
            max_grad_norm=self.claim.max_grad_norm,
            scale=self.claim.scale,
            coins=self.coins,
            readings=self.readings(drawn, seen.dead),
            witnesses=drawn[at],
        )
        live, dead_canary = np.ones(count), False
        if seen.dead is not None:
            whole = coordinates.empty_tensors(seen.dead)
            seen = seen.having(dead_witnesses=seen.dead[at], dead_tensors=whole)
        if seen.at_cut and not seen.replaced:
            used = None if seen.used is None else seen.used[at]
            seen = seen.having(followed=(seen.values[at], used))
        if located is None or self.status != INJECTED:
            return seen.having(live=live)
        if seen.dead is not None:
            live = located.shares(~seen.dead, count)
            dead_canary = bool(((self.coins[located.row] > 0) & seen.dead[located.at]).any())

        def along(values: FloatArray | None) -> FloatArray | None:
            if values is None:
                return None
            size = float(np.sqrt(np.mean(values[at] ** 2)))
            if not math.isfinite(size) or size == 0.0:
                return None
            return located.products(values, count) / size

        rest = None if seen.replaced else along(seen.values)
        moved = None if seen.moves is None else -seen.moves.update
        both = None if rest is None else (rest, along(seen.used), along(moved))
        return seen.having(live=live, dead_canary=dead_canary, along=both)


# --- Canaries as rows of the per-sample gradients that Opacus' optimizers clip.

Tensors = Sequence[torch.Tensor | None]


class GradientRows(Kept):
    """Canaries that are rows among the per-sample gradients.

    Args:
        planner: plans the steps.
    """

    def __init__(self, planner: StepPlanner) -> None:
        self._planner = planner

    def take_out(
        self, plan: Plan, divisor: float, grads: Tensors
    ) -> tuple[FloatArray | None, bool]:
        """Remove the canaries from the gradient, or return what to subtract from the reading.

        Args:
            plan: the step's plan.
            divisor: divisor of the noisy sum at the time of the reading.
            grads: the noisy gradient, one tensor per parameter.

        Returns:
            The amount to subtract at each coordinate that is read, ``[n]``, None for nothing; and
            whether the gradient was changed.
        """
        return plan.amounts(divisor, self._planner.coordinates.size), False

    def clear(self, plan: Plan, sums: Tensors) -> None:
        """Remove the canaries from the clipped sums, which Opacus keeps after the step."""
        plan.clear(sums)

    def completed(self, plan: Plan, seen: Observation, drawn: FloatArray) -> Observation:
        """See `Plan.completed`."""
        return plan.completed(seen, drawn, self._planner.coordinates)

    def rows_of_data(self, rows: torch.Tensor | None, plan: Plan | None) -> torch.Tensor | None:
        """Return the rows of per-sample gradients without canaries; None if unknown."""
        return rows

    @property
    def oversize(self) -> float:
        """Norm of the canaries, in units of the clipping norm."""
        return self._planner.oversize

    def pass_blockers(self) -> list[str]:
        """Return what of these canaries prevents a pass, as text."""
        return []


# --- Canaries as rows that hand-written DP-SGD requests with `per_sample` or `rows`.

_SILENT = (
    "no canary could enter {silent} of {steps} steps: call grads = "
    "lightning_audit.per_sample(grads, module=net) once in each step before clipping, or "
    "lightning_audit.rows(module=net) in a loop over samples"
)


class HandedRows(GradientRows):
    """Canaries that the adapter holds after a step's code first requests them.

    A step that requests no canary is still read, so that too little noise is detected without any
    change to the training.
    """

    KEPT = ("silent",)

    def __init__(self, planner: StepPlanner) -> None:
        super().__init__(planner)
        #: Number of steps that requested no canary.
        self.silent = 0

    def count_silent(self) -> None:
        """Count a step that requested no canary."""
        self.silent += 1

    def clear(self, plan: Plan, sums: Tensors) -> None:
        """Do nothing: the sums are the user's."""

    def pass_blockers(self) -> list[str]:
        """Return a message if too many steps requested no canary."""
        steps = self._planner.recorder.steps
        if self.silent <= MAX_LOST * steps:
            return []
        return [_SILENT.format(silent=self.silent, steps=steps)]


# --- Input canary: one additional sample in the batch of every step.

_log = logging.getLogger(__name__)

#: Number of steps for which the norm of the canary's gradient is kept.
_KEPT_NORMS = 1000
#: Opacus' guard against dividing by a norm of zero.
_EPSILON = 1e-6


def join_batches(canaries: Sequence[Any], world_size: int, module: Any = None) -> bool:
    """Return whether the audit's canaries are samples that join batches.

    Args:
        canaries: the audit's canaries.
        world_size: number of processes.
        module: the trained module; None to check the other arguments only.

    Raises:
        UnauditableTraining: several processes, each with its own batch, or no function that gives
            the loss of a sample.
    """
    by_input = isinstance(canaries[0], InputCanary)
    if by_input and world_size > 1:
        raise UnauditableTraining(
            f"canaries={list(canaries)!r} would join the batch of each of the {world_size} "
            "processes; train in one process, or use gradient canaries."
        )
    if by_input and module is not None and canaries[0].loss is None and not has_forward(module):
        children = (name for name, child in module.named_children() if list(child.parameters()))
        net = next(children, "net")
        raise UnauditableTraining(
            f"{type(module).__name__} has no forward, which {type(canaries[0]).__name__} calls for "
            f"the loss of its sample: add `def forward(self, x): return self.{net}(x)`, or give "
            "the canary loss=, a function of (module, batch), and num_classes=."
        )
    return by_input


class InputSample(GradientRows):
    """A sample that joins the batch of each step whose coin is 1.

    Args:
        canary: makes the sample.
        planner: plans the steps.
        chooser: generator that chooses the record of which the sample is made. It is separate
            from the coins' generator: a resumed run draws a sample again, which must not shift
            its coins.
    """

    KEPT = ("_norms",)

    def __init__(
        self, canary: InputCanary, planner: StepPlanner, chooser: np.random.Generator
    ) -> None:
        super().__init__(planner)
        self._canary, self._chooser = canary, chooser
        #: The canary's sample is a record of the data and is not in checkpoints: a resumed run
        #: chooses another one.
        self._base: Sample | None = None
        self._made: Sample | None = None
        self._made_at = -1
        self._direction: DenseDirection | None = None
        #: Number of samples in batches since the coin was flipped.
        self._admitted = 0
        #: Index of the canary's row among them.
        self._canary_row = 0
        self._reading = math.nan
        #: Norms of the canary's gradient at the last steps, in units of the clipping norm.
        self._norms: list[float] = []

    # ------------------------------------------------------------------ the batch

    def lay_out(self, batch: Any, module: torch.nn.Module, plan: Plan) -> Any | None:
        """Return the batch of a new step, with the canary if its coin is 1.

        Args:
            batch: as the user's ``training_step`` would get it; not modified.
            module: the user's module.
            plan: with the step's coin.

        Returns:
            The batch; None if the canary's gradient is zero or not finite.

        Raises:
            UnauditableTraining: the canary needs more arguments for this kind of batch or module.
        """
        try:
            with undisturbed(module):
                sample = self._sample(batch, module)
                self._direction = self._own_direction(sample, module)
                # Made for either coin: whether a step counts must not depend on the coin.
                with_canary = appended(batch, sample)
        except ValueError as error:
            if raised_in_audit(error) and not isinstance(error, BadArgument):
                raise
            raise UnauditableTraining(f"{type(self._canary).__name__}: {error}") from error
        if self._direction is None:
            return None
        trained = with_canary if plan.coins.any() else batch
        self._admitted, self._canary_row = rows(trained), rows(batch)
        return trained

    def admit(self, batch: Any) -> None:
        """Count the samples of a further batch of the step."""
        self._admitted += self.rows_of(batch)

    def refuse_adaptive(self) -> None:
        """Raise `UnauditableTraining` if the clipping adapts, so that it cannot be taken out."""
        if hasattr(self._planner.step.optimizer, "_adjusted_noise_multiplier"):
            raise cannot_take_out([self._canary], "adaptive")

    def rows_of(self, batch: Any) -> int:
        """Return a batch's number of samples."""
        try:
            return rows(batch)
        except ValueError as error:
            raise UnauditableTraining(f"{type(self._canary).__name__}: {error}") from error

    def is_due(self) -> bool:
        """Return whether the canary may join the batch of the coming step."""
        planner, every = self._planner, self._planner.config.every_n_steps or 1
        number, broken = planner.recorder.steps, planner.recorder.clipping_is_broken
        return number % every == 0 and not broken and planner.layout_holds()

    def _sample(self, batch: Any, module: torch.nn.Module) -> Sample:
        """Return the canary's sample of this step."""
        canary = self._canary
        if self._base is None:
            row = int(self._chooser.integers(rows(batch)))
            self._base = sample_of(batch, row, canary.input, canary.label)
        every, step = canary.remade_every, self._planner.recorder.steps
        if self._made is None or (every is not None and step - self._made_at >= every):
            self._made = canary.made(module, self._base, batch, self._planner.step.params)
            self._made_at = step
        return canary.at_step(module, self._made)

    def _own_direction(self, sample: Sample, module: torch.nn.Module) -> DenseDirection | None:
        loss = loss_of(self._canary, module, sample.batch, sample)
        direction = own_direction(loss, self._planner.step.params)
        if direction is None:
            _log.warning(
                "the gradient of the canary is zero or not finite at step %d; with another "
                "amplitude than %g it may not be",
                self._planner.recorder.steps + 1,
                self._canary.amplitude,
            )
        return direction

    def lost_part(self) -> bool:
        """Return, before clipping, whether a batch of the step was dropped."""
        step = self._planner.step
        waiting = step.batch_size()
        split = any(getattr(p, "summed_grad", None) is not None for p in step.params)
        return waiting is not None and waiting < self._admitted and not split

    # ------------------------------------------------------------------ after the noise

    def take_out(
        self, plan: Plan, divisor: float, grads: Tensors
    ) -> tuple[FloatArray | None, bool]:
        """Read the gradient along the canary's direction, and remove the canary."""
        direction = self._direction
        if plan.status != INJECTED or direction is None:
            return None, False
        limit = plan.claim.max_grad_norm
        self._reading = direction.product(grads) * divisor / limit
        self._norms = [*self._norms[1 - _KEPT_NORMS :], direction.norm / limit]
        if not plan.coins.any():
            return None, False
        # The amount must not depend on the reading: that would remove noise.
        direction.take_out(grads, _clipped(direction, limit) / divisor)
        return None, True

    def clear(self, plan: Plan, sums: Tensors) -> None:
        """Remove the canary from the clipped sums."""
        if self._direction is not None:
            self._direction.take_out(sums, _clipped(self._direction, plan.claim.max_grad_norm))

    def completed(self, plan: Plan, seen: Observation, drawn: FloatArray) -> Observation:
        """Add the reading along the direction, canary included; release the direction."""
        reading, self._reading, self._direction = self._reading, math.nan, None
        # Nothing is kept of a gradient that was replaced.
        own = [math.nan if np.isnan(drawn).all() else reading] if plan.status == INJECTED else [0.0]
        return super().completed(plan, seen, drawn).having(readings=np.array(own))

    def rows_of_data(self, rows: torch.Tensor | None, plan: Plan | None) -> torch.Tensor | None:
        """Return the rows of per-sample gradients without the canary's; None if unknown."""
        at = self._canary_row
        if rows is None or plan is None or not plan.coins.any() or len(rows) < self._admitted:
            return rows  # the canary was in an earlier part of the step, or in none
        if plan.status != INJECTED or len(rows) > self._admitted:
            return None
        return torch.cat([rows[:at], rows[at + 1 :]])

    @property
    def oversize(self) -> float:
        """10 % quantile of the canary's norm over the last steps, over the clipping norm."""
        return float(np.quantile(self._norms, 0.1)) if self._norms else 0.0


def refuse_other_clipping(step: DPSGDStep, canaries: Sequence[object]) -> None:
    """Raise if the norm of a clipped input canary cannot be computed in advance.

    Raises:
        UnauditableTraining: per-layer or adaptive clipping.
    """
    if any(slot.clip_share is not None for slot in step.layout):
        raise cannot_take_out(canaries, "per-layer")
    if step.adapts_its_norm:
        raise cannot_take_out(canaries, "adaptive")


def cannot_take_out(canaries: Sequence[object], clipping: str) -> UnauditableTraining:
    """Return the refusal of an input canary under a kind of clipping."""
    return UnauditableTraining(
        f"canaries={list(canaries)!r} cannot be taken out again under {clipping} clipping; use "
        "gradient canaries, such as Dirac()."
    )


def _clipped(direction: DenseDirection, limit: float) -> float:
    """Return the norm of the canary's clipped gradient."""
    return direction.norm * min(1.0, limit / (direction.norm + _EPSILON))
