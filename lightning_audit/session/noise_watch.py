"""Watches a step's noise beside its clipped sums, and where its release was read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.checks.noise.noise_seen import NoiseSeen, WholeTensors
from lightning_audit.checks.noise.whitening import Whitening
from lightning_audit.checks.noise.witnesses import REUSE_IN_ALL, Witnesses
from lightning_audit.checks.randomness.noise_restart import COMPARED
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.layout import FloatArray
from lightning_audit.record.snapshot import restore, snapshot
from lightning_audit.taps.gradient_reading import Reading
from lightning_audit.taps.moves_outside import MovesOutside
from lightning_audit.taps.noise_reading import NoiseReading, TensorReading, read_noise, read_tensors

#: Steps that are read: the first ones, and later two in a row of so many, so that noise is seen
#: behind that of the step before.
_FIRST, _EVERY = 100, 16
#: Steps in which the norm of the whole sum is taken as well.
_FIRST_NORMS, _EVERY_NORM = 20, 100
#: Steps of which whole tensors are read as well, and of these the noise of a block of entries.
_FIRST_WHOLE, _EVERY_WHOLE = 20, 8
_FIRST_BLOCKS, _EVERY_BLOCK = 6, 32
#: Why the noise is not seen alone where its earlier draws are not known.
_DRAWS_LEFT = (
    "draws of earlier steps are not known, and a part of them is left in the noise: after a step "
    "that could not be read, or was taken before the audit or the last resume"
)
#: Relative difference of numbers that are equal up to rounding.
_EQUAL = 1e-4


class NoiseWatch:
    """The noise of one private optimizer's steps.

    Args:
        witnesses: entries of the gradient of which some are read.
        alone: whether one process trains; the sums of several are known to none of them.
        coefficients: of noise that is correlated over steps, see `PrivacyClaim`: its draws are
            what is seen of it. None for independent noise.
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
        self._alone = alone
        self._earlier: int | None = 0
        #: Steps that this process came to read.
        self._read_here = 0
        self._reading: NoiseReading | None = None
        self._tensors: TensorReading | None = None
        self._divisor = 1.0
        self._terms: int | None = None
        self._split = False
        #: The draws in all that is read of a step, in the gradient that the noise is read in, and
        #: in the noise alone. The last ones leave the clipped sums: no checkpoint holds them.
        self._draws: tuple[Whitening, Whitening, Whitening] | None = None
        if coefficients is not None:
            self._draws = Whitening(coefficients), Whitening(coefficients), Whitening(coefficients)

    def skip(self, step: DPSGDStep) -> None:
        """A part of a split batch is clipped, and no step is taken yet."""
        rows = step.batch_size()
        known = rows is not None and self._earlier is not None
        self._earlier = (self._earlier or 0) + (rows or 0) if known else None

    def read(
        self,
        step: DPSGDStep,
        number: int,
        rows: int | None,
        grads: Sequence[torch.Tensor | None],
        divisor: float | None = None,
    ) -> None:
        """Read a step between its noise and its update, canaries and all.

        Args:
            step: the step.
            number: how many came before it.
            rows: samples of its last part, canaries included; None if unknown.
            grads: its gradient, one tensor for each parameter.
            divisor: what the noisy sum was divided by; None if that is not known yet, and no whole
                tensor is read.
        """
        earlier, self._earlier = self._earlier, 0
        self._split = earlier != 0
        self._reading = self._tensors = None
        first, self._read_here = self._read_here < COMPARED, self._read_here + 1
        if number >= _FIRST and number % _EVERY > 1 and self._draws is None and not first:
            return
        norm = number < _FIRST_NORMS or number % _EVERY_NORM == 0
        self._reading = read_noise(
            step.params, grads, self._coordinates, sums=self._alone, norm=norm
        )
        whole = number < _FIRST_WHOLE or number % _EVERY_WHOLE == 0
        # Of a step's own draw no whole tensors are read.
        if self._alone and divisor and whole and self._draws is None:
            block = number < _FIRST_BLOCKS or number % _EVERY_BLOCK == 0
            self._divisor = divisor
            self._tensors = read_tensors(step.params, grads, divisor, block=block)
        self._terms = None if rows is None or earlier is None else rows + earlier

    def seen(
        self, claim: StepClaim, canaries: int, divisor: float, reading: Reading
    ) -> tuple[float, NoiseSeen | None]:
        """What was read, once.

        Another divisor than the stated one is to be seen, wherever the gradient was read: if the
        sum was divided by a number of the step's samples, that one counts. What else is done to a
        gradient behind the place where it was read says nothing of that sum.

        Args:
            claim: what is claimed of the step.
            canaries: how many of the step's samples are canaries.
            divisor: what the sum was divided by where it was read.
            reading: of the step's gradient: where it was read, and what was done to it since.

        Returns:
            What makes the gradient that was read a sum in units of the clipping norm; and what was
            read, None if nothing was, or nothing is claimed of it.
        """
        terms, norm = self._terms if self._alone else None, claim.max_grad_norm
        divisors = divisors_of(() if terms is None else (terms, terms - canaries), claim.scale)
        shown = 1.0 if reading.factor is None else reading.factor * claim.scale / divisor
        # Where the number of samples happens to be the stated one, nothing may tell of it.
        stated = abs(shown - 1.0) < _EQUAL
        other = not stated and any(abs(shown * n - 1.0) < _EQUAL for n in divisors)
        unit = divisor * (shown if other else 1.0) / norm
        seen, self._reading = self._reading, None
        if seen is None or claim.noise_multiplier <= 0:
            self._lose()
            return unit, None
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
        """The latest step's noise over whole tensors, if it was read by the right divisor."""
        seen, self._tensors = self._tensors, None
        if seen is None or not math.isclose(unit * norm, self._divisor):
            return None
        std = noise_multiplier * norm
        block = None if seen.block is None else seen.block / std
        return WholeTensors(seen.entries, seen.released / std**2, seen.noise / std**2, block)

    # ------------------------------------------------------------------ correlated noise

    def drawn(
        self, sums: FloatArray, noise_multiplier: float, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """What was read of a step, without the noise of earlier steps, once a step.

        Args:
            sums: in units of the clipping norm, canaries taken out, ``[n]``.
            noise_multiplier: claimed of the step's own draw.
            dead: which entries were exactly zero, ``[n]``; None where none was.
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
        """A step's gradient with its own draw as its only noise, and its clipped sums.

        Where a draw of before is not known, what is left of it stands beside the noise as data do.
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
        """Steps were taken before that nobody read, and their noise may come into later ones."""
        for draws in self._draws or ():
            draws.begin_amid()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: what was recovered of the releases, and no noise alone."""
        return {"draws": [draws.state() for draws in self._draws[:2]] if self._draws else []}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        if self._draws is None:
            return
        for draws, kept in zip(self._draws, state["draws"], strict=False):
            draws.load(kept)
        self._draws[2].begin_amid()


def divisors_of(rows: Sequence[int], scale: float) -> tuple[float, ...]:
    """Numbers of samples over the stated divisor; none where nothing is divided."""
    return tuple(n / scale for n in rows) if scale > 1.0 and min(rows, default=0) > 0 else ()


class ReleaseWatch:
    """Where the releases of a private optimizer were read, and how weights move outside of them."""

    def __init__(self) -> None:
        #: Steps that were not read where the noise is known to be in.
        self.late = 0
        #: Steps whose gradient was what a backward pass left.
        self.raw = 0
        self._moves = MovesOutside()

    def update(self, reading: Reading, sums: FloatArray, noise_multiplier: float) -> None:
        """Take in a step.

        Args:
            reading: of its gradient.
            sums: what counts of it, in units of the clipping norm, ``[n]``.
            noise_multiplier: claimed.
        """
        self.late += not reading.at_cut
        self.raw += reading.raw
        if reading.moves is not None and noise_multiplier > 0:
            self._moves.update(reading.moves, sums / noise_multiplier)

    @property
    def weights_move(self) -> bool:
        """Whether weights move outside of the update as by noise, in most steps."""
        return self._moves.like_noise

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"late": self.late, "raw": self.raw, "moves": snapshot(self._moves)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.late, self.raw = state["late"], state["raw"]
        self._moves = restore(state["moves"])
