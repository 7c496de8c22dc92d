"""Looks at trainings in the order of the plan: guesses, errors, and the e-value of a claim.

Each training's coin is guessed by a rule learnt from the trainings before it in the plan. So no
training is spent on the rule alone, and every look uses the same guesses. A training that failed
counts as a wrong guess: leaving it out would select by the outcome.

**Bets on the scores, for a Gaussian claim.** A guess keeps only the side of a score. If outputs are
Gaussian, its distance from the middle shows more, and a bet on hockey sticks uses it.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from lightning_audit import _validate
from lightning_audit.many.verdict import ON_GUESSES, Promise
from lightning_audit.stats._arguments import ConfusionCounts, Floats, places
from lightning_audit.stats.binomial import error_rate_confidence_sequence, error_rate_log_e
from lightning_audit.stats.canary_bets import LeakageBet
from lightning_audit.stats.sequential import share_error_upper, share_log_e

Flags = NDArray[np.bool_]

# The best threshold of the past is searched again when the past has grown by this part.
_SEARCH_AGAIN = 0.1
# Place of (coin, whether the guess is right) in the counts fn, tp, fp, tn.
_OUTCOMES = {(True, False): 0, (True, True): 1, (False, False): 2, (False, True): 3}


@dataclass(frozen=True, eq=False)
class Guesses:
    """Guesses of the coins of a prefix of the plan.

    Args:
        first: Number of the first training that is guessed; n if none is.
        wrong: Share of wrong guesses in each training from there on, ``[n - first]``: 0 or 1 if a
            training has one canary, and 1 for a training that failed.
        counts: Outcomes of the guesses in trainings that did not fail.
        trainings: Number n of trainings of the prefix.
        failures: Number of those that failed.
        canaries: Number m of canaries in each training.
    """

    first: int
    wrong: Floats
    counts: ConfusionCounts
    trainings: int
    failures: int
    canaries: int

    @property
    def errors(self) -> int:
        """Number of wrong guesses, those in failed trainings included."""
        return round(float(np.sum(self.wrong)) * self.canaries)

    @property
    def total(self) -> int:
        """Number of guesses."""
        return len(self.wrong) * self.canaries

    def log_e(self, least_error: float, seen: int = 0) -> Floats:
        """Return the log e-value of a claim after each guessed training, ``[n - first - seen]``.

        Args:
            least_error: Least mean error rate that the claim allows.
            seen: Number of guessed trainings at the beginning that are left out.
        """
        if self.canaries > 1:
            return share_log_e(1.0 - self.wrong, least_error)[seen:]
        errors = np.cumsum(self.wrong).astype(np.int64)
        return error_rate_log_e(errors[seen:], np.arange(seen, len(errors)) + 1, least_error)

    def error_upper(self, significance: float) -> float:
        """Return an upper limit of the mean error rate that is valid at any number of looks."""
        if self.canaries > 1:
            return share_error_upper(1.0 - self.wrong, significance)
        return float(error_rate_confidence_sequence(self.errors, self.total, significance))


@dataclass(frozen=True)
class Look:
    """What a prefix of the plan shows of a claim.

    Args:
        refuted: Whether the claim is refuted by this prefix or by a shorter one.
        log_e: Largest natural logarithm of the e-value over this prefix and all shorter ones.
        refuted_after: Number of trainings at which the claim was first refuted; None if it is not.
        errors: Number of wrong guesses, failed trainings included.
        guesses: Number of guesses.
        trainings: Number of trainings.
        failures: Number of trainings that failed.
    """

    refuted: bool
    log_e: float
    refuted_after: int | None
    errors: int
    guesses: int
    trainings: int
    failures: int


def guess_coins(scores: ArrayLike, coins: ArrayLike, failed: ArrayLike) -> Guesses:
    """Guess the coin of each training by a rule learnt from the trainings before it.

    Three rules compete: a threshold half way between the means of the two groups of earlier scores,
    one half way between their medians, and the threshold with the fewest errors on them. Each
    learns from earlier trainings on which side of it the canary is. The guess of a training is
    that of the rule with the fewest wrong guesses so far, the first of them on a tie. A score
    equal to a threshold counts as the lower side. Guesses begin at the first training that has an
    earlier score of each group.

    Several canaries in one training are guessed by the same three rules, learnt from their own
    earlier scores and from those of all canaries together: six rules.

    Everything but the guessed training's own scores is determined by the past, so a guess errs with
    at least the least error rate of the claim, given the past, for any scores: the coin is fair and
    independent of the past.

    Args:
        scores: Score of each training in the order of the plan, ``[n]``, or of each canary in each
            training, ``[n, m]``; finite unless the training failed.
        coins: Whether each training had the canary, of the shape of ``scores``.
        failed: Whether each training failed, ``[n]``.

    Returns:
        The guesses.

    Raises:
        ValueError: If the arrays are not of these shapes and kinds, or a score of a training that
            did not fail is not finite.

    Example:
        >>> scores = np.array([0.1, 2.0, 0.3, 1.9, 5.0])
        >>> guesses = guess_coins(scores, scores > 1, np.zeros(5, dtype=bool))
        >>> guesses.first, guesses.errors, guesses.total
        (2, 0, 3)
    """
    values, coin, lost = _checked(scores, coins, failed)
    table = _Table(values.shape[1])
    for row, flips, gone in zip(values.tolist(), coin.tolist(), lost.tolist(), strict=True):
        table.add(row, flips, gone=gone)
    return table.guesses()


class GrowingLook:
    """Looks at growing prefixes of one plan, each training of which is guessed once.

    Args:
        least_error: Least mean error rate that the claim allows, in (0, 1/2].
        goal: Log e-value that refutes the claim.
    """

    def __init__(self, least_error: float, goal: float) -> None:
        self._least_error, self.goal = least_error, goal
        self._table: _Table | None = None
        self._last: Look | None = None

    def at(self, scores: ArrayLike, coins: ArrayLike, failed: ArrayLike) -> Look:
        """Return the look at a prefix that begins with the last one; see `guess_coins`."""
        seen = 0 if self._table is None else self._table.trainings
        new = _checked(*(np.asarray(part)[seen:] for part in (scores, coins, failed)))
        table = self._table = self._table or _Table(new[0].shape[1])
        for row, flips, gone in zip(*(part.tolist() for part in new), strict=True):
            table.add(row, flips, gone=gone)
        self._last = look_of(table.guesses(), self._least_error, self.goal, self._last)
        return self._last


def look(
    scores: ArrayLike,
    coins: ArrayLike,
    failed: ArrayLike,
    promise: Promise,
    significance: float,
) -> Look:
    """Return what a prefix of the plan shows of a claim; valid at any number of looks.

    With probability at least ``1 - significance`` no prefix refutes a claim that is true, whenever
    and however often it is looked at (`error_rate_log_e`; Ville). The prefix must be that of the
    plan, not the trainings that finished first: with the canary a training may take longer.

    Args:
        scores: As in `guess_coins`.
        coins: As in `guess_coins`; each fair, private, and independent of all other randomness.
        failed: As in `guess_coins`.
        promise: What is claimed.
        significance: Probability in (0, 1) with which a true claim may be refuted.

    Returns:
        The look.

    Raises:
        ValueError: See `guess_coins`; or if ``significance`` is not in (0, 1).

    References:
        Ville, "Étude critique de la notion de collectif", 1939. Waudby-Smith and Ramdas,
        "Estimating means of bounded random variables by betting", JRSS B 86, 2024,
        arXiv:2010.09686.
    """
    goal = -math.log(_validate.open_unit("significance", significance, "such as 1e-3"))
    return look_of(guess_coins(scores, coins, failed), promise.least_error, goal)


def look_of(guesses: Guesses, least_error: float, goal: float, earlier: Look | None = None) -> Look:
    """Return the look at some guesses.

    Args:
        guesses: Of a prefix of the plan.
        least_error: Least mean error rate that the claim allows.
        goal: Log e-value that refutes the claim.
        earlier: A look at the same guesses of a shorter prefix, which saves its e-values.
    """
    seen = 0 if earlier is None else earlier.guesses // guesses.canaries
    log_e = guesses.log_e(least_error, seen)
    if guesses.canaries > 1:
        # Half of the significance is for one look at the planned end, see `many.training_audit`.
        log_e = log_e - math.log(2.0)
    after = None if earlier is None else earlier.refuted_after
    if after is None and (reached := np.flatnonzero(log_e >= goal)).size:
        after = guesses.first + seen + int(reached[0]) + 1
    return Look(
        refuted=after is not None,
        log_e=max(float(log_e.max(initial=0.0)), 0.0 if earlier is None else earlier.log_e),
        refuted_after=after,
        errors=guesses.errors,
        guesses=guesses.total,
        trainings=guesses.trainings,
        failures=guesses.failures,
    )


def _checked(scores: ArrayLike, coins: ArrayLike, failed: ArrayLike) -> tuple[Floats, Flags, Flags]:
    """Return scores and coins as ``[n, m]``, and failures ``[n]``."""
    values = np.asarray(scores, dtype=np.float64)
    coin, lost = np.asarray(coins), np.asarray(failed)
    for name, flags in (("coins", coin), ("failed", lost)):
        if flags.dtype != np.bool_ and flags.size:
            raise ValueError(f"{name} has dtype {flags.dtype}, must hold True or False.")
    if values.ndim not in (1, 2) or values.shape != coin.shape or lost.shape != values.shape[:1]:
        raise ValueError(
            f"scores, coins and failed have shapes {values.shape}, {coin.shape} and {lost.shape}, "
            "must be [n] each, or [n, m], [n, m] and [n]: a row for each training of the plan."
        )
    values = values if values.ndim == 2 else values[:, None]
    missing = ~np.isfinite(values).all(axis=1) & ~lost.astype(bool)
    if missing.any():
        raise ValueError(
            f"scores must be finite unless the training failed ({places(missing)}); store such a "
            "training as failed."
        )
    return values, coin.astype(bool).reshape(values.shape), lost.astype(bool)


class _Table:
    """Guesses of trainings, one after the other, by the rule with the fewest errors so far."""

    def __init__(self, canaries: int) -> None:
        self._common = _Rules()
        self._each = [_Rules() for _ in range(canaries)] if canaries > 1 else []
        self._errors = [0] * (6 if self._each else 3)
        #: Share of wrong guesses in each training, from the first that is guessed.
        self.wrong: list[float] = []
        #: Guesses in trainings that did not fail: fn, tp, fp, tn.
        self.counts = [0, 0, 0, 0]
        self.trainings = self._failures = 0
        self._canaries = canaries

    def guesses(self) -> Guesses:
        """Return the guesses so far."""
        fn, tp, fp, tn = self.counts
        return Guesses(
            first=self.trainings - len(self.wrong),
            wrong=np.array(self.wrong, dtype=np.float64),
            counts=ConfusionCounts(fn=fn, tp=tp, fp=fp, tn=tn),
            trainings=self.trainings,
            failures=self._failures,
            canaries=self._canaries,
        )

    def add(self, scores: list[float], coins: list[bool], *, gone: bool) -> None:
        """Guess the coins of a training, then learn from it unless it failed."""
        self.trainings += 1
        self._failures += gone
        if not gone:
            options = [self._options(j, score) for j, score in enumerate(scores)]
        if self._common.ready:
            best = self._errors.index(min(self._errors))
            right = [] if gone else [o[best] == c for o, c in zip(options, coins, strict=True)]
            for place in zip(coins, right, strict=False):
                self.counts[_OUTCOMES[place]] += 1
            self.wrong.append(1.0 - sum(right) / len(scores))
        if gone:
            return
        for j, (option, score, coin) in enumerate(zip(options, scores, coins, strict=True)):
            for rule, guess in enumerate(option):
                self._errors[rule] += guess != coin
            for rules in (self._common, *self._each[j : j + 1]):
                rules.learn(score, coin)

    def _options(self, canary: int, score: float) -> tuple[bool, ...]:
        """Return the guess of each rule; none before both groups were seen."""
        if not self._common.ready:
            return ()
        shared = self._common.guesses(score)
        if not self._each:
            return shared
        own = self._each[canary]
        return (*(own.guesses(score) if own.ready else shared), *shared)


class _Rules:
    """Three rules that guess a coin from a score, learnt from the scores so far."""

    def __init__(self) -> None:
        # Sorted scores and their sum, without and with the canary.
        self._sorted: tuple[list[float], list[float]] = ([], [])
        self._sums = [0.0, 0.0]
        self._best = (0.0, True)
        self._searched_at = 0

    @property
    def ready(self) -> bool:
        return bool(self._sorted[0]) and bool(self._sorted[1])

    def guesses(self, value: float) -> tuple[bool, ...]:
        means = [total / len(part) for total, part in zip(self._sums, self._sorted, strict=True)]
        medians = [part[len(part) // 2] for part in self._sorted]
        seen = len(self._sorted[0]) + len(self._sorted[1])
        if seen >= (1.0 + _SEARCH_AGAIN) * self._searched_at:
            self._best, self._searched_at = _fewest_errors(*self._sorted), seen
        middles = ((0.5 * out + 0.5 * inside, inside >= out) for out, inside in (means, medians))
        return *(_side(value, *rule) for rule in middles), _side(value, *self._best)

    def learn(self, value: float, inside: bool) -> None:
        bisect.insort(self._sorted[inside], value)
        self._sums[inside] += value


def _side(value: float, threshold: float, above: bool) -> bool:
    """Return the guess: whether the score is on the canary's side of the threshold."""
    return (value > threshold) == above


