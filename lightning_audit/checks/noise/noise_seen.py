"""What was read of a step's noise and clipped sums, and whether the two can be separated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from lightning_audit.layout import FloatArray

#: Probability that noise as claimed is rejected as noise, at one step.
_RARE = 1e-9
#: About that probability, in standard deviations of a normal variable.
_FAR = 6.0
#: Why the noise of a step cannot be separated from the data.
_NO_SUMS = "the clipped sums that the noise was added to are not known"
_TOO_SMALL = "what is left of the gradient without the clipped sums is too small to be the noise"
_ALONG = "what is left of the gradient without the clipped sums is correlated with them"


@dataclass(frozen=True)
class WholeTensors:
    """One step's release and noise over all entries of each tensor.

    Args:
        entries: number of entries of each tensor, ``[L]``.
        released: sums of the squares of the gradient times its divisor, in units of the claimed
            variance, ``[L]``.
        noise: the same for the gradient without the clipped sums, ``[L]``.
        block: the gradient without the clipped sums at the first and the last entries of each
            tensor, in claimed standard deviations; None if it was not requested.
    """

    entries: FloatArray
    released: FloatArray
    noise: FloatArray
    block: FloatArray | None = None


@dataclass(frozen=True)
class NoiseSeen:
    """One step, between its noise and its update, in units of the clipping norm.

    Args:
        released: the gradient times its stated divisor at some coordinates, ``[n]``.
        sums: the clipped sums that the gradient is made of, ``[n]``; None if unknown.
        noise_multiplier: claimed standard deviation of the noise, > 0.
        divisors: numbers over the stated divisor by which the sum may have been divided instead.
        terms: samples in the whole sum, canaries included; None if unknown.
        sum_norm: norm of the whole sum; None if it was not computed.
        split: whether the sum was made in several parts.
        whole: the noise over whole tensors; None if it was not read.
        at_cut: whether the gradient was read at a point where noise is known to have been added.
        lack: the reason why ``sums`` is None, if the reason is known.
    """

    released: FloatArray
    sums: FloatArray | None
    noise_multiplier: float
    divisors: tuple[float, ...] = ()
    terms: int | None = None
    sum_norm: float | None = None
    split: bool = False
    whole: WholeTensors | None = None
    at_cut: bool = False
    lack: str = ""


@dataclass(frozen=True)
class NoiseStep:
    """The noise of one step, in units of its claimed standard deviation.

    Args:
        number: of the step, from 0.
        seen: the step, in units of the clipping norm.
        noise: its noise alone, ``[n]``; None if it is not known without the data.
    """

    number: int
    seen: NoiseSeen
    noise: FloatArray | None

    @property
    def released(self) -> FloatArray:
        """The release, data and noise together, ``[n]``."""
        return np.asarray(self.seen.released / self.seen.noise_multiplier)

    @property
    def readings(self) -> FloatArray:
        """The noise if it is known without the data, else the release, ``[n]``.

        Data make the squares stochastically larger, so tests for too little noise stay valid.
        """
        return self.released if self.noise is None else self.noise


def noise_of(seen: NoiseSeen) -> tuple[FloatArray | None, str]:
    """Return the noise in units of its claimed standard deviation, ``[n]``; or None, and why.

    The gradient minus the clipped sums is noise only if noise was added to these sums and nothing
    else was done to them. The difference is accepted as noise unless it is much too small, or is
    correlated with the sums.
    """
    if seen.sums is None:
        return None, seen.lack or _NO_SUMS
    noise = np.asarray((seen.released - seen.sums) / seen.noise_multiplier)
    squares = float(noise @ noise)
    if special.gammainc(0.5 * len(noise), 0.5 * squares) < _RARE:
        return None, _TOO_SMALL
    norm = float(np.linalg.norm(seen.sums))
    scale = math.sqrt(max(squares / len(noise), 1.0))
    along = abs(float(noise @ seen.sums)) / norm if norm > 0 else 0.0
    return (noise, "") if along <= _FAR * scale else (None, _ALONG)
