"""Bets on the private coins of canaries: what a canary adds, and how much the steps leak."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.divergences import (
    RENYI_ORDERS,
    HockeySticks,
    renyi_divergence,
    renyi_slope,
    sharpest_score,
    sign_score,
)
from lightning_audit.stats.sequential import (
    PredictableCentre,
    RobustCentre,
    along,
    largest_rejected,
    log_mean_exp,
    running,
)

# --- Test whether a canary adds more than clipping allows: bets on its private coin.

#: Slopes over which `CoinBet` mixes, per standard deviation of the residual.
COIN_SLOPES: Floats = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])


def chances_of_sides(coin_probability: float) -> Floats:
    """Return the probabilities of the coin's sides, out and in, ``[2]``."""
    p = _validate.open_unit(
        "coin_probability", coin_probability, "a canary that is always or never in has no coin"
    )
    return np.array([1.0 - p, p])


class _Past:
    """Centers and scale of residuals, computed from the steps before each.

    The center is the past mean of each canary, shrunk to that of all: an excess is common to them.

    Args:
        shape: Shape of a step's residuals, canaries on the last axis.
        scale: Their claimed standard deviation.
        terms: Number of terms whose difference is a residual, on the first axis of a step; 0 if
            the residuals themselves are given.
    """

    #: Weight of the claimed scale against the observed one, in observations.
    PRIOR = 20.0

    def __init__(self, shape: tuple[int, ...], scale: float, terms: int = 0) -> None:
        self._total = np.zeros((terms, *shape) if terms else shape)
        self._squares = np.full(shape[:-1], self.PRIOR * scale**2)
        self._terms, self._steps = terms, 0

    def update(self, steps: Floats) -> tuple[Floats, Floats]:
        """Update with steps; return them centered, and the scale of the residuals of each.

        Args:
            steps: The residuals, or their terms, ``[n, ..., k]``.

        Returns:
            The same centered; and the scale, ``[n, ..., 1]``, without an axis of terms.
        """
        totals = running(self._total, steps)
        number, prior = self._steps + np.arange(float(len(steps))), PredictableCentre.PRIOR
        before, count = totals[:-1], along(number, steps)
        pooled = np.mean(before, axis=-1, keepdims=True) / np.maximum(count, 1.0)
        centred = steps - (before + prior * pooled) / (count + prior)
        residuals = np.subtract(*np.moveaxis(centred, 1, 0)) if self._terms else centred
        squares = running(self._squares, np.sum(residuals**2, axis=-1))
        counts = along(self.PRIOR + steps.shape[-1] * number, squares)
        self._total, self._squares = totals[-1], squares[-1]
        self._steps += len(steps)
        return centred, np.sqrt(squares[:-1] / counts)[..., None]


