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
import scipy
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

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
_CORRELATED = "what is left of the gradient without the clipped sums is correlated with them"


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
    if scipy.special.gammainc(0.5 * len(noise), 0.5 * squares) < _RARE:
        return None, _TOO_SMALL
    norm = float(np.linalg.norm(seen.sums))
    scale = math.sqrt(max(squares / len(noise), 1.0))
    product = abs(float(noise @ seen.sums)) / norm if norm > 0 else 0.0
    return (noise, "") if product <= _FAR * scale else (None, _CORRELATED)


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
        self, readings: FloatArray, noise_multiplier: ArrayLike, epoch: ArrayLike = 0
    ) -> dict[str, FloatArray]:
        """Update with a step, or several, and return their sums, by column of the record.

        Args:
            readings: the final gradient at the probe coordinates, ``[n]`` or ``[steps, n]``, in
                units of the clipping norm.
            noise_multiplier: claimed standard deviation in the same unit, > 0; one or ``[steps]``.
            epoch: number of the present epoch; one or ``[steps]``.

        Returns:
            Sums of squares in units of the claimed variance, and how many terms they have,
            ``[steps, ...]``; of a step with NaN or Inf only NaN and zeros.
        """
        rows = np.atleast_2d(readings)
        sigmas, epochs = (np.broadcast_to(v, len(rows)) for v in (noise_multiplier, epoch))
        read = np.isfinite(rows).all(axis=1)
        own = rows.take(self._reuse, axis=1)
        sums = self._of_finite(rows[read], sigmas[read, None])
        use = np.zeros(own.shape, dtype=bool)
        use[read] = sums.pop("use")
        sums |= self._epochs.compare(epochs.tolist(), own, sigmas, use)
        columns = {"tensor_squares": np.full((len(rows), len(self._counts)), np.nan)}
        for name, of_read in sums.items():
            column = columns.setdefault(name, np.zeros((len(rows), *of_read.shape[1:])))
            column[read] = of_read if len(of_read) == read.sum() else of_read[read]
        return columns

    def _of_finite(self, rows: FloatArray, sigmas: FloatArray) -> dict[str, Any]:
        """Return the sums of finite steps, ``[steps, ...]``, and which readings re-use tests use.

        A step's center, and the choice of tensors, depend on earlier steps alone.
        """
        steps, (tensors,) = len(rows), self._counts.shape
        residual = (rows - self._centre.update(rows)) / sigmas
        cells = self._tensor + tensors * np.arange(steps)[:, None]
        squares = np.bincount(cells.ravel(), (residual**2).ravel(), steps * tensors)
        squares = squares.reshape(steps, tensors)
        mean = np.where(self._counts > 0, squares / np.maximum(self._counts, 1), self._LOUDEST)
        variance = [self._variance]
        for heard in np.minimum(mean, self._LOUDEST):
            variance.append(self._DECAY * variance[-1] + (1 - self._DECAY) * heard)
        self._variance = variance.pop()
        # Repeated noise cannot be seen if data dominate.
        chosen = np.array([v < max(1.25, 1.05 * float(v.min())) for v in variance], dtype=bool)
        seen = self._seen + np.arange(steps)
        self._seen += steps
        chosen = chosen.reshape(steps, tensors) & (seen > 0)[:, None]
        # Rows in memory as of a single step: sums are rounded alike.
        use = chosen.take(self._tensor[self._reuse], axis=1)
        rest = residual.take(self._reuse, axis=1)
        have = (self._partner >= 0) & use & use.take(self._partner, axis=1)
        pair = np.where(have, rest - rest.take(self._partner, axis=1), 0.0)
        # Centred on the mean of the earlier residuals of the step.
        before: NDArray[np.int64] = np.cumsum(use, axis=1) - use
        earlier = np.cumsum(np.where(use, rest, 0.0), axis=1)
        earlier = np.hstack([np.zeros((steps, 1)), earlier[:, :-1]]) / np.maximum(before, 1)
        after = use & (before > 0)
        shared = np.where(after, rest - earlier, 0.0)
        return {
            "tensor_squares": squares,
            **self._lags(rows.take(self._reuse, axis=1), sigmas, seen, use),
            "broadcast_count": after.sum(axis=1, dtype=np.float64),
            "broadcast_squares": np.einsum("sr,sr->s", shared, shared),
            "pair_count": have.sum(axis=1, dtype=np.float64),
            "pair_squares": np.einsum("sr,sr->s", pair, pair),
            "use": use,
        }

    def _lags(
        self, own: FloatArray, sigmas: FloatArray, seen: Any, use: NDArray[np.bool_]
    ) -> dict[str, FloatArray]:
        """Return sums of squared differences from each of the latest steps, ``[steps, lags]``."""
        lags = len(self._past)
        past = np.concatenate([self._past, own])
        self._past = past[len(own) :]
        # Of each step, the steps before it, the latest one first.
        before: FloatArray = sliding_window_view(past, lags, axis=0)[: len(own), :, ::-1]
        gaps = (before.swapaxes(1, 2) - own[:, None]) * (use / sigmas)[:, None]
        ready = np.arange(lags) < seen[:, None]
        counts = np.where(ready, use.sum(axis=1)[:, None], 0.0)
        squares = np.einsum("slr,slr->sl", gaps, gaps)
        return {"lag_count": counts, "lag_squares": np.where(counts > 0, squares, 0.0)}


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
        self._first, self._previous, self._current = (_Trace(width, self._KEPT) for _ in range(3))

    def compare(
        self, epochs: list[int], readings: FloatArray, sigmas: FloatArray, use: NDArray[np.bool_]
    ) -> dict[str, FloatArray]:
        """Return sums of squared differences from both epochs, in units of the claimed variance.

        Args:
            epochs: number of the epoch of each step, ``[steps]``.
            readings: of the steps, ``[steps, n]``; those that are not finite are lost.
            sigmas: claimed standard deviations, ``[steps]``.
            use: which readings count, ``[steps, n]``; none of a lost step.
        """
        counts, squares = np.zeros((2, len(epochs), 2))
        for step, epoch in enumerate(epochs):
            place = self.advance(epoch, readings[step])
            # In the second epoch the previous epoch is the first one: it counts once.
            for i, other in enumerate((self._previous, self._first)[: self._ended]):
                past = other.at(place)
                if past is not None:
                    gap = (readings[step] - past)[use[step]] / sigmas[step]
                    counts[step, i], squares[step, i] = len(gap), gap @ gap
        return {"epoch_count": counts, "epoch_squares": squares}

    def advance(self, epoch: int, readings: FloatArray) -> int:
        """Keep a step's readings; return its place in the epoch."""
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

    def append(self, readings: FloatArray) -> int:
        """Keep a step's readings; return its place."""
        width, kept = self.shape
        place, self._length = self._length, self._length + 1
        if place >= kept:
            return place
        if place == len(self._rows):
            more = np.zeros((min(max(place, 16), kept - place), width), dtype=np.float32)
            self._rows = np.concatenate([self._rows, more])
        self._rows[place] = readings
        return place

    def at(self, place: int) -> FloatArray | None:
        """Return the readings of a step; None if they were lost or not kept."""
        if place >= min(self._length, len(self._rows)) or not np.isfinite(self._rows[place]).all():
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
