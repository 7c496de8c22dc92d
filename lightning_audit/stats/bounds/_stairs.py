"""Error counts at every threshold, and the search for the threshold with the largest bound."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._confusion import ConfusionCounts

Whole = NDArray[np.int64]
#: Function from counts to a bound for each.
Values = Callable[[ConfusionCounts], Any]

_NAMES = ("fn", "tp", "fp", "tn")
# Up to this number of thresholds, evaluating all is cheaper than pruning; number of blocks with
# which the search begins.
_FEW, _BLOCKS = 1024, 256


@dataclass(frozen=True)
class Stairs:
    """Error counts at increasing thresholds.

    Args:
        thresholds: The thresholds, ``[k]``.
        fn: Scores "in" up to each, ``[k]``, non-decreasing.
        tn: Scores "out" up to each, ``[k]``, non-decreasing.
        n_in: Number of scores "in".
        n_out: Number of scores "out".
        chosen: For the scores "in" and for those "out": how many of the first k, for each k, are in
            the counted part, ``[n + 1]``; None if all are.
    """

    thresholds: Floats
    fn: Whole
    tn: Whole
    n_in: int
    n_out: int
    chosen: tuple[Whole, Whole] | None = None

    @classmethod
    def of(cls, inside: Floats, outside: Floats, thresholds: Floats) -> Stairs:
        """Count sorted scores at thresholds."""
        fn, tn = (np.searchsorted(s, thresholds, side="right") for s in (inside, outside))
        return cls(thresholds, fn, tn, len(inside), len(outside))

    def counts(self, low: Any, high: Any) -> ConfusionCounts:
        """Return type II errors at index ``low`` with type I errors at index ``high``."""
        fn, tn = self._up_to(low)[0], self._up_to(high)[1]
        return ConfusionCounts(fn=fn, tp=self.n_in - fn, fp=self.n_out - tn, tn=tn)

    def _up_to(self, index: Any) -> tuple[Any, Any]:
        fn, tn = self.fn[index], self.tn[index]
        return (fn, tn) if self.chosen is None else (self.chosen[0][fn], self.chosen[1][tn])

    def part(self, rng: np.random.Generator, fraction: float) -> Stairs:
        """Return the counts of a random fraction of the scores of each group."""
        sizes, chosen = [], []
        for n in (self.n_in, self.n_out):
            sizes.append(round(fraction * n))
            among = np.zeros(n + 1, dtype=np.int64)
            if n:
                among[1 + rng.choice(n, sizes[-1], replace=False, shuffle=False)] = 1
            chosen.append(among.cumsum())
        return replace(self, n_in=sizes[0], n_out=sizes[1], chosen=(chosen[0], chosen[1]))

    def without(self, part: Stairs, index: int) -> ConfusionCounts:
        """Return the counts at one threshold of the scores outside the part, ``[1]``."""
        every, some = (stairs.counts([index], [index]) for stairs in (self, part))
        return ConfusionCounts(*(getattr(every, k) - getattr(some, k) for k in _NAMES))

    def first_like(self, index: int) -> int:
        """Return the smallest index with the same counts."""

        def below(i: int) -> int:
            return int(sum(self._up_to(i)))

        return bisect.bisect_left(range(len(self.thresholds)), below(index), key=below)


def largest(stairs: Stairs, values: Values, *, monotone: bool) -> tuple[float, int]:
    """Return the largest bound and the first index that has it.

    If fewer errors never lower the bound, no threshold of a block exceeds the bound of the block's
    fewest errors of either kind: blocks below the best so far are pruned.
    """
    k = len(stairs.thresholds)
    if not monotone or k <= _FEW:
        found = _evaluated(values, stairs, np.arange(k), np.arange(k))
        best = int(np.argmax(found))
        return float(found[best]), best
    tried = np.unique(np.linspace(0, k - 1, _BLOCKS + 1).astype(np.int64))
    found = _evaluated(values, stairs, tried, tried)
    best, value = int(tried[np.argmax(found)]), float(np.max(found))
    low, high = tried[:-1] + 1, tried[1:] - 1  # first and last index of each block
    while True:
        some = low <= high
        low, high = low[some], high[some]
        if not len(low):
            return value, best
        limit = _evaluated(values, stairs, low, high)
        alive = (limit > value) | ((limit == value) & (low < best))
        low, high = low[alive], high[alive]
        if not len(low):
            return value, best
        middle = (low + high) // 2
        found = _evaluated(values, stairs, middle, middle)
        i = int(np.argmax(found))
        if found[i] > value or (found[i] == value and middle[i] < best):
            value, best = float(found[i]), int(middle[i])
        low, high = np.concatenate([low, middle + 1]), np.concatenate([middle - 1, high])
        order = np.argsort(low)
        low, high = low[order], high[order]


def _evaluated(values: Values, stairs: Stairs, low: Whole, high: Whole) -> Floats:
    found = np.asarray(values(stairs.counts(low, high)), dtype=np.float64)
    if found.shape != low.shape or np.any(np.isnan(found)):
        raise ValueError(
            f"the method gave {found!r} for {len(low)} thresholds, must give one number "
            "each; let it map counts of shape [m] to bounds of shape [m]."
        )
    return found
