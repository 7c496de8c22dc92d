r"""E-processes for Gaussian noise, from its tails and its ties, valid for any data.

Notation: a reading is ``x = d + n``, in units of the claimed standard deviation; ``d`` may depend
on the past and on the data, but not on the noise ``n``. The claim is that the coordinates of ``n``
are independent and normal, with a standard deviation of at least 1.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Levels of `TailBet`, in standard deviations.
LEVELS: Floats = np.arange(0.0, 3.6, 0.25)
#: Stakes of `TailBet`, as fractions of the largest stake that cannot lose all wealth.
TAIL_STAKES: Floats = np.array([0.1, 0.3, 0.9])
#: Number of readings of a step with which `TieBet` compares the others.
COMPARED = 64
#: Distance below which `TieBet` treats two readings as equal, in standard deviations.
TIE = 1e-3
#: Shares of ties on which `TieBet` bets.
TIE_RATES: Floats = np.array([0.3, 0.9])

#: Distance below which values are the same number up to rounding; largest distance of a gap from a
#: multiple of the smallest gap on a lattice.
_EQUAL, _ON_LATTICE = 1e-4, 0.01

_LARGEST_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


class TailBet:
    r"""E-process for "adding a shift s to the noise is (s / sigma)-GDP", by one-sided events.

    With ``q = P(x > t)``, the event "x + s > t" has a probability of at most
    ``G(q) = Phi(Phi^-1(q) + s)``, for any d. G is concave, so at any ``q*``

    .. math:: \mathbb E\,[1\{x > t - s\} - G'(q^*)\, 1\{x > t\}] \le G(q^*) - G'(q^*)\, q^*.

    The wealth is bet on the gap, coordinate by coordinate, at ``q* = Phi(-t)`` for each level t of
    `LEVELS`, for both tails; the bets are averaged (own proof). Noise with bounded support, or with
    other tails, is rejected even if its standard deviation is right.

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383.
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B
        86, 2024, arXiv:2010.09686.
    """

    def __init__(self) -> None:
        self._log_wealth = np.zeros((2, len(LEVELS), len(TAIL_STAKES)))

    def update(self, readings: Floats, shift: float) -> None:
        """Update with the readings of one step.

        Args:
            readings: In units of the claimed standard deviation, finite, ``[n]``.
            shift: s, in the same unit, > 0.
        """
        slope = np.exp(LEVELS * shift - 0.5 * shift**2)
        offset = special.ndtr(shift - LEVELS) - slope * special.ndtr(-LEVELS)
        gains = np.stack([1.0 - slope - offset, 1.0 - offset, -offset])
        # Rounding may leave an offset slightly below zero.
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
        """Log e-value so far."""
        return float(log_mean_exp(self._log_wealth.ravel()))


class TieBet:
    r"""E-process for "the density of the noise is at most the largest claimed density".

    A reading falls within `TIE` of one of m others with a probability of at most
    ``2 m TIE / sqrt(2 pi)``, for any d and any values of the others (own proof). Noise on a
    lattice, as in low precision, does so again and again. The readings themselves must have at
    least single precision.
    """

    def __init__(self) -> None:
        self._log_wealth = np.zeros(len(TIE_RATES))

    def update(self, readings: Floats) -> None:
        """Update with the readings of one step; some of them are the comparison values.

        Args:
            readings: In units of the claimed standard deviation, finite, ``[n]``.
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
        """Log e-value so far."""
        return float(log_mean_exp(self._log_wealth))


def repeated_share(readings: Floats) -> float:
    """Return the fraction of a step's values that occur again at another entry.

    It is 0 if all values are on one lattice: reused numbers are not multiples of one step size, but
    rounded numbers are.

    Args:
        readings: In units of the claimed standard deviation, finite, ``[n]``.

    Returns:
        The fraction, in [0, 1].

    Example:
        >>> repeated_share(np.array([0.3, -1.21, 0.3, 0.77]))
        0.5
        >>> repeated_share(np.array([1.0, -1.0, 1.0, 3.0]))
        0.0
    """
    ordered = np.sort(readings[np.abs(readings) > _EQUAL])  # zeros are not noise
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
    r"""Return the log e-value for "the noise is as often above zero as below", for any scale.

    Args:
        positive: Number of readings above zero.
        negative: Number of readings below zero.

    Returns:
        The log e-value.

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