class CoinBet:
    r"""E-process for "a canary adds at most its claimed signal", by betting on the coins.

    Subtract the claimed signal, ``r = z - signal * b``. If the canary adds exactly what clipping
    allows, ``r`` is independent of the private coin ``b``: a bet on the coin after seeing ``r``
    gains nothing on average, *for any* data term and noise distribution. If it adds more, a large
    ``r`` makes ``b = 1`` more likely. The bet gives ``b = 1`` the probability

    .. math:: \pi(x) = \frac{p\, e^u}{1 - p + p\, e^u}, \qquad u = a x + (p - \tfrac12)\, a^2

    with ``x`` the centered and scaled residual (center and scale from the past), and multiplies the
    wealth by ``pi / p`` if ``b = 1`` and by ``(1 - pi) / (1 - p)`` if not; for a fair coin that is
    ``2 / (1 + exp(-(2 b - 1) a x))``. Its mean over the coin is ``pi + (1 - pi) = 1`` for every
    ``x``; the coins of a step's canaries are independent, so the mean of their product is one as
    well. If the canary adds less than the signal, ``r`` is smaller only for ``b = 1``, where the
    factor increases with it: the wealth shrinks. The second term of ``u`` is there because the
    center is the mean of both groups, which is nearer to the more frequent one. At small effects
    the growth equals that of the likelihood ratio of two normals with unknown means (``p (1 - p) /
    2`` nats an observation times the square of the effect), so robustness costs nothing.

    If the canaries form several groups, nine tenths of the stake are on all of them together and
    one tenth is on the groups, in equal parts, so that a fault of a few directions is detected.
    Each part is an e-process in the filtration of all coins and readings, and so is their average.
    The division costs a few nats compared with the growth of the best part.

    Args:
        shape: Shape of a step's readings, canaries on the last axis.
        signal: The largest shift of a correct implementation, in units of the clipping norm: 1, or
            a little more if low precision rounds the canary.
        initial_scale: The claimed standard deviation of a reading, used until there is data.
        coin_probability: Known probability p in (0, 1) that a canary is in.
        groups: A name for each canary, equal within a group, ``[k]``; None for one group.

    Raises:
        ValueError: If ``coin_probability`` is not in (0, 1).

    References:
        Own proof, above, that the wealth is an e-process; for such bets see Waudby-Smith and
        Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024,
        arXiv:2010.09686, and for averages of e-processes Vovk and Wang 2021, arXiv:1912.06116.
    """

    #: Fraction of the stake on all canaries together, if there are several groups.
    POOLED = 0.9

    def __init__(
        self,
        shape: tuple[int, ...],
        signal: float = 1.0,
        initial_scale: float = 1.0,
        coin_probability: float = 0.5,
        groups: Sequence[str] | None = None,
    ) -> None:
        chance = chances_of_sides(coin_probability)
        side = np.array([-1.0, 1.0])
        # By coin: minus log of its probability, ``[2]``, and log odds against it, ``[2, slopes]``.
        self._prize = -np.log(chance)
        against = np.log((1.0 - chance) / chance)
        self._odds = against[:, None] - np.outer(side * (chance[1] - 0.5), COIN_SLOPES**2)
        self.signal = signal
        self._shape, self._past = shape, _Past(shape, initial_scale)
        self._log_wealth = np.zeros((*shape[:-1], len(COIN_SLOPES)))
        # Canaries of each group, ``[groups, k]``; no groups if there is only one.
        each = groups or ()
        names = tuple(dict.fromkeys(each)) if len(set(each)) > 1 else ()
        members = [[g == name for g in each] for name in names]
        self._members = np.array(members, dtype=float).reshape(-1, shape[-1])
        self._group_wealth = np.zeros((*shape[:-1], len(names), len(COIN_SLOPES)))

    def update(self, coins: Floats, readings: Floats) -> Floats:
        """Update with one step or several: coins (0 or 1) and readings, ``[..., *shape]``.

        Returns:
            Log e-value after each of these steps, ``[n, *shape[:-1]]``.
        """
        coins, readings = (np.reshape(v, (-1, *self._shape)) for v in (coins, readings))
        centred, scale = self._past.update(readings - self.signal * coins)
        x = (2.0 * coins - 1.0) * centred / scale
        side = coins.astype(np.intp)
        odds = self._odds[side] - x[..., None] * COIN_SLOPES
        gains = self._prize[side][..., None] - np.logaddexp(0.0, odds)
        wealth = running(self._log_wealth, gains.sum(axis=-2))
        of_groups = running(self._group_wealth, self._members @ gains)
        self._log_wealth, self._group_wealth = wealth[-1], of_groups[-1]
        return self._log_e(wealth[1:], of_groups[1:])

    @property
    def log_e(self) -> Floats:
        """Log e-value so far, of the leading shape."""
        return self._log_e(self._log_wealth, self._group_wealth)

    def _log_e(self, log_wealth: Floats, group_wealth: Floats) -> Floats:
        pooled = log_mean_exp(log_wealth)
        if not len(self._members):
            return pooled
        of_groups = log_mean_exp(log_mean_exp(group_wealth))
        together = np.logaddexp(
            pooled + math.log(self.POOLED), of_groups + math.log1p(-self.POOLED)
        )
        return np.asarray(together, dtype=np.float64)


