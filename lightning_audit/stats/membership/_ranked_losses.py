"""Losses of both sides in one order: the input of the empirical Epsilon*."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit.stats._arguments import Floats, places
from lightning_audit.stats.membership._membership import INEQUALITIES, EpsilonStar

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RankedLosses:
    """The side of each loss, in increasing order, and the ends of groups of equal losses.

    Args:
        is_train: 1 for a training loss, 0 for one of the population, ``[n + m]``.
        ends: Index of the last loss of each group of equal losses.
        thresholds: The distinct losses.
    """

    is_train: NDArray[np.int8]
    ends: Ints
    thresholds: Floats

    @classmethod
    def of(cls, train: Floats, population: Floats) -> RankedLosses:
        """Rank the losses of both sides, each sorted."""
        pooled = np.concatenate([train, population])
        # The stable sort merges two sorted runs in linear time.
        order = np.argsort(pooled, kind="stable")
        pooled = pooled[order]
        ends = np.flatnonzero(np.append(pooled[1:] != pooled[:-1], True))
        return cls((order < len(train)).astype(np.int8), ends, pooled[ends])

    def dealt(self, rng: np.random.Generator) -> RankedLosses:
        """Return the same losses, assigned to sides of the same sizes at random."""
        return dataclasses.replace(self, is_train=rng.permutation(self.is_train))

    def epsilon_star(self, delta: float, clip: float) -> EpsilonStar:
        """Return Epsilon* over all thresholds; ties go to the first inequality and threshold."""
        up_to = np.cumsum(self.is_train, dtype=np.int64)
        n, m = int(up_to[-1]), len(up_to) - int(up_to[-1])
        tp = up_to[self.ends]
        fp = self.ends + 1 - tp
        best = (1.0, 0, 0)
        for i, values in enumerate(_ratios(tp, fp, n, m, delta, clip)):
            at = int(np.argmax(values))
            best = max(best, (float(values[at]), i, at), key=lambda item: item[0])
        ratio, i, at = best
        if ratio <= 1:
            return EpsilonStar(0.0, None, None, None, None, False, delta, clip)
        tpr, fnr = int(tp[at]) / n, (n - int(tp[at])) / n
        fpr, tnr = int(fp[at]) / m, (m - int(fp[at])) / m
        denominator, size = ((fpr, m), (tpr, n), (fnr, n), (tnr, m))[i]
        return EpsilonStar(
            value=math.log(ratio),
            threshold=float(self.thresholds[at]),
            fpr=fpr,
            fnr=fnr,
            inequality=INEQUALITIES[i],
            at_clip=denominator <= max(clip, 1 / size),
            delta=delta,
            clip=clip,
        )


def sorted_losses(name: str, losses: ArrayLike) -> Floats:
    """Return the losses of one side in increasing order.

    Raises:
        ValueError: If they are not one-dimensional, empty, or hold nan.
    """
    array = np.asarray(losses, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, must be [n]; ravel it.")
    if not array.size:
        raise ValueError(f"{name}=[] must hold at least one loss; evaluate the model on some data.")
    ordered = np.sort(array)
    if np.isnan(ordered[-1]):
        raise ValueError(
            f"{name} holds nan, must hold numbers; leave out missing losses "
            f"({places(np.isnan(array))})."
        )
    return ordered


def _ratios(tp: Ints, fp: Ints, n: int, m: int, delta: float, clip: float) -> Iterator[Floats]:
    """Yield the ratios of the four inequalities at each threshold, one inequality at a time."""
    least_train, least_population = max(clip, 1 / n), max(clip, 1 / m)
    tpr, fpr = tp / n, fp / m
    yield (tpr - delta) / np.maximum(fpr, least_population)
    yield (fpr - delta) / np.maximum(tpr, least_train)
    del tpr, fpr
    # From counts, because one minus a rate would lose digits.
    fnr, tnr = (n - tp) / n, (m - fp) / m
    yield (tnr - delta) / np.maximum(fnr, least_train)
    yield (fnr - delta) / np.maximum(tnr, least_population)
