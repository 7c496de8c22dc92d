r"""Are batches drawn anew, and every record as often as claimed: e-values of Poisson sampling."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Chances of an earlier batch on which `RepeatBet` bets.
REPEATS: Floats = np.array([0.9, 0.1, 0.01])
#: Chance of an earlier batch above which it does not bet.
_LIKELY = 0.5
#: Factors of the rate, and rates, at which favoured records are drawn; and parts of all records.
FACTORS: Floats = np.array([1.5, 3.0, 10.0])
CERTAIN_RATE = 0.98
PARTS: Floats = np.array([0.1, 0.01, 0.001, 1e-5])


class RepeatBet:
    r"""E-process for "each batch is a new Poisson sample of the records, at most at this rate".

    A given set of b of N records is drawn with probability ``r^b (1 - r)^(N - b)``. Over all rates
    r up to the stated q this is largest at ``min(q, b / N)``, so that the sum of these over the
    batches seen so far bounds the chance that the coming batch is one of them, whatever the
    sampler's own rate is. The bet is that one comes again. An empty batch may come again with any
    probability and is left out.

    Args:
        records: number of records, N.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._known: set[Hashable] = set()
        self._sizes: dict[int, int] = {}
        self._log_wealth = np.zeros(len(REPEATS))
        #: Batches that came again.
        self.again = 0

    def update(self, key: Hashable, size: int, rate: float) -> None:
        """Take in a batch.

        Args:
            key: equal for equal sets of records.
            size: how many records it has.
            rate: largest probability of each record, in (0, 1).
        """
        chance = min(1.0, self._chance(rate))
        came = key in self._known
        if 0.0 < chance < _LIKELY:
            bets = np.maximum(REPEATS, chance)
            gain = np.log(bets / chance) if came else np.log1p(-bets) - np.log1p(-chance)
            self._log_wealth += np.minimum(gain, 500.0)
        elif came and chance <= 0.0:  # below the smallest number
            self._log_wealth += 500.0
        self.again += came and chance < _LIKELY
        if size and not came:
            self._known.add(key)
            self._sizes[size] = self._sizes.get(size, 0) + 1

    def _chance(self, rate: float) -> float:
        """Largest probability that the coming batch is one of those before."""
        total = 0.0
        for size, count in self._sizes.items():
            own = min(rate, size / self._records)
            outside = (self._records - size) * math.log1p(-own) if size < self._records else 0.0
            total += count * math.exp(size * math.log(own) + outside)
        return total

    @property
    def log_e(self) -> float:
        """Log e-value now."""
        return float(log_mean_exp(self._log_wealth))


def favoured_log_e(counts: ArrayLike, batches: int, rate: float) -> float:
    r"""Log e-value for "each record joins each batch with at most this probability".

    Of one record with count c of T batches, ``(r / q)^c ((1 - r) / (1 - q))^(T - c)`` is an e-value
    for each r > q, and so is the mean over several r; it grows where records come more often. A
    part ``p`` of the records may be favoured, nobody knows which: ``prod (1 - p + p e_i)``, mixed
    over p.

    Args:
        counts: how often each record came, ``[records]``.
        batches: how many were drawn, T.
        rate: largest probability that is allowed, q in (0, 1).

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
