r"""Is the noise Gaussian: e-processes for its tails and for ties, valid beside any data.

Notation: a reading is ``x = d + n``, in units of the claimed standard deviation; ``d`` may depend
on the past and on the data, but not on the noise ``n``. The claim is that the coordinates of ``n``
are independent and normal, of standard deviation at least 1.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Levels of `TailBet`, in standard deviations.
LEVELS: Floats = np.arange(0.0, 3.6, 0.25)
#: Stakes of `TailBet`, as parts of the largest one that cannot ruin.
TAIL_STAKES: Floats = np.array([0.1, 0.3, 0.9])
#: Readings of a step that `TieBet` compares the others with.
COMPARED = 64
#: Distance below which `TieBet` takes two readings for equal, in standard deviations.
TIE = 1e-3
#: Shares of ties on which `TieBet` bets.
TIE_RATES: Floats = np.array([0.3, 0.9])

#: The same where values are the same number, but for rounding; how far a gap may be from a
#: multiple of the least one on a lattice.
_EQUAL, _ON_LATTICE = 1e-4, 0.01

_LARGEST_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


class TailBet:
    r"""E-process for "adding a shift s to the noise is (s / sigma)-GDP", by one-sided events.

    With ``q = P(x > t)``, the event "x + s > t" has a probability of at most
    ``G(q) = Phi(Phi^-1(q) + s)``, whatever d. G is concave, so that at any ``q*``

    .. math:: \mathbb E\,[1\{x > t - s\} - G'(q^*)\, 1\{x > t\}] \le G(q^*) - G'(q^*)\, q^*.

    The wealth is bet on the gap, coordinate by coordinate, at ``q* = Phi(-t)`` for each level t of
    `LEVELS`, for both tails; the bets are averaged. Noise with bounded support, or with tails of
    another kind, loses against it although its standard deviation is right.
    """

    def __init__(self) -> None:
        self._log_wealth = np.zeros((2, len(LEVELS), len(TAIL_STAKES)))

    def update(self, readings: Floats, shift: float) -> None:
        """Take in the readings of one step.

        Args:
            readings: in units of the claimed standard deviation, finite, ``[n]``.
            shift: s, in the same unit, > 0.
        """
        slope = np.exp(LEVELS * shift - 0.5 * shift**2)
        offset = special.ndtr(shift - LEVELS) - slope * special.ndtr(-LEVELS)
        gains = np.stack([1.0 - slope - offset, 1.0 - offset, -offset])
        # Rounding may leave an offset a little below zero.
        most = 1.0 / np.maximum(-gains.min(axis=0), 1e-9)
        bets = np.log1p(gains[..., None] * most[:, None] * (0.99 * TAIL_STAKES))
        for tail, sign in enumerate((1.0, -1.0)):
            ordered = np.sort(sign * readings)
            above = len(ordered) - np.searchsorted(ordered, LEVELS, side="right")
            reached = len(ordered) - np.searchsorted(ordered, LEVELS - shift, side="right")
            counts = np.stack([above, reached - above, len(ordered) - reached])
            self._log_wealth[tail] += np.sum(counts[..., None] * bets, axis=0)

    @property
    def log_e(self) -> float:
        """Log e-value now."""
        return float(log_mean_exp(self._log_wealth.ravel()))


class TieBet:
    r"""E-process for "the noise has a density of at most that of the claimed one".

    A reading falls within `TIE` of one of m others with a probability of at most
    ``2 m TIE / sqrt(2 pi)``, whatever d and these others. Noise on a lattice, as a type of low
    precision makes it, falls there again and again. The readings themselves must be of single
    precision or better.
    """

    def __init__(self) -> None:
        self._log_wealth = np.zeros(len(TIE_RATES))

    def update(self, readings: Floats) -> None:
        """Take in the readings of one step, some of which the others are compared with.

        Args:
            readings: in units of the claimed standard deviation, finite, ``[n]``.
        """
        stride = max(2, -(-len(readings) // COMPARED))
        compared = np.arange(len(readings)) % stride == 0
        ordered, tested = np.sort(readings[compared]), readings[~compared]
        if not len(tested):
            return
        right = np.searchsorted(ordered, tested)
        gaps = np.minimum(
            np.abs(tested - ordered[np.minimum(right, len(ordered) - 1)]),
            np.abs(tested - ordered[np.maximum(right - 1, 0)]),
        )
        hits = int(np.sum(gaps < TIE))
        chance = 2.0 * len(ordered) * TIE * _LARGEST_DENSITY
        self._log_wealth += hits * np.log(TIE_RATES / chance)
        self._log_wealth += (len(tested) - hits) * np.log((1.0 - TIE_RATES) / (1.0 - chance))

    @property
    def log_e(self) -> float:
        """Log e-value now."""
        return float(log_mean_exp(self._log_wealth))


def repeated_share(readings: Floats) -> float:
    """Part of a step's values that stand at another entry too; 0 where all are on one lattice.

    Numbers that are used several times are no multiples of one step size; rounded ones are.

    Args:
        readings: in units of the claimed standard deviation, finite, ``[n]``.

    Example:
        >>> repeated_share(np.array([0.3, -1.21, 0.3, 0.77]))
        0.5
        >>> repeated_share(np.array([1.0, -1.0, 1.0, 3.0]))
        0.0
    """
    ordered = np.sort(readings[np.abs(readings) > _EQUAL])  # zeros are no noise
    gaps = np.diff(ordered)
    apart = gaps[gaps >= _EQUAL]
    if len(apart):
        multiples = apart / apart.min()
        if len(apart) > 1 and np.abs(multiples - np.round(multiples)).max() < _ON_LATTICE:
            return 0.0
    tied = gaps < _EQUAL
    twice = np.append(tied, False) | np.append(False, tied)
    return float(twice.sum() / max(len(readings), 1))


def sign_log_e(positive: int, negative: int) -> float:
    r"""Log e-value for "the noise is as often above zero as below", whatever its scale.

    ``positive`` readings lie above zero, and ``negative`` ones below.

    Formula:
        ``log( B(1 + positive, 1 + negative) 2^(positive + negative) )``: fair coins against a
        uniform prior.

    Example:
        >>> round(sign_log_e(0, 0), 12)
        0.0
        >>> sign_log_e(140, 60) > 9.2
        True
    """
    together = positive + negative
    return float(special.betaln(1.0 + positive, 1.0 + negative)) + together * math.log(2.0)
