"""What is read of a step's noise next to the canaries, and whether data hides it.

**Probe coordinates: entries of the gradient that carry no canary, read at every step.** Their
readings are noise plus data, and never leave memory. The record of a step holds sums of squared
residuals, from which the noise and re-use tests can be computed again.

**Decorrelation of noise that a claim's `noise_coefficients` correlate over steps.** A step's
reading is its own draw, plus draws of earlier steps, plus data. A recovered draw may also contain a
remainder of earlier steps: their data, or a canary that clipping did not remove. That remainder is
fixed before the present draw is made, so it acts like data, for which the tests of the steps are
valid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.layout import FloatArray, IndexArray, Layout
from lightning_audit.record.store import Kept, Observation
from lightning_audit.stats.dependence import steps_to_forget
from lightning_audit.stats.sequential import PredictableCentre

# --- What was read of a step's noise and clipped sums, and whether the two can be separated.

#: Probability that noise as claimed is rejected as noise, at one step.
_RARE = 1e-9
#: About that probability, in standard deviations of a normal variable.
_FAR = 6.0
#: Why the noise of a step cannot be separated from the data.
_NO_SUMS = "the clipped sums that the noise was added to are not known"
_TOO_SMALL = "what is left of the gradient without the clipped sums is too small to be the noise"
_ALONG = "what is left of the gradient without the clipped sums is correlated with them"


def noise_of(seen: Observation) -> tuple[FloatArray | None, str]:
    """Return the noise in units of its claimed standard deviation, ``[n]``; or None, and why.

    The gradient minus the clipped sums is noise only if noise was added to these sums and nothing
    else was done to them. The difference is accepted as noise unless it is much too small, or is
    correlated with the sums.
    """
    if seen.released is None or seen.sums is None:
        return None, seen.lack or _NO_SUMS
    noise = np.asarray((seen.released - seen.sums) / seen.noise_multiplier)
    squares = float(noise @ noise)
    if special.gammainc(0.5 * len(noise), 0.5 * squares) < _RARE:
        return None, _TOO_SMALL
    norm = float(np.linalg.norm(seen.sums))
    scale = math.sqrt(max(squares / len(noise), 1.0))
    along = abs(float(noise @ seen.sums)) / norm if norm > 0 else 0.0
    return (noise, "") if along <= _FAR * scale else (None, _ALONG)


# --- Decorrelation of noise that a claim's `noise_coefficients` correlate over steps.


class Whitening(Kept):
    """Recovers each step's draw at coordinates that are read at every step.

    The draw of a step that cannot be read is taken to be zero.

    Args:
        coefficients: see `PrivacyClaim`; only their ratios to the first one matter.
    """

    KEPT = ("_past", "_steps", "_since")

    def __init__(self, coefficients: Sequence[float]) -> None:
        c = np.asarray(coefficients, dtype=np.float64)
        self._later = c[1:] / c[0]
        self._forgets = steps_to_forget(coefficients)
        #: Row t mod (m - 1) holds the draws of step t, ``[m - 1, n]``.
        self._past: FloatArray | None = None
        self._steps = 0
        #: Steps since the latest unknown draw; None if all draws are known.
        self._since: int | None = None

    @property
    def settled(self) -> bool:
        """Whether unknown draws no longer affect the recovered draws."""
        if self._since is None:
            return True
        return self._forgets is not None and self._since >= self._forgets

    def draw(self, read: FloatArray, dead: NDArray[np.bool_] | None = None) -> FloatArray:
        """Return the draws of a step.

        Args:
            read: the step's readings in units of a draw's standard deviation, ``[n]``, n the same
                at every step.
            dead: entries that were exactly zero, ``[n]``: they had no draw; None if none.

        Returns:
            The draws plus the remaining data, ``[n]``; NaN where a reading is not finite.
        """
        if self._past is None or self._past.shape[1] != len(read):
            self._past = np.zeros((len(self._later), len(read)))
        drawn = np.asarray(read - self._by_row() @ self._past)
        if dead is not None:
            drawn = np.where(dead, read, drawn)
        if np.isfinite(drawn).all():
            self._keep(drawn)
        else:
            self.lose()
        return drawn

    def lose(self) -> None:
        """Count a step whose draws are unknown."""
        self._keep(0.0)
        self._since = 0

    def begin_amid(self) -> None:
        """Start after steps that were not read."""
        self._since = 0

    def _keep(self, drawn: FloatArray | float) -> None:
        if self._past is not None:
            self._past[self._steps % len(self._past)] = drawn
        self._steps += 1
        if self._since is not None:
            self._since += 1

    def _by_row(self) -> FloatArray:
        """Return the coefficient of each row of `_past`, ``[m - 1]``."""
        count = len(self._later)
        ages = (self._steps - 1 - np.arange(count)) % count
        return np.asarray(self._later[ages])


# --- Probe coordinates: entries of the gradient that carry no canary, read at every step.

PER_TENSOR = 64
IN_ALL = 4096
#: Probe coordinates that the re-use tests read, over all tensors.
REUSE_IN_ALL = 512
#: Number of lags at which steps are compared to find repeated noise.
LAGS = 32
#: Flat coordinates below this limit are read in several tensors, to find one key used for several.
_SHARED_BELOW = 64


@dataclass(frozen=True)
class Witnesses:
    """The probe coordinates of each tensor.

    Args:
        index: tensor -> flat coordinates, distinct, for every tensor of the layout.
    """

    index: dict[int, IndexArray]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of probe coordinates of each tensor."""
        return tuple(len(self.index[j]) for j in sorted(self.index))