# --- Lower bound on the leakage of the steps: bets on the score of guesses of the canaries' coins.

#: Numbers of steps for which the stakes of the bets on the sign score are optimized.
_ENDS: Floats = np.geomspace(4.0, 1e5, 7)
#: Numbers of steps for which stakes on the sharp score are optimized, if the end is unknown.
_SHARP_ENDS: Floats = np.array([30.0, 300.0, 3000.0, 30_000.0])
#: Fraction of the wealth on the sharp score.
_SHARP = 0.8
#: Log of the target wealth of a bet: that of one in twenty, over its share of the initial wealth.
_AIM = np.log(20.0 / _SHARP)
#: Largest stake, over the one at which a lost bet leaves nothing.
_LARGEST_STAKE = 0.95
#: Noise multipliers within a step of this grid share a score, and stakes are rounded to one.
_SCORE_GRID, _STAKE_GRID = 1.05, 1.1
#: Delta of the epsilon for which the stakes are chosen; what they prove holds for every delta.
_STAKES_DELTA = 1e-5
#: Ratios among which the largest proved one is searched, 1 % apart; linear in between.
_RATIOS: Floats = np.geomspace(1e-3, 1e3, 1389)
#: Signal over noise at which the mean of a score is tabulated; linear in between.
_MU: Floats = np.geomspace(1e-5, 1e5, 5000)
#: Above this mu, scores no longer differ.
_LARGEST_MU = 50.0


