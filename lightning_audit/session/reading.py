"""How the noise of a session's steps is read, and where their releases were read.

**Detects weight changes outside of the update that are as large as the claimed noise.** Noise can
be added to the weights instead of the gradient. Then the gradient of the update contains none, and
no conclusion about the noise can be drawn from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.checks.probes import REUSE_IN_ALL, Whitening, Witnesses
from lightning_audit.checks.randomness import COMPARED
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.hooks.gradient_tap import (
    FINE,
    Entries,
    GradientTap,
    Tensors,
    WeightWatch,
    clipped_sums,
)
from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.record.store import Kept, Moves, Observation

# --- Reads a step's noise together with its clipped sums, at some entries and over whole tensors.

#: Steps that are read: the first `_FIRST`, then two consecutive ones of every `_EVERY`, to compare
#: a step's noise with that of the step before.
_FIRST, _EVERY = 100, 16
#: Steps for which the norm of the whole sum is computed as well.
_FIRST_NORMS, _EVERY_NORM = 20, 100
#: Steps for which whole tensors are read as well, and those with the noise of a block of entries.
_FIRST_WHOLE, _EVERY_WHOLE = 20, 8
_FIRST_BLOCKS, _EVERY_BLOCK = 6, 32
#: Largest number of noise entries whose values are read, and of entries copied at once.
BLOCK, _AT_ONCE = 16384, 2**22
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
        self._lack = ""  # why the last step's sums are unknown
        # What was read of the last step, until it is looked at.
        self._released: Entries | None = None
        self._sums: Entries | None = None
        self._norms: Entries | None = None
        self._squares: Entries | None = None
        self._block: Entries | None = None
        self._sizes: FloatArray = np.zeros(0)
        self._divisor = 1.0
        self._terms: int | None = None
        self._split = False
        #: Draws recovered from the whole reading, from the gradient at the noise's coordinates, and
        #: from the noise alone. The last would reveal the clipped sums: not in checkpoints.
        self._draws: tuple[Whitening, Whitening, Whitening] | None = None
        #: Whether noise is correlated over steps.
        self.is_correlated = coefficients is not None
        if coefficients is not None:
            self._draws = Whitening(coefficients), Whitening(coefficients), Whitening(coefficients)

    def skip(self, rows: int | None) -> None:
        """Count the rows of a part of a split batch, which takes no step; None if unknown."""
        known = rows is not None and self._earlier is not None
        self._earlier = (self._earlier or 0) + (rows or 0) if known else None

    @torch.no_grad()
    def read(
        self,
        step: DPSGDStep,
        number: int,
        rows: int | None,
        grads: Tensors,
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
        self._forget()
        first, self._read_here = self._read_here < COMPARED, self._read_here + 1
        if number >= _FIRST and number % _EVERY > 1 and self._draws is None and not first:
            return
        reader = tap.reader
        if self._at is None:
            self._at = reader.positions(self._coordinates)
        self._terms = None if rows is None or earlier is None else rows + earlier
        if not _are_fine([grads[j] for j in reader.tensors]):
            return
        self._released, self._lack = tap.raw(), step.sums_lack
        held = clipped_sums(step.params, grads) if self._alone else []
        if not (held and _are_fine([held[j] for j in reader.tensors])):
            return
        self._sums = reader.read(held)
        if number < _FIRST_NORMS or number % _EVERY_NORM == 0:
            norms = [part.norm() for part in held if part is not None]
            self._norms = reader.also(torch.stack([n.to(norms[0].device) for n in norms]))
        # No whole tensors under correlated noise: a step's own draw is not recovered there.
        whole = number < _FIRST_WHOLE or number % _EVERY_WHOLE == 0
        if divisor and whole and self._draws is None:
            block = number < _FIRST_BLOCKS or number % _EVERY_BLOCK == 0
            self._read_whole(grads, held, divisor, tap, block=block)

    def _forget(self) -> None:
        """Release what was read of a step."""
        self._released = self._sums = self._norms = self._squares = self._block = None

    def _read_whole(
        self, grads: Tensors, held: Tensors, divisor: float, tap: GradientTap, *, block: bool
    ) -> None:
        """Read the sums of squares of whole tensors, and their first and last entries.

        Args:
            grads: the gradient, one tensor per parameter.
            held: its clipped sums.
            divisor: divisor of the noisy sum.
            tap: brings the values home.
            block: whether to read entries, about `BLOCK` in all.
        """
        squares, ends = [], []
        half = max(2, BLOCK // max(len(grads), 1)) // 2
        for grad, own in zip(grads, held, strict=True):
            if grad is None or own is None or not _are_fine([grad, own]):
                return
            flat, sums = grad.detach().reshape(-1), own.detach().reshape(-1)
            if flat.shape != sums.shape or flat.device != sums.device:
                return
            squares.append(_squares(flat, sums, divisor))
            if block:
                few = min(half, len(flat) // 2)
                where = [slice(0, few), slice(len(flat) - few, len(flat))]
                ends += [flat[at] * divisor - sums[at] for at in where]
        device = squares[0].device
        self._divisor = divisor
        self._sizes = np.array([float(own.numel()) for own in held if own is not None])
        self._squares = tap.reader.also(torch.cat([own.to(device) for own in squares]))
        self._block = tap.reader.also(torch.cat([e.to(device) for e in ends])) if block else None

    def completed(
        self, seen: Observation, claim: StepClaim, canaries: int, divisor: float
    ) -> tuple[float, Observation]:
        """Return an observation with the last step's noise.

        A wrong divisor must be detected no matter where the gradient was read: if the sum was
        divided by the number of the step's samples, that number is used. Other post-processing
        downstream of the reading says nothing about the sum.

        Args:
            seen: the step's gradient, where it was read, and what was done to it since.
            claim: the claim about the step.
            canaries: number of canaries among the step's samples.
            divisor: divisor of the sum at the time of the reading.

        Returns:
            The factor that turns the gradient into a sum in units of the clipping norm; and the
            observation, unchanged if no noise was read or is claimed.
        """
        terms, norm, sigma = self._terms, claim.max_grad_norm, claim.noise_multiplier
        counts = (terms, terms - canaries) if self._alone and terms is not None else ()
        divisors = divisors_of(counts, claim.scale)
        shown = 1.0 if seen.factor is None else seen.factor * claim.scale / divisor
        # If the number of samples happens to equal the stated divisor, do not reveal it.
        stated = abs(shown - 1.0) < _EQUAL
        other = not stated and any(abs(shown * n - 1.0) < _EQUAL for n in divisors)
        unit = divisor * (shown if other else 1.0) / norm
        if self._released is None or sigma <= 0:
            for draws in self._draws[1:] if self._draws else ():
                draws.lose()
            return unit, seen
        assert self._at is not None
        own = None if self._sums is None else self._sums.array[self._at] / norm
        released, sums = self._own_noise(self._released.array[self._at] * unit, own, sigma)
        length = None if self._norms is None else float(np.linalg.norm(self._norms.array)) / norm
        seen = seen.having(
            released=released,
            sums=sums,
            divisors=divisors,
            terms=terms,
            split=self._split,
            sum_norm=length,
            lack="" if sums is not None else self._lack if own is None else _DRAWS_LEFT,
        )
        # Whole tensors count only if they were read with the right divisor.
        if self._squares is not None and math.isclose(unit * norm, self._divisor):
            std, both = sigma * norm, self._squares.array
            seen = seen.having(
                entries=self._sizes,
                squares=both[::2] / std**2,
                noise_squares=both[1::2] / std**2,
                block=None if self._block is None else self._block.array / std,
            )
        self._forget()
        return unit, seen

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

    def _own_noise(
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


def _are_fine(tensors: Tensors) -> bool:
    return all(t is not None and t.dtype in FINE for t in tensors)


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


# --- Detects weight changes outside of the update that are as large as the claimed noise.

#: Smallest weight change that counts, relative to that of the claimed noise in the same update.
_AS_NOISE = 0.2
#: Smallest number of steps that must have been read.
_ENOUGH = 3


class MovesOutside:
    """Counts steps before which weights changed as by noise."""

    def __init__(self) -> None:
        self._watched = self._moved = 0
        #: Whether they have changed as by noise since the last step, if few steps were watched.
        self._since = False

    @property
    def is_new(self) -> bool:
        """Whether few steps were watched, so that `look` counts."""
        return self._watched < _ENOUGH

    def update(self, moves: Moves, gradient: FloatArray) -> None:
        """Update with one step.

        Args:
            moves: changes of the weights.
            gradient: the gradient that the update used, in units of the claimed noise, ``[n]``.
        """
        if moves.outside is not None and np.isfinite([*gradient, *moves.outside]).all():
            self._watched += 1
            self._moved += self._as_noise(moves.outside, moves, gradient)

    def look(self, since: FloatArray | None, moves: Moves, gradient: FloatArray) -> None:
        """Update with the changes since a step's update, ``[n]``, at the end of its batch."""
        if since is not None and np.isfinite([*gradient, *since]).all():
            self._since = self._as_noise(since, moves, gradient)

    @staticmethod
    def _as_noise(outside: FloatArray, moves: Moves, gradient: FloatArray) -> bool:
        # Weight decay and projections change weights along themselves; noise does not.
        square = float(moves.start @ moves.start)
        along = float(outside @ moves.start) / square if square > 0 else 0.0
        rest = float(np.linalg.norm(outside - along * moves.start))
        step = float(np.linalg.norm(moves.update))
        size = float(np.linalg.norm(gradient)) / np.sqrt(len(gradient))
        # Noise of the claimed size changes the weights by step / size in the same update.
        return bool(rest > 0 and rest * size >= _AS_NOISE * step)

    @property
    def like_noise(self) -> bool:
        """Whether the weights changed as by noise in most steps, or after the first ones."""
        return self._since if self.is_new else 2 * self._moved > self._watched


