r"""E-values for Poisson sampling: repeated batches, and records that are drawn too often.

References:
    Own proofs, in the docstrings. Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and
    safe anytime-valid inference", Statistical Science 38, 2023, arXiv:2210.01948 (e-processes).
    Vovk and Wang, "E-values: calibration, combination and applications", Annals of Statistics 49,
    2021, arXiv:1912.06116 (averages).
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Probabilities of a repeated batch on which `RepeatBet` bets.
REPEATS: Floats = np.array([0.9, 0.1, 0.01])
#: Probability of a repeated batch above which it does not bet.
_LIKELY = 0.5
#: Factors of the rate, and a rate, at which favored records are drawn; and their fractions of all.
FACTORS: Floats = np.array([1.5, 3.0, 10.0])
CERTAIN_RATE = 0.98
PARTS: Floats = np.array([0.1, 0.01, 0.001, 1e-5])


class RepeatBet:
    r"""E-process for "each batch is a new Poisson sample of the records, at most at this rate".

    A given set of b of N records is drawn with probability ``r^b (1 - r)^(N - b)``. Over all rates
    r up to the stated q this is largest at ``min(q, b / N)``. So the sum of these maxima over the
    batches seen so far bounds the probability that the next batch is one of them, for any rate of
    the sampler up to q. The bet is that one repeats. Empty batches are left out, because they may
    repeat with any probability.

    Args:
        records: Number of records, N.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._known: set[Hashable] = set()
        self._sizes: dict[int, int] = {}
        self._log_wealth = np.zeros(len(REPEATS))
        #: Number of repeated batches.
        self.again = 0

    def update(self, key: Hashable, size: int, rate: float) -> None:
        """Update with a batch.

        Args:
            key: Equal for equal sets of records.
            size: Number of records in the batch.
            rate: Largest probability of each record, in (0, 1).
        """
        chance = min(1.0, self._chance(rate))
        came = key in self._known
        if 0.0 < chance < _LIKELY:
            bets = np.maximum(REPEATS, chance)
            gain = np.log(bets / chance) if came else np.log1p(-bets) - np.log1p(-chance)
            self._log_wealth += np.minimum(gain, 500.0)
        elif came and chance <= 0.0:  # it underflowed
            self._log_wealth += 500.0
        self.again += came and chance < _LIKELY
        if size and not came:
            self._known.add(key)
            self._sizes[size] = self._sizes.get(size, 0) + 1

    def _chance(self, rate: float) -> float:
        """Return the largest probability that the next batch is one of those before."""
        total = 0.0
        for size, count in self._sizes.items():
            own = min(rate, size / self._records)
            outside = (self._records - size) * math.log1p(-own) if size < self._records else 0.0
            total += count * math.exp(size * math.log(own) + outside)
        return total

    @property
    def log_e(self) -> float:
        """Log e-value so far."""
        return float(log_mean_exp(self._log_wealth))


def favoured_log_e(counts: ArrayLike, batches: int, rate: float) -> float:
    r"""Return the log e-value for "each record joins each batch with at most this probability".

    For one record with count c in T batches, ``(r / q)^c ((1 - r) / (1 - q))^(T - c)`` is an
    e-value for each r > q, and so is the mean over several r; it grows if records occur more often.
    A fraction ``p`` of the records, which is not known, may be favored:
    ``prod (1 - p + p e_i)``, mixed over p.

    Args:
        counts: Number of occurrences of each record, ``[records]``.
        batches: Number of batches drawn, T.
        rate: Largest allowed probability, q in (0, 1).

    Returns:
        Log e-value; it is an e-process as T grows.

    Example:
        >>> counts = np.full(1000, 10)
        >>> favoured_log_e(counts, 1000, 0.01) < 3.0
        True
        >>> counts[:3] = 900
        >>> favoured_log_e(counts, 1000, 0.01) > 100.0
        True
    """
    c = np.asarray(counts, dtype=np.float64)[:, None]
    if not c.size or not 0.0 < rate < CERTAIN_RATE:
        return 0.0
    rates = np.unique(np.clip(np.append(FACTORS * rate, CERTAIN_RATE), rate, CERTAIN_RATE))
    log_e = log_mean_exp(
        c * np.log(rates / rate) + (batches - c) * (np.log1p(-rates) - np.log1p(-rate))
    )
    parts = [np.logaddexp(np.log1p(-part), np.log(part) + log_e).sum() for part in PARTS]
    return float(log_mean_exp(parts))