#: Noise multiplier, sample rate and number of consecutive steps.
Claim = tuple[float, float, int]


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps with the same score and stakes.

    Args:
        mu: Signal over noise, rounded, for which the score is optimized.
        sample_rate: Sample rate of the steps.
        stakes: Stake of each bet, ``[bets]``.
    """

    mu: float
    sample_rate: float
    stakes: tuple[float, ...]


class StakePlan:
    r"""The stakes of bets that are optimized for given numbers of steps.

    A bet of stake ``kappa`` multiplies the wealth by ``(1 + kappa S) / (1 + kappa G)``. It weighs a
    step's leakage by ``kappa G' / (1 + kappa G)``. What it proves composes to the largest epsilon
    if this weight is proportional to the slope of the step's cost: a step with little noise or a
    large sample rate costs more, and so counts for more. The cost is the Rényi divergence of the
    order at which epsilon is least after the planned steps, if all are like the first one. With
    ``m`` the quotient of the two slopes and ``v`` the variance of a step's score,
    ``kappa / (1 + kappa G) = lambda m``, where

    .. math:: \lambda = \sqrt{2 \log(1/\alpha) / (T m_1^2 v_1)}

    is optimal for T steps like the first one, for which the order does not matter. Lambda does not
    change with the claim: a lambda that falls with the cost of the next steps would give too much
    weight to cheap steps. Stakes depend on the claims alone.

    Args:
        planned_steps: Number of steps with canaries; None if unknown.
        canaries: Number of canaries in a step.
        fair: Twice the smaller probability of the coin's sides.
    """

    def __init__(self, planned_steps: int | None, canaries: int, fair: float = 1.0) -> None:
        sharp = _SHARP_ENDS if planned_steps is None else np.array([max(float(planned_steps), 1.0)])
        self.ends = np.concatenate([sharp, _ENDS])
        self.sharp = np.arange(len(self.ends)) < len(sharp)
        #: Index of the score of each bet.
        self.places = np.where(self.sharp, 0, 1)
        self.shares = np.where(self.sharp, _SHARP / len(sharp), (1.0 - _SHARP) / len(_ENDS))
        self._planned_steps, self._canaries, self._fair = planned_steps, canaries, fair
        self._scale: Floats | None = None
        self._orders: list[int] = []
        self._now: Stretch | None = None

    def next(self, noise_multiplier: float, sample_rate: float) -> Stretch:
        """Return the score and the stakes of the next step."""
        mu = score_mu(noise_multiplier)
        if self._now is None or (self._now.mu, self._now.sample_rate) != (mu, sample_rate):
            self._now = self._planned(mu, sample_rate)
        return self._now

    def _planned(self, mu: float, sample_rate: float) -> Stretch:
        most, slope, variance, largest = _moments(mu, self._fair)[:, self.places]
        if self._scale is None:
            self._orders = self._cheapest_orders(mu, sample_rate)
        costs = {a: float(renyi_slope(mu, sample_rate, a)) for a in set(self._orders)}
        m = np.array([costs[a] for a in self._orders]) / slope
        if self._scale is None:
            self._scale = np.sqrt(2.0 * _AIM * self._canaries / (self.ends * variance)) / m
        part = self._scale * m
        stakes = part / np.maximum(1.0 - part * most, 1e-9)
        rounded = np.array([_rounded(stake, _STAKE_GRID) for stake in stakes.tolist()])
        return Stretch(
            mu, sample_rate, tuple(np.minimum(rounded, _LARGEST_STAKE / largest).tolist())
        )

    def _cheapest_orders(self, mu: float, sample_rate: float) -> list[int]:
        """Return for each bet the Rényi order at which epsilon is least at the end."""
        ends = self.ends if self._planned_steps is None else self._planned_steps + 0.0 * self.ends
        costs = [float(renyi_divergence(mu, sample_rate, order)) for order in RENYI_ORDERS]
        tail = -math.log(_STAKES_DELTA) / (np.array(RENYI_ORDERS) - 1.0)
        return [RENYI_ORDERS[i] for i in np.argmin(np.outer(ends, costs) + tail, axis=1)]


@dataclass(frozen=True)
class LeastLogs:
    """What a bet proves about the steps so far: their logs add up to at least `needed`.

    Args:
        fair: As in `StakePlan`.
        sharp: Whether the bet is on the sharp score.
        mus: Signal over noise for which the score of each group of steps is optimized, ``[g]``.
        sample_rates: Sample rate of each group, ``[g]``.
        stakes: Stake of each group, ``[g]``.
        steps: Number of steps with canaries of each group, ``[g]``.
        needed: Lower bound on the sum of the logs.
    """

    fair: float
    sharp: bool
    mus: Floats
    sample_rates: Floats
    stakes: Floats
    steps: Floats
    needed: float

    def logs(self, mu: Floats) -> Floats:
        """Return ``log(1 + kappa f G(mu))`` of a step of each group, at mu, both ``[g, n]``."""
        most = [score.most(each) for score, each in zip(self._scores, mu, strict=True)]
        return np.log1p(self.stakes[:, None] * self.fair * np.array(most))

    def slopes(self, mu: Floats) -> Floats:
        """Return the derivatives of `logs` with respect to mu, ``[g, n]``."""
        slope = [score.slope(each) for score, each in zip(self._scores, mu, strict=True)]
        stakes = self.stakes[:, None] * self.fair
        return np.asarray(stakes * np.array(slope) / np.exp(self.logs(mu)))

    @property
    def _scores(self) -> list[HockeySticks]:
        return [_scores(mu)[0 if self.sharp else 1] for mu in self.mus.tolist()]


@dataclass(frozen=True)
class ProvedPart:
    """What is proved about the steps up to a look.

    Args:
        ratio: Some step leaked more than this times its claim.
        steps: Number of steps up to the look, including those without canaries.
        logs: Function that returns what each bet proves about them.
    """

    ratio: float
    steps: int
    logs: Callable[[], list[LeastLogs]]


class LeakageBet:
    r"""Bets on the score of a guess of the canaries' coins: a lower bound on the steps' leakage.

    The score consists of hockey sticks (`HockeySticks`), whose mean is at most ``G(mu)`` if a step
    is mu-GDP, for any mechanism. Both worlds have equal weight, ``w(b) = min(p, 1 - p) / P(b)``. If
    the coin is not fair, ``h (mean w - E w)`` is subtracted, whose mean is zero, with h the mean
    score of a Gaussian step: this removes the variance of the coins. With U the mean of the result
    over a step's canaries, a bet's wealth grows by ``1 + kappa_t U_t`` at stakes of `StakePlan`.

    Proved (own proof), with v_t the mean of U_t given the past: for each bet
    ``prod (1 + kappa_t U_t) / (1 + kappa_t v_t)`` is a martingale, and so is their average by the
    shares pi of the bets. If step t was mu_t-GDP, where mu_t may depend on the past, v_t is at most
    ``f G(mu_t)``, ``f = 2 min(p, 1 - p)``. So with probability ``1 - significance``, for all bets
    and at all times together,

    .. math:: \sum_{t \le T} \log(1 + \kappa_t f G(\mu_t))
        \ge \sum_{t \le T} \log(1 + \kappa_t U_t) - \log\frac{1}{\pi\,\alpha}

    (`LeastLogs`). If the steps' ``mu_t = r / sigma_t`` have a smaller sum, some step exceeded the
    ratio r. A bet on a step's mean does not need independent canaries.

    Args:
        shape: Shape of a step's readings, canaries on the last axis.
        coin_probability: Known probability p in (0, 1) that a canary is in.
        planned_steps: Number of steps with canaries, for which most of the wealth is staked; None
            if unknown.

    Raises:
        ValueError: If ``coin_probability`` is not in (0, 1).

    References:
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B
        86, 2024, arXiv:2010.09686 (bets). Dong, Roth and Su, "Gaussian differential privacy", JRSS
        B 84, 2022, arXiv:1905.02383 (mu-GDP).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        coin_probability: float = 0.5,
        planned_steps: int | None = None,
    ) -> None:
        chance = chances_of_sides(coin_probability)
        self._weights = chance.min() / chance
        self._fair = 2.0 * float(chance.min())
        self._planned_steps, self._canaries = planned_steps, shape[-1]
        self._plan = self._new_plan()
        self._centre = RobustCentre(shape)
        #: Log of each bet's wealth, ``[..., bets]``.
        self.growth: Floats = np.zeros((*shape[:-1], len(self._plan.ends)))

    def _new_plan(self) -> StakePlan:
        return StakePlan(self._planned_steps, self._canaries, self._fair)

    def update(
        self, coins: Floats, readings: Floats, noise_multiplier: float, sample_rate: float = 1.0
    ) -> Floats:
        """Update with one step, or several of one claim, ``[..., *shape]``.

        Returns:
            `growth` after each of these steps, ``[n, ..., bets]``.
        """
        shape = (-1, *self.growth.shape[:-1], self._canaries)
        coins, readings = np.reshape(coins, shape), np.reshape(readings, shape)
        now = self._plan.next(noise_multiplier, sample_rate)
        weights = self._weights[coins.astype(np.intp)]
        luck = np.mean(weights, axis=-1) - self._fair
        centres = self._centre.update(readings - coins, noise_multiplier)
        x = (readings - centres - 0.5) / noise_multiplier

        def gain(score: HockeySticks) -> Floats:
            return np.asarray(np.mean(weights * score.score(x, coins), axis=-1) - score.mean * luck)

        gains = np.stack([gain(score) for score in _scores(now.mu)], axis=-1)
        stakes = np.array(now.stakes)
        growth = running(self.growth, np.log1p(stakes * gains[..., self._plan.places]))
        self.growth = growth[-1]
        return growth[1:]

    def needed(self, significance: float, growth: Floats) -> Floats:
        """Return the lower bound on the sum of each bet's logs, ``[..., bets]``."""
        return np.asarray(growth + np.log(significance * self._plan.shares))

    def ratios(
        self, significance: float, looks: Sequence[tuple[int, Floats]], claims: Sequence[Claim]
    ) -> list[Floats]:
        """Return the largest ratio proved at each look; 0 for none.

        A ratio is proved if some step leaked more than this times its claim.

        Args:
            significance: Probability that a bound is wrong, for all looks together.
            looks: Number of steps with canaries so far, increasing, and `growth` at that step.
            claims: Noise multiplier, sample rate and number of steps with canaries, in order.
        """
        logs, plan, seen = np.zeros((len(self._plan.ends), len(_RATIOS))), self._new_plan(), 0
        found, left = [], list(reversed(looks))
        for sigma, rate, steps in claims:
            of_one, end = self._logs(plan.next(sigma, rate), sigma), seen + steps
            while left and left[-1][0] <= end:
                look, growth = left.pop()
                needed, sums = self.needed(significance, growth), logs + (look - seen) * of_one
                each = [
                    np.interp(needed[..., bet], of_bet, _RATIOS, left=0.0)
                    for bet, of_bet in enumerate(sums)
                ]
                found.append(np.asarray(np.max(each, axis=0)))
            logs, seen = logs + steps * of_one, end
        return found

    def _logs(self, stretch: Stretch, noise_multiplier: float) -> Floats:
        """Return the logs of one step by bet and ratio, ``[bets, ratios]``."""
        most = np.stack([_most(score, noise_multiplier) for score in _scores(stretch.mu)])
        stakes = np.array(stretch.stakes)[:, None]
        return np.log1p(stakes * self._fair * most[self._plan.places])

    def proved(
        self, significance: float, growth: Floats, claims: Sequence[Claim]
    ) -> list[LeastLogs]:
        """Return what each bet proves about all these steps; arguments as in `ratios`."""
        plan = self._new_plan()
        steps = np.array([count for *_, count in claims], dtype=np.float64)
        stretches = [plan.next(sigma, rate) for sigma, rate, _ in claims]
        found = []
        for bet, needed in enumerate(self.needed(significance, growth).tolist()):
            groups: dict[tuple[float, float, float], float] = {}
            for stretch, count in zip(stretches, steps.tolist(), strict=True):
                key = (stretch.mu, stretch.sample_rate, stretch.stakes[bet])
                groups[key] = groups.get(key, 0.0) + count
            mus, rates, stakes = np.array([*groups]).T
            inside = np.array([*groups.values()])
            sharp = bool(plan.sharp[bet])
            found.append(LeastLogs(self._fair, sharp, mus, rates, stakes, inside, needed))
        return found


