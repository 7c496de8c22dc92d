"""How the gradient and the noise of a session's steps are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit._validate import BadArgument
from lightning_audit.checks.probes import (
    REUSE_IN_ALL,
    NoiseSeen,
    Whitening,
    WholeTensors,
    Witnesses,
)
from lightning_audit.checks.randomness import COMPARED
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.hooks.gradient_tap import (
    FINE,
    GradientReader,
    GradientTap,
    Moves,
    NoiseReading,
    Reading,
    WeightWatch,
    clipped_sum,
    read_noise,
)
from lightning_audit.hooks.step_hooks import ClosureHooks, StepHooks
from lightning_audit.hooks.update_tap import MovesOutside, UpdateTap
from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.record.store import INJECTED, Kept
from lightning_audit.session.step import PlannedStep

# --- Reads whole tensors of a step between its noise and its update.

#: Largest number of noise entries whose values are read.
BLOCK = 16384
#: Largest number of entries copied at once.
_AT_ONCE = 2**22


@dataclass(frozen=True)
class TensorReading:
    """A step's gradient and clipped sum over whole tensors, canaries included in both.

    Args:
        entries: number of entries of each tensor, ``[L]``.
        released: sum of squares of the gradient times its divisor, ``[L]``.
        noise: sum of squares of the gradient times its divisor minus the clipped sum, ``[L]``.
        block: the noise (the same difference) at the first and the last entries of each tensor,
            ``[m]``; None if not requested.
    """

    entries: FloatArray
    released: FloatArray
    noise: FloatArray
    block: FloatArray | None


@torch.no_grad()
def read_tensors(
    params: Sequence[torch.nn.Parameter],
    released: Sequence[torch.Tensor | None],
    divisor: float,
    reader: GradientReader,
    *,
    block: bool,
) -> Callable[[], TensorReading] | None:
    """Read whole tensors of a step between its noise and its update.

    Args:
        params: the parameters, in the order of the layout.
        released: the noisy gradient, one tensor per parameter.
        divisor: divisor of the noisy sum.
        reader: brings the values home.
        block: whether to return the first and the last entries of each tensor, about `BLOCK` in
            all.

    Returns:
        A function that returns the reading; None if a gradient or a sum is missing, or has neither
        single nor double precision.
    """
    pairs = [(g, clipped_sum(p, g)) for p, g in zip(params, released, strict=True)]
    squares, ends = [], []
    most = max(2, BLOCK // max(len(pairs), 1))
    for grad, held in pairs:
        if grad is None or held is None or not (grad.dtype in FINE and held.dtype in FINE):
            return None
        flat, sums = grad.detach().reshape(-1), held.detach().reshape(-1)
        if flat.shape != sums.shape or flat.device != sums.device:
            return None
        squares.append(_squares(flat, sums, divisor))
        if block:
            half = min(most, len(flat)) // 2
            where = [slice(0, half), slice(len(flat) - half, len(flat))]
            ends += [flat[at] * divisor - sums[at] for at in where]
    if not squares:
        return None
    device = squares[0].device
    both = reader.also(torch.cat([own.to(device) for own in squares]))
    edge = reader.also(torch.cat([end.to(device) for end in ends])) if block else None
    sizes = np.array([float(p.numel()) for p in params])
    return lambda: TensorReading(
        sizes, both.array[::2], both.array[1::2], None if edge is None else edge.array
    )


def _squares(flat: torch.Tensor, sums: torch.Tensor, divisor: float) -> torch.Tensor:
    """Return the sums of squares of gradient times divisor, and of that minus the clipped sum."""
    found = torch.zeros(2, dtype=torch.float64, device="cpu" if flat.is_mps else flat.device)
    for start in range(0, len(flat), _AT_ONCE):
        grad = flat[start : start + _AT_ONCE] * divisor
        rest = grad - sums[start : start + _AT_ONCE]
        found += torch.stack([_square(grad), _square(rest)]).to(found.device)
    return found


def _square(entries: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares, in double precision; computed on the CPU for MPS."""
    if entries.device.type == "mps":
        entries = entries.cpu()
    norm: torch.Tensor = torch.linalg.vector_norm(entries, dtype=torch.float64)
    return norm.square()


# --- Reads a step's noise together with its clipped sums, and tracks where releases were read.

