"""Batches of per-sample gradients that reveal faulty clipping and noise, and their readings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lightning_audit.blackbox.outputs import MechanismError
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.coin_bet import CoinBet
from lightning_audit.stats.evalues.noise_scale import (
    INTERVAL_SIGNIFICANCE,
    chosen_upper,
    interval_in_words,
    noise_interval,
    noise_log_e,
    units_upper,
)
from lightning_audit.stats.evalues.sequential import log_mean_exp

__all__ = [
    "ROUNDING",
    "NoiseReading",
    "Privatize",
    "Probe",
    "Released",
    "ShiftReading",
    "direction",
    "read_noise",
    "read_shift",
]

Arrays = Literal["torch", "numpy"]

#: Function of per-sample gradients (one array, or a list of them) that returns the noisy gradient.
Privatize = Callable[[Any], Any]

#: Number of calls after which a shift is known well enough to distinguish faults.
LEAST_CALLS = 60
#: A shift may exceed the claim by the rounding of single precision.
ROUNDING = 1.0 + 2.0**-10


class Released:
    """Calls a privatize function, and returns its release in units of the clipping norm.

    The function takes gradients of ``shapes``, one array instead of a list if it is ``single``, and
    divides the noisy sum by ``divisor``.
    """

    def __init__(
        self,
        privatize: Privatize,
        shapes: Sequence[tuple[int, ...]],
        single: bool,
        max_grad_norm: float,
        divisor: float,
        arrays: Arrays,
    ) -> None:
        self.privatize, self._shapes, self._single = privatize, shapes, single
        self._norm, self._divisor, self._arrays = max_grad_norm, divisor, arrays
        self.sizes = [math.prod(shape) for shape in shapes]
        self.calls = 0

    def __call__(self, rows: Floats) -> Floats:
        """Return the release for gradients ``[n, d]``, times the divisor, ``[d]``.

        Both are in clipping norms.

        Raises:
            MechanismError: If the function raised an exception, or returned anything but finite
                numbers of the gradient's shapes.
        """
        self.calls += 1
        parts = np.split(rows * self._norm, np.cumsum(self.sizes)[:-1], axis=1)
        tensors = [
            self._array(part.reshape(len(rows), *shape))
            for part, shape in zip(parts, self._shapes, strict=True)
        ]
        try:
            released = self.privatize(tensors[0] if self._single else tensors)
        except Exception as error:
            raise self._failed(f"raised {type(error).__name__}: {error}", rows) from error
        values = [released] if self._single else list(released)
        found = [tuple(np.shape(value)) for value in values]
        if found != list(self._shapes):
            raise self._failed(f"returned shapes {found}, must be {list(self._shapes)}", rows)
        flat = np.concatenate([_numbers(value).ravel() for value in values])
        if not np.isfinite(flat).all():
            raise self._failed("returned numbers that are not finite", rows)
        return flat * self._divisor / self._norm

    def _array(self, values: Floats) -> Any:
        if self._arrays == "numpy":
            return values.astype(np.float32)
        import torch

        return torch.tensor(values, dtype=torch.float32)

    def _failed(self, what: str, rows: Floats) -> MechanismError:
        norms = np.linalg.norm(rows, axis=1) * self._norm
        return MechanismError(
            f"privatize(per_sample_grads) {what} (call {self.calls}, {len(rows)} gradients of "
            f"norms {norms.min():.3g} to {norms.max():.3g})."
        )


@dataclass(frozen=True)
class Probe:
    """Gradients that are included or left out, in clipping norms.

    Args:
        batches: Batches with them, ``[n, d]``, used in turn.
        without: The batch with rows of zeros instead of them, ``[n, d]``.
        along: Vector along which the release is read, ``[d]``: its product with each gradient's
            direction is one.
        gradients: Number of gradients that are included or left out.
    """

    batches: Sequence[Floats]
    without: Floats
    along: Floats
    gradients: int = 1


@dataclass
class ShiftReading:
    """Increase of the release along a direction if some gradients are included.

    Args:
        shift: Mean difference over the number of gradients; at most 1 if clipping is correct.
        log_e: Largest log e-value against a shift of at most 1. If the shift was read exactly:
            infinite if it is larger, else 0.
        gradients: Number of gradients that are included or left out together.
        calls: Number of calls used.
    """

    shift: float
    log_e: float
    gradients: int
    calls: int


def read_shift(
    released: Released,
    probe: Probe,
    noise_multiplier: float,
    calls: int,
    goal: float,
    rng: np.random.Generator,
) -> ShiftReading:
    """Flip a coin in each call, and include the gradients of a probe or not.

    Args:
        released: The function under audit.
        probe: The gradients.
        noise_multiplier: Claimed noise, in clipping norms.
        calls: Largest number of calls.
        goal: Log e-value at which to stop, after at least `LEAST_CALLS` calls.
        rng: Generator of the coins.

    Returns:
        The shift and its largest log e-value.
    """
    m, along, batches = probe.gradients, probe.along, probe.batches
    bet = CoinBet((1,), m * ROUNDING, noise_multiplier * float(np.linalg.norm(along)))
    # The first reading is subtracted, so that the base does not count as noise.
    offset = float(released(probe.without) @ along)
    sums, counts, best, done = np.zeros(2), np.zeros(2), 0.0, 0
    while done < calls and (best < goal or done < LEAST_CALLS):
        coin = int(rng.integers(2))
        rows = batches[done % len(batches)] if coin else probe.without
        reading = float(released(rows) @ along) - offset
        bet.update(np.array([float(coin)]), np.array([reading]))
        sums[coin] += reading
        counts[coin] += 1
        best = max(best, float(bet.log_e))
        done += 1
    means = sums / np.maximum(counts, 1)
    return ShiftReading(float(means[1] - means[0]) / m, best, m, done + 1)


@dataclass
class NoiseReading:
    """The noise over the claimed noise.

    Args:
        ratio: Standard deviation of all coordinates over the claim.
        tensors: Standard deviation over the claim, for each tensor.
        interval: Confidence interval of the noise over the claim, valid at any stopping time for
            Gaussian noise; it starts at 0 if the tensors differ in their ratio.
        quietest: Upper limit of the noise over the claim in the tensor with the smallest reading.
        log_e: Largest log e-value against noise of at least the claimed size.
        log_e_repeated: Largest log e-value for differences between successive calls.
        ratio_repeated: Standard deviation of these differences, over that of independent noise of
            the claimed size: small compared with ``ratio`` if noise is repeated.
        log_e_shared: Largest log e-value for differences between adjacent coordinates.
        ratio_shared: Standard deviation of these differences, scaled in the same way: small if
            coordinates share one number.
        calls: Number of calls used.
        error: Standard error of the ratio.
    """

    ratio: float
    tensors: list[float]
    interval: tuple[float, float]
    quietest: float
    log_e: float
    log_e_repeated: float
    ratio_repeated: float
    log_e_shared: float
    ratio_shared: float
    calls: int
    error: float

    @property
    def in_words(self) -> str:
        """The interval as text that continues "the noise is"."""
        return interval_in_words(*self.interval)

    def refuted(self, goal: float) -> bool:
        """Return whether one of the e-values refutes the claim."""
        return max(self.log_e, self.log_e_repeated, self.log_e_shared) >= goal


def read_noise(
    released: Released, rows: Floats, noise_multiplier: float, calls: int, goal: float
) -> NoiseReading:
    """Release the same gradients repeatedly, and measure the noise.

    Args:
        released: The function under audit.
        rows: The gradients, in clipping norms, ``[n, d]``.
        noise_multiplier: Claimed noise, in clipping norms.
        calls: Largest number of calls.
        goal: Log e-value at which to stop, after at least ten calls.

    Returns:
        The noise, its confidence interval and its e-values.
    """
    tensor = np.repeat(np.arange(len(released.sizes)), released.sizes)
    counts, squares = np.zeros(len(released.sizes)), np.zeros(len(released.sizes))
    # The mean release if clipping is correct. If it is not, the noise appears larger than it is.
    centre = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)).sum(axis=0)
    before = released(rows)
    others = np.zeros((2, 2))  # repeated, shared: number and sum of squares
    best, done = np.zeros(3), 0
    while done < calls and (best.max() < goal or done < 10):
        now = released(rows)
        x = (now - centre) / noise_multiplier
        counts += released.sizes
        squares += np.bincount(tensor, x**2, len(squares))
        repeated = (now - before) / noise_multiplier
        shared = np.diff(x)
        others[:, 0] += len(x), len(shared)
        others[:, 1] += repeated @ repeated, shared @ shared
        before = now
        each = log_mean_exp(noise_log_e(counts, squares))
        pooled = float(noise_log_e(counts.sum(), squares.sum()))
        log_e = [float(log_mean_exp([pooled, float(each)])), *noise_log_e(*others.T)]
        best = np.maximum(best, log_e)
        done += 1
    # A difference of two independent values has twice the variance.
    spread = np.sqrt(0.5 * others[:, 1] / np.maximum(others[:, 0], 1))
    return NoiseReading(
        ratio=float(np.sqrt(squares.sum() / counts.sum())),
        tensors=np.sqrt(squares / counts).tolist(),
        interval=noise_interval(counts, squares, INTERVAL_SIGNIFICANCE)
        or (0.0, units_upper(counts, squares, INTERVAL_SIGNIFICANCE)),
        quietest=_quietest(counts, squares),
        log_e=float(best[0]),
        log_e_repeated=float(best[1]),
        ratio_repeated=float(spread[0]),
        log_e_shared=float(best[2]),
        ratio_shared=float(spread[1]),
        calls=done + 1,
        error=float(1.0 / np.sqrt(2.0 * counts.sum())),
    )


def _quietest(counts: Floats, squares: Floats) -> float:
    """Return the upper limit of the smallest noise, corrected for the choice among all tensors."""
    least = int(np.argmin(squares / counts))
    return chosen_upper(counts[least], squares[least], len(counts))


def direction(sizes: Sequence[int], rng: np.random.Generator) -> Floats:
    """Return a random unit vector with a part of the same length in every tensor, ``[d]``."""
    parts = [rng.normal(size=size) for size in sizes]
    return np.concatenate([p / np.linalg.norm(p) for p in parts]) / math.sqrt(len(parts))


def _numbers(value: Any) -> Floats:
    if hasattr(value, "detach"):
        value = value.detach().cpu().double()  # numpy has no bfloat16
    return np.asarray(value, dtype=np.float64)