def score_mu(noise_multiplier: float) -> float:
    """Return the signal over noise for which the scores at this noise multiplier are optimized."""
    return _rounded(min(1.0 / noise_multiplier, _LARGEST_MU), _SCORE_GRID)


def _rounded(value: float, ratio: float) -> float:
    """Return the nearest power of a ratio."""
    return float(ratio ** round(np.log(value) / np.log(ratio)))


def _scores(mu: float) -> tuple[HockeySticks, HockeySticks]:
    """Return the sharp score and the sign score."""
    return sharpest_score(mu), sign_score(mu)


# With a noise schedule, each step needs another one.
@lru_cache(maxsize=64)
def _most(score: HockeySticks, noise_multiplier: float) -> Floats:
    """Return the largest mean of a score by ratio, ``[ratios]``."""
    return np.interp(_RATIOS / noise_multiplier, _MU, _most_of(score))


@lru_cache(maxsize=256)
def _most_of(score: HockeySticks) -> Floats:
    return score.most(_MU)


@lru_cache(maxsize=256)
def _moments(mu: float, fair: float) -> Floats:
    """Return the largest mean, its slope, variance and largest loss of both scores, ``[4, 2]``."""
    at, scores = np.asarray(mu), _scores(mu)
    return np.array(
        [
            [fair * float(score.most(at)) for score in scores],
            [max(fair * float(score.slope(at)), 1e-300) for score in scores],
            [score.variance for score in scores],
            [score.largest_loss + score.mean * (1.0 - fair) for score in scores],
        ]
    )