#: Steps that are read: the first `_FIRST`, then two consecutive ones of every `_EVERY`, to compare
#: a step's noise with that of the step before.
_FIRST, _EVERY = 100, 16
#: Steps for which the norm of the whole sum is computed as well.
_FIRST_NORMS, _EVERY_NORM = 20, 100
#: Steps for which whole tensors are read as well, and those with the noise of a block of entries.
_FIRST_WHOLE, _EVERY_WHOLE = 20, 8
_FIRST_BLOCKS, _EVERY_BLOCK = 6, 32
#: Why the noise cannot be separated if its earlier draws are unknown.
_DRAWS_LEFT = (
    "noise draws of earlier steps are unknown, and part of them remains in this step's noise: a "
    "step could not be read, or was taken before the audit or the last resume"
)
#: Relative difference of numbers that are equal up to rounding.
_EQUAL = 1e-4


class NoiseWatch:
    """Reader of the noise of one private optimizer's steps.

    Args:
        witnesses: probe coordinates, of which some are read.
        alone: whether a single process trains; with several, no process knows the total sums.
        coefficients: coefficients of noise that is correlated over steps, see `PrivacyClaim`; its
            draws are recovered and checked. None for independent noise.
    """

    def __init__(
        self,
        witnesses: Witnesses,
        *,
        alone: bool,
        coefficients: tuple[float, ...] | None = None,
    ) -> None:
        each = max(1, REUSE_IN_ALL // len(witnesses.index))
        self._coordinates = {j: index[:each] for j, index in sorted(witnesses.index.items())}
        self._at: IndexArray | None = None
        self._alone = alone
        self._earlier: int | None = 0
        #: Number of steps that this process has read.
        self._read_here = 0
        self._reading: Callable[[], NoiseReading] | None = None
        self._tensors: Callable[[], TensorReading] | None = None
        self._divisor = 1.0
        self._terms: int | None = None
        self._split = False
        #: Draws recovered from the whole reading, from the gradient at the noise's coordinates, and
        #: from the noise alone. The last would reveal the clipped sums: not in checkpoints.
        self._draws: tuple[Whitening, Whitening, Whitening] | None = None
        if coefficients is not None:
            self._draws = Whitening(coefficients), Whitening(coefficients), Whitening(coefficients)

    def skip(self, step: DPSGDStep) -> None:
        """Count the rows of a part of a split batch, which takes no step."""
        rows = step.batch_size()
        known = rows is not None and self._earlier is not None
        self._earlier = (self._earlier or 0) + (rows or 0) if known else None

    def read(
        self,
        step: DPSGDStep,
        number: int,
        rows: int | None,
        grads: Sequence[torch.Tensor | None],
        divisor: float | None,
        tap: GradientTap,
    ) -> None:
        """Read a step after its noise and before its update, canaries included.

        Args:
            step: the adapter.
            number: number of earlier steps.
            rows: samples of its last part, canaries included; None if unknown.
            grads: its gradient, one tensor per parameter.
            divisor: divisor of the noisy sum; None if it is not known yet: then no whole tensor is
                read.
            tap: reads the gradient.
        """
        earlier, self._earlier = self._earlier, 0
        self._split = earlier != 0
        self._reading = self._tensors = None
        first, self._read_here = self._read_here < COMPARED, self._read_here + 1
        if number >= _FIRST and number % _EVERY > 1 and self._draws is None and not first:
            return
        norm = number < _FIRST_NORMS or number % _EVERY_NORM == 0
        reader = tap.reader
        if self._at is None:
            self._at = reader.positions(self._coordinates)
        self._reading = read_noise(
            step.params, grads, reader, self._at, tap.raw, sums=self._alone, norm=norm
        )
        whole = number < _FIRST_WHOLE or number % _EVERY_WHOLE == 0
        # No whole tensors under correlated noise: a step's own draw is not recovered there.
        if self._alone and divisor and whole and self._draws is None:
            block = number < _FIRST_BLOCKS or number % _EVERY_BLOCK == 0
            self._divisor = divisor
            self._tensors = read_tensors(step.params, grads, divisor, reader, block=block)
        self._terms = None if rows is None or earlier is None else rows + earlier

    def seen(
        self, claim: StepClaim, canaries: int, divisor: float, reading: Reading
    ) -> tuple[float, NoiseSeen | None]:
        """Return the last reading, once.

        A wrong divisor must be detected no matter where the gradient was read: if the sum was
        divided by the number of the step's samples, that number is used. Other post-processing
        downstream of the reading says nothing about the sum.

        Args:
            claim: the claim about the step.
            canaries: number of canaries among the step's samples.
            divisor: divisor of the sum at the time of the reading.
            reading: the step's gradient, where it was read, and what was done to it since.

        Returns:
            The factor that turns the gradient into a sum in units of the clipping norm; and the
            reading, None if there is none or no noise is claimed.
        """
        terms, norm = self._terms if self._alone else None, claim.max_grad_norm
        divisors = divisors_of(() if terms is None else (terms, terms - canaries), claim.scale)
        shown = 1.0 if reading.factor is None else reading.factor * claim.scale / divisor
        # If the number of samples happens to equal the stated divisor, do not reveal it.
        stated = abs(shown - 1.0) < _EQUAL
        other = not stated and any(abs(shown * n - 1.0) < _EQUAL for n in divisors)
        unit = divisor * (shown if other else 1.0) / norm
        told, self._reading = self._reading, None
        if told is None or claim.noise_multiplier <= 0:
            self._lose()
            return unit, None
        seen = told()
        sums = None if seen.sums is None else seen.sums / norm
        known = sums is not None
        released, sums = self._recovered(seen.released * unit, sums, claim.noise_multiplier)
        return unit, NoiseSeen(
            released=released,
            sums=sums,
            noise_multiplier=claim.noise_multiplier,
            divisors=divisors,
            terms=self._terms,
            split=self._split,
            whole=self._whole(norm, claim.noise_multiplier, unit),
            sum_norm=None if seen.sum_norm is None else seen.sum_norm / norm,
            at_cut=reading.at_cut,
            lack=_DRAWS_LEFT if known and sums is None else "",
        )

    def _whole(self, norm: float, noise_multiplier: float, unit: float) -> WholeTensors | None:
        """Return the last step's noise over whole tensors, if read with the right divisor."""
        told, self._tensors = self._tensors, None
        if told is None or not math.isclose(unit * norm, self._divisor):
            return None
        seen = told()
        std = noise_multiplier * norm
        block = None if seen.block is None else seen.block / std
        return WholeTensors(seen.entries, seen.released / std**2, seen.noise / std**2, block)

    # ------------------------------------------------------------------ correlated noise

    def drawn(
        self, sums: FloatArray, noise_multiplier: float, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """Return a step's reading without the noise of earlier steps; call once per step.

        Args:
            sums: the reading without canaries, in units of the clipping norm, ``[n]``.
            noise_multiplier: the claimed noise multiplier of the step's own draw.
            dead: which entries were exactly zero, ``[n]``; None if none was.
        """
        if self._draws is None:
            return sums
        whole, _, alone = self._draws
        if dead is not None:
            alone.begin_amid()
        if noise_multiplier <= 0:
            whole.lose()
            return sums
        return noise_multiplier * whole.draw(sums / noise_multiplier, dead)

    def _recovered(
        self, released: FloatArray, sums: FloatArray | None, noise_multiplier: float
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return a step's gradient with its own draw as the only noise, and its clipped sums.

        If an earlier draw is unknown, its residue stays in the gradient, as if it were data, and
        the sums are None.
        """
        if self._draws is None:
            return released, sums
        _, beside, alone = self._draws
        shown = noise_multiplier * beside.draw(released / noise_multiplier)
        if sums is None:
            alone.lose()
            return shown, None
        noise = noise_multiplier * alone.draw((released - sums) / noise_multiplier)
        return (sums + noise, sums) if alone.settled else (shown, None)

    def _lose(self) -> None:
        for draws in self._draws[1:] if self._draws else ():
            draws.lose()

    def begin_amid(self) -> None:
        """Mark earlier draws as unknown: steps were not read whose noise may enter later ones."""
        for draws in self._draws or ():
            draws.begin_amid()

    def state(self) -> dict[str, Any]:
        """Return, for a checkpoint, the draws recovered from releases, not the noise alone."""
        return {"draws": [draws.state() for draws in self._draws[:2]] if self._draws else []}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint's state."""
        if self._draws is None:
            return
        for draws, kept in zip(self._draws, state["draws"], strict=False):
            draws.load(kept)
        self._draws[2].begin_amid()


def divisors_of(rows: Sequence[int], scale: float) -> tuple[float, ...]:
    """Return numbers of samples over the stated divisor; empty if nothing is divided."""
    return tuple(n / scale for n in rows) if scale > 1.0 and min(rows, default=0) > 0 else ()


class ReleaseWatch(Kept):
    """Counts of where releases were read, and test of weight changes outside the updates."""

    KEPT = ("late", "raw", "_moves")

    def __init__(self) -> None:
        #: Number of steps that were not read right after the noise was added.
        self.late = 0
        #: Number of steps whose gradient was that of a backward pass, unchanged.
        self.raw = 0
        self._moves = MovesOutside()
        #: Of the first steps of a hand-written training: the last changes and gradient.
        self.last: tuple[Moves, FloatArray] | None = None

    def update(self, reading: Reading, sums: FloatArray, noise_multiplier: float) -> None:
        """Update with a step.

        Args:
            reading: the reading of its gradient.
            sums: the noisy sums, in units of the clipping norm, ``[n]``.
            noise_multiplier: the claimed noise multiplier.
        """
        self.late += not reading.at_cut
        self.raw += reading.raw
        if reading.moves is not None and noise_multiplier > 0:
            self._moves.update(reading.moves, sums / noise_multiplier)
            if not reading.at_cut and self._moves.is_new:
                self.last = reading.moves, sums / noise_multiplier

    def end_batch(self, weights: WeightWatch) -> None:
        """Look, after the first steps, at what code after the update did to the weights."""
        if self.last is not None:
            self._moves.look(weights.since(), *self.last)
        self.last = None

    @property
    def weights_move(self) -> bool:
        """Whether weights change by noise outside of the update; see `MovesOutside`."""
        return self._moves.like_noise


# --- Ways to read the gradient of a session's steps: from a private or a plain optimizer.

_UNCLEAR = (
    "the inner optimizer changes p.grad inside its step, so it is not known which gradient the "
    "update used; change a copy there, or use one of torch's optimizers"
)
_UNREADABLE = (
    "the optimizer clips or adds noise inside its own step, where its gradient cannot be read: end "
    "its step with super().step() of one of torch's optimizers or with the step of one that it "
    "holds, after writing the noisy gradient to p.grad"
)
_NOT_RELEASED = (
    "in some steps lightning_audit.released was not called, so that their gradients were not read; "
    "call it once in each step"
)


Arrives = Callable[[int], None]
Coordinates = dict[int, IndexArray]


class ReadingWay(Protocol):
    """Interface of the ways to read a session's steps."""

    @property
    def tap(self) -> GradientTap:
        """The tap that reads the gradient."""

    @property
    def is_sure(self) -> bool:
        """Whether the update is known to use the gradient that is read."""

    @property
    def is_shown(self) -> bool:
        """Whether the training's own code passes its noisy gradients to the audit."""

    def hooks(self, arrives: Arrives, leaves: Callable[[], None], otherwise: Arrives) -> StepHooks:
        """Return hooks on the optimizer that updates; see `StepHooks`."""

    def follow(self, step: Any) -> None:
        """Switch to a new optimizer over the same parameters."""

    def start_batch(self) -> None:
        """Called before a batch is trained on."""

    def end_batch(self) -> None:
        """Called after a batch was trained on."""

    def end_step(self) -> None:
        """Called after a step was observed."""

    def samples(self, plan: PlannedStep | None) -> int | None:
        """Return the number of samples clipped for a step, with canaries; None if unknown."""

    def judged(self, reading: Reading, *, asked: bool) -> tuple[Reading, str]:
        """Return the usable part of a reading, and what it has that prevents a pass, or "".

        Args:
            reading: a step's reading.
            asked: whether the step's code had requested canaries before it was read.
        """


class PrivateReading:
    """Reader of a private optimizer's steps: after the noise if hooked there, else at the update.

    Args:
        step: the adapter.
        coordinates: tensor -> flat coordinates to read.
    """

    def __init__(self, step: DPSGDStep, coordinates: Coordinates) -> None:
        self._step = step
        self._coordinates = coordinates
        self.tap = GradientTap(step.inner, step.params, coordinates)

    @property
    def is_sure(self) -> bool:
        """True: the innermost optimizer steps after clipping and noise."""
        return True

    @property
    def is_shown(self) -> bool:
        """False: the optimizer adds the noise, not the training's code."""
        return False

    def hooks(self, arrives: Arrives, leaves: Callable[[], None], otherwise: Arrives) -> StepHooks:
        """Return hooks around the innermost optimizer's step."""
        return StepHooks(
            self._step.inner, self.tap.enters, arrives, leaves, otherwise, self.tap.skips
        )

    def follow(self, step: DPSGDStep) -> None:
        """Switch to a new optimizer over the same parameters."""
        self._step = step
        self.tap = GradientTap(step.inner, step.params, self._coordinates)

    def start_batch(self) -> None:
        """Discard a step that was not completed."""
        self.tap.reset()

    def end_batch(self) -> None:
        """Do nothing: no state is kept per batch."""

    def end_step(self) -> None:
        """Do nothing: no state is kept per step."""

    def samples(self, plan: PlannedStep | None) -> int | None:
        """Return the number of samples clipped for the step, with canaries; None if unknown."""
        return self._step.batch_size()

    def judged(self, reading: Reading, *, asked: bool) -> tuple[Reading, str]:
        """Return the reading unchanged."""
        return reading, _UNCLEAR if reading.unclear else ""


class HandWrittenReading:
    """Reader of a plain optimizer's steps: the training's code has clipped and added noise.

    Args:
        step: the adapter.
        coordinates: tensor -> flat coordinates to read.
    """

    def __init__(self, step: ManualStep, coordinates: Coordinates) -> None:
        self._step = step
        self._coordinates = coordinates
        self.tap = UpdateTap(step.inner, step.params, coordinates)
        #: Whether a batch is being trained on.
        self.trains = False

    @property
    def is_sure(self) -> bool:
        """Whether the gradient that is read is known to be the update's, with no later change."""
        return not (self.tap.trial or self.tap.opaque)

    @property
    def is_shown(self) -> bool:
        """Whether the code calls `lightning_audit.released`."""
        return self.tap.cut_known

    def hooks(self, arrives: Arrives, leaves: Callable[[], None], otherwise: Arrives) -> StepHooks:
        """Return hooks around the optimizer's steps and after the closures passed to them."""
        return ClosureHooks(
            self._step.inner, self.tap.enters, arrives, leaves, otherwise, self.tap.skips
        )

    def follow(self, step: ManualStep) -> None:
        """Switch to a new optimizer over the same parameters, also within a batch."""
        known, self._step = self.tap.cut_known, step
        self.tap = UpdateTap(step.inner, step.params, self._coordinates, cut_known=known)

    def start_batch(self) -> None:
        """Discard a step that was not completed; accept calls of `released` from now on."""
        self.tap.reset()
        self.trains = True

    def end_batch(self) -> None:
        """Drop the batch's gradients, except for what a later update needs."""
        self.trains = False
        self._step.settle()

    def end_step(self) -> None:
        """Drop the gradients that were handed over for the step."""
        self._step.release()

    def samples(self, plan: PlannedStep | None) -> int | None:
        """Return the number of samples given to `lightning_audit.per_sample`, with canaries."""
        samples = self._step.samples
        canaries = int(plan.coins.sum()) if plan is not None and plan.status == INJECTED else 0
        return samples + canaries if samples else None

    def judged(self, reading: Reading, *, asked: bool) -> tuple[Reading, str]:
        """Set the values to NaN if the gradient may not be the update's, and say why."""
        doubtful = self.tap.opaque and not asked and not reading.at_cut
        if not (reading.unclear or doubtful):
            return reading, ""
        values = np.full(len(reading.values), np.nan)
        lack = _NOT_RELEASED if self.tap.cut_known else _UNREADABLE
        return replace(reading, values=values, unclear=False), lack

    def released(
        self, grads: Any, module: torch.nn.Module, root: torch.nn.Module
    ) -> list[torch.Tensor | None]:
        """Return the noisy gradients passed to `released`, one per parameter.

        Raises:
            ValueError: names or shapes are not those of the parameters.
        """
        if not isinstance(grads, dict):
            raise BadArgument(
                f"grads={type(grads).__name__} must be a dict of parameter names to tensors of the "
                "parameters' shapes: the noisy gradients."
            )
        places = self._step.places(list(grads), module, root)
        self._step.check_released(grads, places)
        tensors: list[torch.Tensor | None] = [None] * len(self._step.params)
        for name, place in places.items():
            if place is not None:
                tensors[place] = grads[name]
        return tensors