# --- Where releases were read, and whether weights change outside of the updates.


class ReleaseWatch(Kept):
    """Counts of where releases were read, and test of weight changes outside the updates."""

    KEPT = ("late", "raw", "_moves")

    def __init__(self) -> None:
        #: Number of steps that were not read right after the noise was added.
        self.late = 0
        #: Number of steps whose gradient was that of a backward pass, unchanged.
        self.raw = 0
        #: Number of these, since the last resume, whose noise would have been read.
        self.bare = 0
        self._moves = MovesOutside()
        #: Of the first steps of a hand-written training: the last changes and gradient.
        self.last: tuple[Moves, FloatArray] | None = None

    def update(self, seen: Observation, sums: FloatArray, noise_multiplier: float) -> None:
        """Update with a step.

        Args:
            seen: the reading of its gradient.
            sums: the noisy sums, in units of the clipping norm, ``[n]``.
            noise_multiplier: the claimed noise multiplier.
        """
        self.late += not seen.at_cut
        self.raw += seen.raw
        self.bare += seen.raw and not seen.at_cut
        if seen.moves is not None and noise_multiplier > 0:
            self._moves.update(seen.moves, sums / noise_multiplier)
            if not seen.at_cut and self._moves.is_new:
                self.last = seen.moves, sums / noise_multiplier

    def end_batch(self, weights: WeightWatch) -> None:
        """Look, after the first steps, at what code after the update did to the weights."""
        if self.last is not None:
            self._moves.look(weights.since(), *self.last)
        self.last = None

    @property
    def weights_move(self) -> bool:
        """Whether weights change by noise outside of the update; see `MovesOutside`."""
        return self._moves.like_noise