# --- Lower bound on what a canary adds: bets on its coin, for a grid of signals at once.

#: Slopes over which `SignalBet` mixes, per standard deviation of the residual. Each is twice the
#: one before, so that one exponential gives them all.
SIGNAL_SLOPES: Floats = np.array([0.02, 0.04, 0.08, 0.16, 0.32])


class SignalBet:
    r"""E-processes for "a canary adds at most s", for a whole grid of s at once.

    `CoinBet` with a varying signal. After s is subtracted from a reading z, the rest is
    independent of the coin b if the canary adds s, and too small for b = 1 if it adds less, *for
    any* data and noise. The bet of slope a multiplies the wealth by

    .. math:: \frac{1}{P(b) + P(1 - b)\, e^{-(2 b - 1) (a x + (p - 1/2) a^2)}}, \qquad
        x = \frac{(z - \bar z) - s (b - \bar b)}{\hat\sigma}

    with centers and scale from the past; the scale is that of the residuals of the claimed signal,
    the same for every s, capped at `REACH`. Its mean over the coin is one if the canary adds s, for
    every x. As each canary's center of b is between 0 and 1, ``(2 b - 1) x`` decreases in s, and so
    does the e-value: the rejected values form an interval from zero.

    Proved (own proof): if no canary ever adds more than s, the probability that s is ever rejected
    is at most the significance. So at all times together some step exceeded the largest rejected
    signal, for any data and any noise.

    Args:
        shape: Shape of a step's readings, canaries on the last axis.
        signals: The grid of s, increasing, in units of the clipping norm, ``[m]``.
        initial_scale: The claimed standard deviation of a reading, used until there is data.
        coin_probability: Known probability p in (0, 1) that a canary is in.

    Raises:
        ValueError: If ``coin_probability`` is not in (0, 1).

    References:
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B
        86, 2024, arXiv:2010.09686 (confidence sequences by betting).
    """

    #: Residuals are capped at this many standard deviations, and this many factors multiplied, so
    #: that nothing overflows.
    REACH, TOGETHER = 100.0, 16

    def __init__(
        self,
        shape: tuple[int, ...],
        signals: Floats,
        initial_scale: float = 1.0,
        coin_probability: float = 0.5,
    ) -> None:
        chance = chances_of_sides(coin_probability)
        self.signals = np.asarray(signals, dtype=np.float64)
        self._of_side, self._of_other = chance, chance[::-1].copy()
        # By slope and coin: the cost of centering two unequal groups.
        self._drift = np.exp(-np.outer(SIGNAL_SLOPES**2, [0.5 - chance[1], chance[1] - 0.5]))
        self._log_wealth = np.zeros((len(SIGNAL_SLOPES), *shape[:-1], len(self.signals)))
        self._shape, self._past = shape, _Past(shape, initial_scale, terms=2)

    def update(self, coins: Floats, readings: Floats) -> None:
        """Update with one step or several: coins (0 or 1) and readings, ``[..., *shape]``."""
        coins, readings = (np.reshape(v, (-1, *self._shape)) for v in (coins, readings))
        centred, scale = self._past.update(np.stack([readings, coins], axis=1))
        z, b = np.moveaxis(centred, 1, 0)
        side, coin = (2.0 * coins - 1.0) / scale, coins.astype(np.intp)
        of_side, of_other = self._of_side[coin], (self._of_other * self._drift)[:, coin]
        # Canaries on the first axis, signals on the last, in place: half of the time.
        each = np.moveaxis(np.stack([side * z, side * b, of_side, *of_other]), -1, 1)
        x, slope, own, *others = each[..., None]
        power = x - self.signals * slope
        np.clip(power, -self.REACH, self.REACH, out=power)
        power *= -SIGNAL_SLOPES[0]
        np.exp(power, out=power)
        for log_wealth, other in zip(self._log_wealth, others, strict=True):
            factors = power * other
            factors += own
            parts = np.split(factors, range(self.TOGETHER, len(factors), self.TOGETHER))
            for of_step in np.sum([np.log(np.multiply.reduce(part)) for part in parts], axis=0):
                log_wealth -= of_step
            power *= power

    @property
    def log_e(self) -> Floats:
        """Log e-value of each signal so far, ``[..., m]``."""
        return log_mean_exp(self._log_wealth, axis=0)

    def signal_lower(self, significance: float) -> Floats:
        """Return the largest signal that is rejected now; 0 if none is."""
        return largest_rejected(self.signals, self.log_e, significance)
