"""Probe coordinates: entries of the gradient that carry no canary, read at every step.

Their readings are noise plus data, and never leave memory. The record of a step holds sums of
squared residuals, from which the noise and re-use tests can be computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_audit.layout import FloatArray, IndexArray, Layout
from lightning_audit.stats.evalues.sequential import PredictableCentre

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
