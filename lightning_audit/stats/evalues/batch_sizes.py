r"""Anytime-valid tests of Poisson sampling, from the sizes of batches and the records in them.

The null hypothesis: given all earlier batches, each of the ``n`` records joins the next batch with
probability ``q_t``, independently of the others. ``q_t`` may be any function of the past, since
samplers differ in it. There are four kinds of bet:

* **sizes**. The past determines an interval ``A``. Under the null the next size is in it with
  probability at most ``sup_q P(Bin(n, q) in A)``, for any ``q_t``, so that
  ``1 - s + s 1{size in A} / sup_q P(Bin(n, q) in A)`` has mean at most one for ``0 <= s <= 1``.
* **overlaps**. The past determines the ``m`` records already seen in the epoch. Under the null the
  next batch, given its size, is a uniform subset, so its overlap ``X`` with them is hypergeometric
  regardless of ``q_t``, and ``w^X / E[w^X]`` has mean one. Batches that go through the data once
  have no overlap: ``w < 1``.
* **repetition**. A given batch of ``k`` records is drawn with probability at most ``2^-k``, if no
  record joins with probability above one half. The past determines the batch: the one at the same
  position in the previous epoch.
* **rate**. If no record joins with probability above ``q0``, each record chosen by the past
  multiplies the wealth by ``q1 / q0 > 1`` if it joins and by ``(1 - q1) / (1 - q0)`` if not, with
  mean ``(1 - q) (1 - q1) / (1 - q0) + q q1 / q0``, which grows with ``q`` and is one at ``q0``. The
  bet is on all records, and on those already seen in the epoch, which detects favored records.

Products of such factors are e-processes, those of one filtration may be averaged, and Ville's
inequality applies (own proof, above, on arXiv:2210.01948 and arXiv:1912.06116). Bets on repetition
and rate are valid as well if every record has its own probability. Those on sizes and overlaps are
then valid by simulation (`tests/stats/evalues/test_batch_sizes.py`): unequal rates make overlaps
larger. They make sizes more equal by no more than if each record either joins with probability one
half or not at all, which is allowed for.

References:
    Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference",
    Statistical Science 38, 2023, arXiv:2210.01948. Vovk and Wang, "E-values: calibration,
    combination and applications", Annals of Statistics 49, 2021, arXiv:1912.06116.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

IndexArray = NDArray[np.int64]

#: Fraction of the wealth staked on the most frequent size so far, and on sizes near the mean.
SIZE_STAKES = (0.9, 0.5)
#: Factors of the wealth for each record that occurs twice in an epoch.
OVERLAP_TILTS: Floats = np.array([0.1, 0.5])
#: Fraction of the wealth staked on a repeated batch, and probability that only its digest repeats.
REPEAT_STAKE, SAME_DIGEST = 0.01, 1e-12
#: Ratios over which `rate_log_e` mixes.
RATE_RATIOS: Floats = np.array([1.03, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0])
#: Smaller sizes are not bet on: samplers that leave out empty batches are common and harmless.
SMALLEST_SIZE = 8
#: Number of batches of the previous epoch whose digests are stored.
REMEMBERED = 2**16
#: Largest number of records that are watched for overlaps; of more records, evenly spaced ones are.
WATCHED = 2**20


@lru_cache(maxsize=4096)
def largest_interval_probability(records: int, low: int, high: int) -> float:
    """Return the largest ``P(low <= Bin(records, q) <= high)``, ``low <= high``, over q in [0, 1].

    The derivative in ``q`` is zero where the binomial with one record less is equally likely at
    ``low - 1`` and at ``high``.

    Example:
        >>> round(largest_interval_probability(2, 1, 1), 6)
        0.5
    """
    if low <= 0 or high >= records:
        return 1.0
    odds = (_log_choose(records - 1, low - 1) - _log_choose(records - 1, high)) / (high - low + 1)
    q = special.expit(odds)
    below, inside = special.bdtr(np.array([low - 1, high]), records, q)
    return min(float(inside - below), 1.0)


def overlap_log_e(records: int, marked: int, drawn: int, overlap: int, tilts: Floats) -> Floats:
    """Return the log of ``w^overlap / E[w^X]`` for each tilt ``w`` > 0, ``[j]``.

    ``X`` is the overlap of a uniform subset of size ``drawn`` and a fixed one of size ``marked``.

    Example:
        >>> overlap_log_e(10, 0, 3, 0, np.array([0.1, 2.0]))
        array([0., 0.])
    """
    if marked == 0 or drawn == 0:
        return np.zeros(len(tilts))
    x = np.arange(max(0, drawn + marked - records), min(drawn, marked) + 1)
    log_p = (
        _log_choose(marked, x)
        + _log_choose(records - marked, drawn - x)
        - _log_choose(records, drawn)
    )
    log_w = np.log(tilts)[:, None]
    # Divided by the sum of the probabilities, because logarithms of large factorials are rounded.
    mean = log_mean_exp(log_w * x + log_p) - log_mean_exp(log_p)
    return np.asarray(log_w[:, 0] * overlap - mean, dtype=np.float64)


def rate_log_e(trials: int, hits: int, rate: float) -> Floats:
    """Return log e-values for "no record joins a batch with a probability above ``rate``".

    Args:
        trials: Number of records that could join, summed over batches.
        hits: Number of them that did.
        rate: Probability in (0, 1).

    Returns:
        One log e-value for each of `RATE_RATIOS`, ``[7]``; the mean of the e-values is also one.

    Example:
        >>> bool(rate_log_e(100_000, 2000, 0.01).max() > 300)
        True
    """
    higher = np.minimum(RATE_RATIOS * rate, 0.5 * (1.0 + rate))
    misses = trials - hits
    return hits * np.log(higher / rate) + misses * (np.log1p(-higher) - math.log1p(-rate))


class PoissonBatchBets:
    """Bets against Poisson sampling on sizes, overlaps and repetition; counts for those on rates.

    Stores a bit for each watched record and a digest for each batch of an epoch.

    Args:
        records: Number of records from which the sampler draws, >= 1.

    Example:
        >>> bets = PoissonBatchBets(200)
        >>> for start in range(0, 200, 20):
        ...     bets.update(np.arange(start, start + 20))
        >>> bets.log_e > 10, bets.NAMES[int(bets.wealth.argmax())]
        (True, 'unseen')
    """

    #: What each bet is on, in the order of `wealth`.
    NAMES = ("size", "size", "unseen", "unseen", "repeated")

    def __init__(self, records: int) -> None:
        self.records = records
        self.batches = 0
        #: Log wealth of each bet.
        self.wealth: Floats = np.zeros(len(self.NAMES))
        #: Log wealth that two bets would have if all sizes were equal, or no record occurred twice.
        self.could_win: Floats = np.zeros(2)
        #: Trials and hits for `rate_log_e`: of all records, and of those already seen in the epoch.
        self.counts: IndexArray = np.zeros((2, 2), dtype=np.int64)
        self._spacing = -(-records // WATCHED)
        self._watched = -(-records // self._spacing)
        self._seen = np.zeros(self._watched, dtype=bool)
        self._sizes: Counter[int] = Counter()
        self._commonest, self._drawn, self._counted = 0, 0, 0
        #: Digest and size of each batch, in the previous epoch and in this one.
        self._before: list[tuple[int, int]] = []
        self._current: list[tuple[int, int]] = []

    @property
    def log_e(self) -> float:
        """Log e-value of all bets together."""
        return float(log_mean_exp(self.wealth))

    def start_epoch(self) -> None:
        """Record that the sampler starts a new epoch."""
        self._seen[:] = False
        self._before, self._current = self._current, []

    def update(self, batch: IndexArray) -> None:
        """Update with a batch.

        Args:
            batch: Distinct record indices in [0, records), in any order, ``[k]``.
        """
        self.batches += 1
        self._bet_on_size(len(batch))
        self._bet_on_overlap(batch)
        self._bet_on_repetition(batch)
        self.counts[0] += self.records, len(batch)

    def _bet_on_size(self, size: int) -> None:
        if self._counted:
            mean = round(self._drawn / self._counted)
            intervals = ((self._commonest, 0), (mean, round(0.25 * math.sqrt(mean))))
            for bet, (centre, width) in enumerate(intervals):
                if centre < SMALLEST_SIZE:
                    continue
                stake = SIZE_STAKES[bet]
                # For rates up to one half, a few records at one half give the most equal sizes.
                records = min(self.records, 2 * centre)
                inside = largest_interval_probability(records, centre - width, centre + width)
                won = 1.0 - stake + stake / inside
                self.wealth[bet] += math.log(won if abs(size - centre) <= width else 1.0 - stake)
                if bet == 0:
                    self.could_win[0] += math.log(won)
        self._counted += 1
        self._drawn += size
        self._sizes[size] += 1
        if self._sizes[size] > self._sizes[self._commonest]:
            self._commonest = size

    def _bet_on_overlap(self, batch: IndexArray) -> None:
        watched = batch[batch % self._spacing == 0] // self._spacing
        marked, overlap = int(self._seen.sum()), int(self._seen[watched].sum())
        draw = (self._watched, marked, len(watched))
        log_e = overlap_log_e(*draw, overlap, OVERLAP_TILTS)
        self.wealth[2:4] += log_e
        self.could_win[1] += log_e[0] - overlap * math.log(OVERLAP_TILTS[0])
        self.counts[1] += marked, overlap
        self._seen[watched] = True

    def _bet_on_repetition(self, batch: IndexArray) -> None:
        number = len(self._current)
        if number >= REMEMBERED:
            return
        digest = hash(np.sort(batch).tobytes())
        self._current.append((digest, len(batch)))
        if number >= len(self._before):
            return
        expected, size = self._before[number]
        if size >= SMALLEST_SIZE:
            won = REPEAT_STAKE / (2.0**-size + SAME_DIGEST) if digest == expected else 0.0
            self.wealth[4] += math.log(1.0 - REPEAT_STAKE + won)


def _log_choose(n: int, k: Floats | IndexArray | int) -> Floats:
    return np.asarray(
        special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(n - k + 1.0)
    )