def choose_witnesses(
    layout: Layout, avoid: dict[int, IndexArray], rng: np.random.Generator
) -> Witnesses:
    """Choose up to 64 coordinates of every tensor, 4,096 in all.

    Half of them are flat coordinates that the larger tensors have in common; the rest are random.
    A canary's coordinate is used only in a tensor that has no other coordinates: canaries are
    subtracted from the gradient before it is read.

    Args:
        layout: the trainable tensors.
        avoid: coordinates that canaries use, by tensor.
        rng: the audit's own generator.

    Returns:
        The probe coordinates.
    """
    each = min(PER_TENSOR, max(1, IN_ALL // len(layout)))
    common = rng.permutation(_SHARED_BELOW)
    index = {}
    for j, slot in enumerate(layout):
        taken = avoid.get(j, np.zeros(0, dtype=np.int64))
        shared = common[common < slot.numel]
        shared = shared[~np.isin(shared, taken)][: max(1, each // 2)]
        # A few more than needed, because some are taken; rng.choice draws without a permutation.
        wanted = min(slot.numel, 2 * each + len(taken))
        drawn = rng.choice(slot.numel, size=wanted, replace=False, shuffle=False)
        others = drawn[~np.isin(drawn, taken) & ~np.isin(drawn, shared)]
        chosen = np.concatenate([shared, others])[:each]
        index[j] = np.sort(chosen if len(chosen) else drawn[:each]).astype(np.int64)
    return Witnesses(index)


class WitnessReducer:
    """Reduces a step's readings at the probe coordinates to the sums that the checks need.

    Args:
        witnesses: the probe coordinates of each tensor.
        lags: number of lags.
    """

    #: Decay of the running variance that selects tensors for the re-use tests.
    _DECAY = 0.9
    #: Largest mean square that a step adds to the running variance, in claimed variances.
    _LOUDEST = 4.0

    def __init__(self, witnesses: Witnesses, lags: int = LAGS) -> None:
        tensors = sorted(witnesses.index)
        self._counts = np.array(witnesses.counts)
        self._tensor = np.repeat(np.arange(len(tensors)), self._counts)
        self._centre = PredictableCentre((int(self._counts.sum()),))
        self._variance = np.ones(len(tensors))
        each = max(1, REUSE_IN_ALL // len(tensors))
        first = np.concatenate([[0], np.cumsum(self._counts)[:-1]])
        # Coordinates are sorted, so the shared ones are among the first.
        self._reuse = np.concatenate(
            [start + np.arange(min(each, n)) for start, n in zip(first, self._counts, strict=True)]
        )
        flat = np.concatenate([witnesses.index[j] for j in tensors])[self._reuse]
        self._partner = _partners(flat)
        self._past = np.zeros((lags, len(self._reuse)))
        self._epochs = _Epochs(len(self._reuse))
        self._seen = 0

    def reduce(
        self, readings: FloatArray, noise_multiplier: float, epoch: int = 0
    ) -> dict[str, Any]:
        """Update with one step and return its sums, by column of the record.

        Args:
            readings: the final gradient at the probe coordinates, ``[n]``, in units of the clipping
                norm.
            noise_multiplier: claimed standard deviation in the same unit, > 0.
            epoch: number of the present epoch.

        Returns:
            Sums of squares in units of the claimed variance, and how many terms they have.
        """
        if not np.isfinite(readings).all():
            self._epochs.advance(epoch, None)
            return self._lost()
        residual = (readings - self._centre.value) / noise_multiplier
        squares = np.bincount(self._tensor, weights=residual**2, minlength=len(self._counts))
        # Repeated noise cannot be seen if data dominate; the choice depends on the past alone.
        chosen = self._variance < max(1.25, 1.05 * float(self._variance.min()))
        chosen &= self._seen > 0
        use = chosen[self._tensor[self._reuse]]
        raw = readings[self._reuse] / noise_multiplier
        sums = {
            "tensor_squares": squares,
            **self._lags(raw, noise_multiplier, use),
            **_broadcast(residual[self._reuse][use]),
            **self._pairs(residual[self._reuse], use),
            **self._epochs.compare(epoch, readings[self._reuse], noise_multiplier, use),
        }
        self._past[self._seen % len(self._past)] = readings[self._reuse]
        self._seen += 1
        self._centre.update(readings)
        mean = np.where(self._counts > 0, squares / np.maximum(self._counts, 1), self._LOUDEST)
        mean = np.minimum(mean, self._LOUDEST)
        self._variance = self._DECAY * self._variance + (1 - self._DECAY) * mean
        return sums

    def _lost(self) -> dict[str, Any]:
        """Return the sums of a step with NaN or Inf; later sums do not depend on that step."""
        lags, tensors = len(self._past), len(self._counts)
        sums = dict.fromkeys(
            ("broadcast_count", "broadcast_squares", "pair_count", "pair_squares"), 0.0
        )
        return {
            "tensor_squares": np.full(tensors, np.nan),
            "lag_count": np.zeros(lags),
            "lag_squares": np.zeros(lags),
            "epoch_count": np.zeros(2),
            "epoch_squares": np.zeros(2),
            **sums,
        }

    def _lags(self, raw: FloatArray, noise_multiplier: float, use: Any) -> dict[str, Any]:
        lags = len(self._past)
        squares = np.sum(((self._past / noise_multiplier - raw) * use) ** 2, axis=1)
        ready = min(self._seen, lags)
        # Row i of the ring holds step i mod lags; lag l is the row of step seen - l.
        order = (self._seen - 1 - np.arange(lags)) % lags
        counts = np.where(np.arange(lags) < ready, float(use.sum()), 0.0)
        return {"lag_count": counts, "lag_squares": np.where(counts > 0, squares[order], 0.0)}

    def _pairs(self, residual: FloatArray, use: Any) -> dict[str, float]:
        have = (self._partner >= 0) & use & use[self._partner]
        gap = residual[have] - residual[self._partner[have]]
        return {"pair_count": float(have.sum()), "pair_squares": float(gap @ gap)}


class _Epochs:
    """Comparison with readings at the same place of the previous and of the first epoch.

    A generator that is re-seeded at the start of each epoch repeats its noise at distances longer
    than the lags.

    Args:
        width: readings of a step.
    """

    #: Steps of an epoch that are kept; 8 MB at 512 probe coordinates.
    _KEPT = 4096

    def __init__(self, width: int) -> None:
        self._epoch: int | None = None
        self._ended = 0
        self._first = _Trace(width, self._KEPT)
        self._previous = _Trace(width, self._KEPT)
        self._current = _Trace(width, self._KEPT)

    def compare(
        self, epoch: int, readings: FloatArray, noise_multiplier: float, use: Any
    ) -> dict[str, Any]:
        """Return sums of squared differences from both epochs, in units of the claimed variance."""
        place = self.advance(epoch, readings)
        counts, squares = np.zeros(2), np.zeros(2)
        # In the second epoch the previous epoch is the first one: it counts once.
        others = (self._previous, self._first)[: self._ended]
        for i, other in enumerate(others):
            past = other.at(place)
            if past is not None:
                gap = (readings - past)[use] / noise_multiplier
                counts[i], squares[i] = len(gap), gap @ gap
        return {"epoch_count": counts, "epoch_squares": squares}

    def advance(self, epoch: int, readings: FloatArray | None) -> int:
        """Keep a step's readings (None if they are lost); return its place in the epoch."""
        if epoch != self._epoch:
            if len(self._current):
                self._previous, self._ended = self._current, self._ended + 1
                if self._ended == 1:
                    self._first = self._previous
            self._current, self._epoch = _Trace(*self._current.shape), epoch
        return self._current.append(readings)


class _Trace:
    """Readings of the first steps of an epoch, in single precision.

    Args:
        width: readings of a step.
        kept: steps that are kept.
    """

    def __init__(self, width: int, kept: int) -> None:
        self.shape = (width, kept)
        self._rows = np.zeros((0, width), dtype=np.float32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, readings: FloatArray | None) -> int:
        """Keep a step's readings, None if they are lost; return its place."""
        width, kept = self.shape
        place, self._length = self._length, self._length + 1
        if place >= kept:
            return place
        if place == len(self._rows):
            more = np.zeros((min(max(place, 16), kept - place), width), dtype=np.float32)
            self._rows = np.concatenate([self._rows, more])
        self._rows[place] = np.nan if readings is None else readings
        return place

    def at(self, place: int) -> FloatArray | None:
        """Return the readings of a step; None if they were lost or not kept."""
        if place >= min(self._length, len(self._rows)) or np.isnan(self._rows[place]).any():
            return None
        return np.asarray(self._rows[place], dtype=np.float64)


def _partners(flat: IndexArray) -> IndexArray:
    """Return each reading's latest predecessor at the same flat coordinate, by position; or -1."""
    latest: dict[int, int] = {}
    partner = np.full(len(flat), -1)
    for position, coordinate in enumerate(flat.tolist()):
        partner[position] = latest.get(coordinate, -1)
        latest[coordinate] = position
    return partner


def _broadcast(residual: FloatArray) -> dict[str, float]:
    """Return sums over residuals centred on the mean of earlier residuals of the same step."""
    if len(residual) < 2:
        return {"broadcast_count": 0.0, "broadcast_squares": 0.0}
    earlier = np.cumsum(residual)[:-1] / np.arange(1, len(residual))
    gap = residual[1:] - earlier
    return {"broadcast_count": float(len(gap)), "broadcast_squares": float(gap @ gap)}
