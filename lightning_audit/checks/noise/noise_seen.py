"""What was seen of a step's noise, beside its clipped sums, and whether it is known alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from lightning_audit.layout import FloatArray

#: Probability with which noise as claimed is not taken for noise, in one step.
_RARE = 1e-9
#: The same, in standard deviations of a normal variable.
_FAR = 6.0
#: Why the noise of a step is not known alone.
_NO_SUMS = "the clipped sums that the noise was added to are not known"
_TOO_SMALL = "what is left of the gradient without the clipped sums is too small to be the noise"
_ALONG = "what is left of the gradient without the clipped sums goes along with them"


@dataclass(frozen=True)
class WholeTensors:
    """One step's release and noise over all entries of each tensor.

    Args:
        entries: number of entries of each tensor, ``[L]``.
        released: sums of the squares of the gradient times its divisor, in units of the claimed
            variance, ``[L]``.
        noise: the same of the gradient without the clipped sums, ``[L]``.
        block: the gradient without the clipped sums at the first and the last entries of each
            tensor, in claimed standard deviations; None if it was not asked for.
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
        sums: the clipped sums that it was made of, ``[n]``; None where they are not known.
        noise_multiplier: claimed standard deviation of the noise, > 0.
        divisors: numbers over the stated divisor by which the sum may have been divided instead.
        terms: samples in the whole sum, canaries included; None if unknown.
        sum_norm: norm of the whole sum, None where it was not looked at.
        split: whether the sum was made in several parts.
        whole: the noise over whole tensors; None where it was not looked at.
        at_cut: whether the gradient was read where the noise was known to be in.
        lack: why ``sums`` is None, if they are known.
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
    """What one step shows of its noise, in units of its claimed standard deviation.

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
        """The noise alone, or beside data if it is not known alone, ``[n]``.

        The data only add to its squares, so that tests that look for too small a noise are valid.
        """
        return self.released if self.noise is None else self.noise


def noise_of(seen: NoiseSeen) -> tuple[FloatArray | None, str]:
    """The noise in units of its claimed standard deviation, ``[n]``; or None, and why.

    What is left of the gradient without the sums is noise only if the noise was added to these
    sums, and nothing else was done to them. It is taken for noise unless it is much too small, or
    goes along with the sums.
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
