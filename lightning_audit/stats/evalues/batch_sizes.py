r"""Anytime-valid tests of Poisson sampling, from the sizes of batches and the records in them.

The null hypothesis: given all earlier batches, each of the ``n`` records joins the coming batch
with probability ``q_t``, independently of the others. ``q_t`` may be anything that the past
determines, since samplers differ in it. Four kinds of bet:

* **sizes**. The past names an interval ``A``. Under the null the next size lies in it with
  probability ``sup_q P(Bin(n, q) in A)`` at most, whatever ``q_t``, so that
  ``1 - s + s 1{size in A} / sup_q P(Bin(n, q) in A)`` has mean at most one for ``0 <= s <= 1``.
* **overlaps**. The past names the ``m`` records that the epoch has had. Given its size, the next
  batch is a uniform subset under the null, so that its overlap ``X`` with them is hypergeometric,
  free of ``q_t``, and ``w^X / E[w^X]`` has mean one. Batches that go through the data once have no
  overlap: ``w < 1``.
* **repetition**. A batch of ``k`` given records is drawn with probability ``2^-k`` at most, if no
  record joins with more than one half. The past names it: the same batch of the epoch before.
* **rate**. If no record joins with more than ``q0``, each record that the past names multiplies the
  wealth by ``q1 / q0 > 1`` if it joins and by ``(1 - q1) / (1 - q0)`` if not, with mean
  ``(1 - q) (1 - q1) / (1 - q0) + q q1 / q0``, which grows with ``q`` and is one at ``q0``. It bets
  on all records, and on those that the epoch has had, which finds favoured ones.

Products of such factors are e-processes, those of one filtration may be averaged, and Ville's
inequality does the rest. Bets on repetition and rate hold as well where every record has a
probability of its own. Those on sizes and overlaps then hold by simulation
(`tests/stats/evalues/test_batch_sizes.py`): unequal rates make overlaps larger, and sizes more
equal by no more than if each record either joins with probability one half or not at all, which
is allowed for.
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

#: Part of the wealth staked on the commonest size so far, and on sizes around the mean.
SIZE_STAKES = (0.9, 0.5)
#: Factors that each record costs which comes twice in an epoch.
OVERLAP_TILTS: Floats = np.array([0.1, 0.5])
#: Part of the wealth staked on a batch that comes again, and the chance that only its digest does.
REPEAT_STAKE, SAME_DIGEST = 0.01, 1e-12
#: Ratios over which `rate_log_e` mixes.
RATE_RATIOS: Floats = np.array([1.03, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0])
#: Sizes below this are not bet on: samplers that leave out empty batches are common and harmless.
SMALLEST_SIZE = 8
#: Batches of the epoch before whose digests are remembered.
REMEMBERED = 2**16
#: Records that are watched for overlaps: all of so many, or evenly spaced ones of more.
WATCHED = 2**20


@lru_cache(maxsize=4096)
def largest_interval_probability(records: int, low: int, high: int) -> float:
    """The largest ``P(low <= Bin(records, q) <= high)``, ``low <= high``, over ``q`` in [0, 1].

    The derivative in ``q`` vanishes where the binomial with one record less is as likely at
    ``low - 1`` as at ``high``.

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
    """Log of ``w^overlap / E[w^X]`` for each ``w`` > 0 of the tilts, ``[j]``.

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
    # Divided by the sum of the probabilities: logarithms of large factorials round.
    mean = log_mean_exp(log_w * x + log_p) - log_mean_exp(log_p)
    return np.asarray(log_w[:, 0] * overlap - mean, dtype=np.float64)


def rate_log_e(trials: int, hits: int, rate: float) -> Floats:
    """Log e-values for "no record joins a batch with a probability above ``rate``".

    Args:
        trials: records that could join, summed over batches.
        hits: how many of them did.
        rate: in (0, 1).

    Returns:
        One log e-value for each of `RATE_RATIOS`; the mean of the e-values is one, too.

    Example:
        >>> bool(rate_log_e(100_000, 2000, 0.01).max() > 300)
        True
    """
    higher = np.minimum(RATE_RATIOS * rate, 0.5 * (1.0 + rate))
    misses = trials - hits
    return hits * np.log(higher / rate) + misses * (np.log1p(-higher) - math.log1p(-rate))


class PoissonBatchBets:
    """Bets against Poisson sampling on sizes, overlaps and repetition; counts for those on rates.

    Holds a bit for each watched record and a digest for each batch of an epoch.

    Args:
        records: number of records that the sampler draws from, >= 1.

    Example:
        >>> bets = PoissonBatchBets(200)
        >>> for start in range(0, 200, 20):
        ...     bets.update(np.arange(start, start + 20))
        >>> bets.log_e > 10, bets.NAMES[int(bets.wealth.argmax())]
        (True, 'unseen')
    """

    #: What each of the bets is on, in the order of `wealth`.
    NAMES = ("size", "size", "unseen", "unseen", "repeated")

    def __init__(self, records: int) -> None:
        self.records = records
        self.batches = 0
        #: Log wealth of each bet.
        self.wealth: Floats = np.zeros(len(self.NAMES))
        #: Log wealth that two would have, had all sizes been equal, or no record come twice.
        self.could_win: Floats = np.zeros(2)
        #: Trials and hits for `rate_log_e`: of all records, and of those that the epoch has had.
        self.counts: IndexArray = np.zeros((2, 2), dtype=np.int64)
        self._spacing = -(-records // WATCHED)
        self._watched = -(-records // self._spacing)
        self._seen = np.zeros(self._watched, dtype=bool)
        self._sizes: Counter[int] = Counter()
        self._commonest, self._drawn, self._counted = 0, 0, 0
        #: Digest and size of each batch, of the epoch before and of this one.
        self._before: list[tuple[int, int]] = []
        self._current: list[tuple[int, int]] = []

    @property
    def log_e(self) -> float:
        """Log e-value of all bets together."""
        return float(log_mean_exp(self.wealth))

    def start_epoch(self) -> None:
        """Take note that the sampler starts anew."""
        self._seen[:] = False
        self._before, self._current = self._current, []

    def update(self, batch: IndexArray) -> None:
        """Take in a batch.

        Args:
            batch: different records, numbers in [0, records), in any order, ``[k]``.
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
                # Of all rates up to one half those of a few records at one half fix the size most.
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