def _fewest_errors(out: list[float], inside: list[float]) -> tuple[float, bool]:
    """Return the threshold with the fewest errors, and whether the canary is above it.

    Of several best ones it is the middle one, so that groups that do not overlap are separated half
    way between them.
    """
    every = np.unique(np.concatenate([out, inside]))
    cuts = 0.5 * (every[1:] + every[:-1]) if len(every) > 1 else every
    fn = np.searchsorted(inside, cuts, side="right")
    fp = len(out) - np.searchsorted(out, cuts, side="right")
    errors = fn + fp
    swapped = len(out) + len(inside) - errors
    above = bool(errors.min() <= swapped.min())
    chosen = errors if above else swapped
    best = np.flatnonzero(chosen == chosen.min())
    return float(cuts[best[len(best) // 2]]), above


# --- Bets on the scores, for a Gaussian claim.

#: Trainings before the first bet, and the growth of the past after which it is measured again.
_BEFORE_BETS, _MEASURE_AGAIN = 4, 0.02
#: Past scores and readings are clipped at this many standard deviations.
_REACH = 5.0
#: Standard deviation of a normal distribution over its median absolute deviation.
_OF_MEDIAN = 1.4826
#: Between these a bound on mu is searched, and it is lowered by the search's precision.
_MUS, _NEAR = (1e-4, 70.0), 1e-6


def mu_lower_of_scores(
    scores: ArrayLike,
    coins: ArrayLike,
    failed: ArrayLike,
    mu: float,
    planned: int,
    significance: float,
) -> float:
    """Return a lower bound on mu of Gaussian DP from guesses and scores, at any number of looks.

    Two e-processes test whether all trainings are mu'-GDP: that of the guesses (`error_rate_log_e`
    at the error rate Phi(-mu'/2), or `share_log_e`), and `LeakageBet` on `standard_readings`.
    `ON_GUESSES` of the stake is on the first one and the rest on the second one, which is decided
    before the first training, so that their sum is an e-process, too. The bound is the largest mu'
    that it rejects.

    With a fair coin, the mean of a hockey stick is at most its divergence for any function of what
    a training gave, also if that is "it failed". So the bound is valid for any scores. How near it
    is to the truth depends on the distribution of the scores.

    Args:
        scores: As in `guess_coins`.
        coins: As in `guess_coins`; each fair, private, and independent of all other randomness.
        failed: As in `guess_coins`.
        mu: Claimed mu >= 0, for which the hockey sticks are optimized.
        planned: Number of trainings of the plan, fixed before the first one.
        significance: Probability in (0, 1) with which the bound may fail at any time.

    Returns:
        The bound >= 0.

    Raises:
        ValueError: See `guess_coins`; or if another argument is out of its range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> coins, never = rng.random(500) < 0.5, np.zeros(500, dtype=bool)
        >>> scores = 1.6 * coins + rng.standard_normal(500)
        >>> round(mu_lower_of_scores(scores, coins, never, 1.67, 500, 0.05), 2)
        1.27

    References:
        Own proof, see `LeakageBet`. Vovk and Wang, "E-values: calibration, combination and
        applications", Annals of Statistics 49, 2021, arXiv:1912.06116 (averages of e-values).
    """
    noise = 1.0 / max(_validate.non_negative("mu", mu, "the claim's"), _MUS[0])
    plan = _validate.positive_int("planned", planned, "the number of trainings of the plan")
    goal = -math.log(_validate.open_unit("significance", significance, "such as 0.05"))
    guesses, readings = guess_coins(scores, coins, failed), standard_readings(scores, coins, failed)
    sides = np.asarray(coins, dtype=np.float64).reshape(readings.shape)
    bet = LeakageBet((guesses.canaries,), planned_steps=max(plan - _BEFORE_BETS, 1))
    for side, reading in zip(sides[_BEFORE_BETS:], readings[_BEFORE_BETS:], strict=True):
        bet.update(side, noise * reading + 0.5, noise)
    proved = bet.proved(1.0, bet.growth, [(noise, 1.0, max(len(sides) - _BEFORE_BETS, 0))])

    def above(at: float) -> float:
        """Return by how much the log e-value of a mu, which decreases, exceeds the goal."""
        of_bets = [
            each.needed - float((each.steps @ each.logs(np.array([[at]])))[0]) for each in proved
        ]
        of_scores = np.logaddexp.reduce(of_bets) + math.log1p(-ON_GUESSES)
        last = guesses.log_e(float(special.ndtr(-0.5 * at)), len(guesses.wrong) - 1)
        of_guesses = math.log(ON_GUESSES) + float(last[-1])
        return float(np.logaddexp(of_scores, of_guesses)) - goal

    if not guesses.total or above(_MUS[0]) < 0.0:
        return 0.0
    return float(optimize.brentq(above, *_MUS, xtol=_NEAR)) - _NEAR


def standard_readings(scores: ArrayLike, coins: ArrayLike, failed: ArrayLike) -> Floats:
    """Return scores as readings of Gaussian noise of variance one, by earlier trainings alone.

    A reading is the distance of a score from the middle of its canary's earlier scores with and
    without the canary, over their spread, and positive on the side of the canary. Middle and spread
    are of scores that are clipped around the median of their group, so that a few extreme ones do
    not move them. They are measured again when the past has grown by `_MEASURE_AGAIN`.

    Args:
        scores: As in `guess_coins`.
        coins: As in `guess_coins`.
        failed: As in `guess_coins`.

    Returns:
        The readings, ``[n, m]``: 0 in a training that failed, in the first four, and before a
        canary has an earlier score of each group.

    Raises:
        ValueError: See `guess_coins`.

    Example:
        >>> scores = np.array([0.0, 4.0, 1.0, 5.0, 4.5, 2.5])
        >>> standard_readings(scores, scores > 3, np.zeros(6, dtype=bool))[4:, 0].round(1)
        array([2.8, 0. ])
    """
    values, coin, lost = _checked(scores, coins, failed)
    found, measured_at = np.zeros(values.shape), 0.0
    for n in range(_BEFORE_BETS, len(values)):
        if n >= (1.0 + _MEASURE_AGAIN) * measured_at:
            past, measured_at = ~lost[:n], n
            seen, inside = values[:n][past], coin[:n][past]
            each = [_middle_and_spread(*one) for one in zip(seen.T, inside.T, strict=True)]
            middle, spread = np.array(each).T
        if not lost[n]:
            # A spread of zero reads on which side a score is.
            with np.errstate(all="ignore"):
                found[n] = np.nan_to_num((values[n] - middle) / spread)
    return np.clip(found, -_REACH, _REACH)


def _middle_and_spread(values: Floats, inside: Flags) -> tuple[float, float]:
    """Return the middle of two groups and their spread, negative if the canary is below."""
    if not inside.any() or inside.all():
        return 0.0, math.inf
    with np.errstate(all="ignore"):
        medians = np.where(inside, np.median(values[inside]), np.median(values[~inside]))
        away = values - medians
        if (reach := _REACH * _OF_MEDIAN * float(np.median(np.abs(away)))) > 0.0:
            values = medians + np.clip(away, -reach, reach)
        above, below = float(np.mean(values[inside])), float(np.mean(values[~inside]))
        within = values - np.where(inside, above, below)
        spread = math.sqrt(float(np.mean(within**2)) * len(within) / max(len(within) - 2, 1))
    if above == below:
        return 0.0, math.inf
    return 0.5 * above + 0.5 * below, math.copysign(spread, above - below)
