"""Looks at trainings in the order of the plan: guesses, errors, and the e-value of a claim.

Each training's coin is guessed by a rule learnt from the trainings before it in the plan. So no
training is spent on the rule alone, and every look uses the same guesses. A training that failed
counts as a wrong guess: leaving it out would select by the outcome.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.many.verdict import Promise
from lightning_audit.stats._arguments import ConfusionCounts, Floats, places
from lightning_audit.stats.binomial import error_rate_confidence_sequence, error_rate_log_e
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

        With several canaries it is halved: the other half of the significance belongs to the one
        look at the planned end, see `many.training_audit`.

        Args:
            least_error: Least mean error rate that the claim allows.
            seen: Number of guessed trainings at the beginning that are left out.
        """
        if self.canaries > 1:
            return share_log_e(1.0 - self.wrong, least_error)[seen:] - math.log(2.0)
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
        seen = slice(0 if self._table is None else self._table.trainings, None)
        new = _checked(np.asarray(scores)[seen], np.asarray(coins)[seen], np.asarray(failed)[seen])
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
