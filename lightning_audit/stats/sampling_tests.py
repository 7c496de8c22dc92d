"""Tests of Poisson sampling and of the divisor of the noisy sum.

**Anytime-valid tests of Poisson sampling, from the sizes of batches and the records in them.** The
null hypothesis: given all earlier batches, each of the ``n`` records joins the next batch with
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
then valid by simulation (`tests/stats/test_sampling_tests.py`): unequal rates make overlaps
larger. They make sizes more equal by no more than if each record either joins with probability one
half or not at all, which is allowed for.

References:
    Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference",
    Statistical Science 38, 2023, arXiv:2210.01948. Vovk and Wang, "E-values: calibration,
    combination and applications", Annals of Statistics 49, 2021, arXiv:1912.06116.
    Own proofs, in the docstrings. Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and
    safe anytime-valid inference", Statistical Science 38, 2023, arXiv:2210.01948 (e-processes).
    Vovk and Wang, "E-values: calibration, combination and applications", Annals of Statistics 49,
    2021, arXiv:1912.06116 (averages).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.sequential import PredictableCentre, log_mean_exp

# --- Anytime-valid tests of Poisson sampling, from the sizes of batches and the records in them.

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
    q = scipy.special.expit(odds)
    below, inside = scipy.special.bdtr(np.array([low - 1, high]), records, q)
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
    whole, chosen, rest = (scipy.special.gammaln(m + 1.0) for m in (n, k, n - k))
    return np.asarray(whole - chosen - rest)


# --- E-values for Poisson sampling: repeated batches, and records that are drawn too often.

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
        # The sum for the latest rate.
        self._rate, self._total = 0.0, 0.0
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
            self._total += self._of_size(size, rate)

    def _chance(self, rate: float) -> float:
        """Return the largest probability that the next batch is one of those before."""
        if rate != self._rate:
            each = (count * self._of_size(size, rate) for size, count in self._sizes.items())
            self._rate, self._total = rate, math.fsum(each)
        return self._total

    def _of_size(self, size: int, rate: float) -> float:
        """Return the largest probability of a given batch of this size."""
        own = min(rate, size / self._records)
        outside = (self._records - size) * math.log1p(-own) if size < self._records else 0.0
        return math.exp(size * math.log(own) + outside)

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


# --- Test of the divisor of the noisy sum: the stated constant or another number.

#: Variances of the noise, over the claimed one, for which another divisor is tested.
VARIANCES: Floats = 2.0 ** -np.arange(0.0, 12.0)
#: Decay of the variance that is learned from the past.
DECAY = 0.9
#: Least number of steps, and of standard errors, to conclude that the gradient's size follows the
#: divisor.
_FEWEST, _CLEARLY = 8, 4.0


class DivisorTest:
    r"""E-process for "the noisy sums were divided by the stated divisor".

    Let y be the released gradient times the stated divisor, s the sum before noise, both in units
    of the claimed standard deviation, and k the true divisor over the stated one. The likelihood of
    "``k y - s`` is noise", averaged over `VARIANCES` and one variance that is learned from the
    past, is divided by the largest likelihood of "``y - s`` is noise" under three nulls: noise of
    at least the claimed size, with any size in each step; noise of any one size in all steps; and
    noise of the size learned from the past. So noise that is only too small, or too large, is not
    evidence for another divisor.

    If the sum is not known, pass ``y - c`` for y, with any predictable center c, and zero for s.
    The test stays valid for any sum. The part that is evidence for less noise falls as ``|y - c|``
    grows, so data only lower its expectation (Anderson 1955). The part that is evidence for more
    noise never exceeds one. This extension is an own proof.

    Formula:
        ``mean_g prod_t k_t^n N(k_t y_t - s_t; 0, g) / max(prod_t max_{v >= 1} N(y_t - s_t; 0, v),
        max_v prod_t N(y_t - s_t; 0, v), prod_t N(y_t - s_t; 0, v_t))``, averaged over the tested
        divisors, where ``v_t`` is a decaying mean over the steps before t, which is also one of
        the variances g.

    References:
        Wasserman, Ramdas and Balakrishnan 2020, arXiv:1912.11436 (universal inference); Anderson,
        "The integral of a symmetric unimodal function", Proc. AMS 6, 1955.
    """

    def __init__(self) -> None:
        self._count = 0
        self._plain = 0.0
        self._step_null = 0.0
        # For each divisor: log of the Jacobian, and remaining sum of squares.
        self._tried = np.zeros((0, 2))
        # The stated divisor first: variances learned so far, and log-likelihoods with them.
        self._learned, self._with_learned = np.ones(0), np.zeros(0)
        # For each divisor, moments of the log size of the gradient and of the log divisor: their
        # number, sums, squares and product.
        self._sizes = np.zeros((0, 6))

    def update(self, released: Floats, sums: Floats, noise: float, ratios: Sequence[float]) -> None:
        """Update with one step.

        Args:
            released: The gradient times the stated divisor, ``[n]``.
            sums: The clipped sums, in the same unit, ``[n]``.
            noise: Claimed standard deviation of the noise, in the same unit, > 0.
            ratios: The tested divisors over the stated one, > 0; the same number at every step.
        """
        n = len(released)
        if not n or not ratios:
            return
        y, s, k = released / noise, sums / noise, np.asarray(ratios, dtype=np.float64)
        plain = float(np.sum((y - s) ** 2))
        variance = max(1.0, plain / n)
        self._count += n
        self._plain += plain
        self._step_null -= 0.5 * (n * float(np.log(variance)) + plain / variance)
        left = np.sum((k[:, None] * y - s) ** 2, axis=1)
        terms = np.stack([n * np.log(k), left], axis=1)
        self._tried = self._tried + terms if len(self._tried) else terms
        self._learn(n, np.array([0.0, *terms[:, 0]]), np.array([plain, *left]))
        if size := float(y @ y):
            a, b = np.full(len(k), 0.5 * np.log(size / n)), np.log(k)
            moments = np.stack([np.ones(len(k)), a, b, a * a, b * b, a * b], axis=1)
            self._sizes = self._sizes + moments if len(self._sizes) else moments

    def _learn(self, n: int, jacobian: Floats, squares: Floats) -> None:
        """Score the variances learned from the past, then update them with the step."""
        if not len(self._learned):
            self._learned, self._with_learned = np.ones(len(squares)), np.zeros(len(squares))
        variance = self._learned
        self._with_learned += jacobian - 0.5 * (n * np.log(variance) + squares / variance)
        mixed = DECAY * variance + (1.0 - DECAY) * squares / n
        self._learned = np.maximum(mixed, VARIANCES[-1])

    @property
    def shrinks_with_divisor(self) -> bool:
        """Whether the gradient is clearly smaller in steps in which a divisor is larger.

        A gradient that was divided by its own length is not: its length is the same in all steps.
        """
        if not len(self._sizes) or self._sizes[0, 0] < _FEWEST:
            return False
        number, a, b, aa, bb, ab = self._sizes.T
        spread = (aa - a * a / number) * (bb - b * b / number)
        correlation = (ab - a * b / number) / np.sqrt(np.maximum(spread, 1e-300))
        left = np.maximum(1.0 - correlation**2, 1e-12)
        return bool(np.any(correlation * np.sqrt((number - 2.0) / left) < -_CLEARLY))

    @property
    def log_e(self) -> float:
        """Log e-value so far."""
        if not self._count:
            return 0.0
        variance = max(self._plain / self._count, 1e-300)
        run_null = -0.5 * self._count * (float(np.log(variance)) + 1.0)
        jacobian, left = self._tried.T[:, :, None]
        fixed = jacobian - 0.5 * self._count * np.log(VARIANCES) - 0.5 * left / VARIANCES
        learned = self._with_learned[1:, None]
        other = np.concatenate([fixed, learned], axis=1)
        null = max(self._step_null, run_null, float(self._with_learned[0]))
        return float(log_mean_exp(other.ravel())) - null


class QuietEntries:
    """Selects the entries of the gradient in which the data were no larger than the noise so far.

    Data make noise look larger, and noise that looks larger does not reveal another divisor. The
    entries, and the centers that are subtracted, are chosen by the past alone.
    """

    #: Decay of the mean square, and its largest value, in claimed variances.
    _DECAY, _LOUD = 0.9, 1.5

    def __init__(self) -> None:
        self._centre: PredictableCentre | None = None
        self._square: Floats = np.ones(0)

    def take(self, released: Floats, noise: float) -> Floats:
        """Return the selected entries of a step, less their predictable center.

        Args:
            released: The entries, ``[n]``, the same number at every step.
            noise: Claimed standard deviation of the noise, in the same unit, > 0.
        """
        if self._centre is None:
            self._centre, self._square = PredictableCentre(released.shape), np.ones(len(released))
        residual = released - self._centre.value
        quiet = self._square < self._LOUD
        self._centre.update(released)
        latest = (residual / noise) ** 2
        self._square = self._DECAY * self._square + (1.0 - self._DECAY) * latest
        return np.asarray(residual[quiet])
