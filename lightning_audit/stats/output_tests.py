"""Tests of a claimed trade-off function from a mechanism's outputs: e-processes by bets."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    Floats,
    bisection,
    delta_or_zero,
    each,
    non_negative,
    significance_level,
)
from lightning_audit.stats.output_estimates import (
    GridRatio,
    NeighbourRatio,
    claim_of_both_orders,
    default_neighbours,
    sample_pair,
)
from lightning_audit.stats.sequential import log_mean_exp
from lightning_audit.stats.tradeoff import ApproxDPTradeoff, TradeoffFunction

# --- An e-process for a claimed trade-off function, by bets on the errors of given tests.

#: Fractions of the largest stake that cannot lose all wealth, over which `TradeoffBet` mixes.
BET_STAKES: Floats = 0.99 * np.array([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 0.95])

# Type I error rates at which the slopes of a claim are evaluated, over its common error rate.
_SLOPES_AT = (1.0, 0.6, 0.3, 0.1, 0.02)
_FINE = 2000


def privacy_curve(claim: TradeoffFunction, epsilon: ArrayLike) -> Floats:
    r"""Return the smallest delta of a claimed trade-off function at each epsilon, rounded up.

    .. math:: \delta(\varepsilon) = \max_\alpha\, 1 - f(\alpha) - e^{\varepsilon} \alpha

    Args:
        claim: The trade-off function; its own ``delta_at`` is used if it has one.
        epsilon: Epsilon >= 0, a number or an array.

    Returns:
        Delta in [0, 1], at least the true one, of the shape of ``epsilon``. Without ``delta_at``
        it is too large by at most 1e-5: it uses the convexity of f around the best of many alphas,
        and that f falls between adjacent ones.

    Raises:
        ValueError: If an epsilon is negative.

    Example:
        >>> from lightning_audit.stats.tradeoff import GaussianTradeoff
        >>> privacy_curve(lambda a: GaussianTradeoff(1.0)(a), [0.0, 1.0, 3.0]).round(4)
        array([0.3829, 0.1269, 0.0015])

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        Proposition 2.12.
    """
    wanted = each(non_negative, "epsilon", np.asarray(epsilon, dtype=np.float64))
    own = getattr(claim, "delta_at", None)
    if own is not None:
        return np.asarray(own(wanted), dtype=np.float64)
    coarse = np.concatenate([[0.0], np.geomspace(1e-14, 1.0, _FINE)])
    values = np.asarray(claim(coarse))
    deltas = [_largest_gap(claim, coarse, values, math.exp(value)) for value in wanted.ravel()]
    return np.asarray(np.clip(np.reshape(deltas, wanted.shape), 0.0, 1.0), dtype=np.float64)


def claimed_log_slopes(claim: TradeoffFunction) -> Floats:
    """Return the logarithms of the slopes at which tests of a claim are made.

    Args:
        claim: The trade-off function.

    Returns:
        For (epsilon, delta)-DP its epsilon; else the log slopes >= 0 at five type I error rates,
        from the rate at which both errors are equal down to a fiftieth of it, ``[m]``.

    Raises:
        ValueError: If the function is not below 1 - alpha and decreasing, as trade-off functions
            are, or states that it covers one order of the worlds only.

    Example:
        >>> from lightning_audit.stats.tradeoff import GaussianTradeoff
        >>> claimed_log_slopes(GaussianTradeoff(1.0)).round(2)
        array([0.  , 0.4 , 0.83, 1.37, 2.  ])
    """
    claim_of_both_orders(claim)
    if isinstance(claim, ApproxDPTradeoff):
        return np.array([claim.epsilon])
    common = common_error_rate(claim)
    at = common * np.array(_SLOPES_AT)
    step = 1e-3 * at
    fall = np.asarray(claim(at - step)) - np.asarray(claim(np.minimum(at + step, 1.0)))
    # Below a slope of one, the other order of the worlds gives the same tests.
    slopes = np.maximum(fall / (2.0 * step), 1.0) if common > 0 else np.ones(1)
    return np.unique(np.log(slopes).round(6))


def common_error_rate(claim: TradeoffFunction) -> float:
    """Return the error rate of the best test that the claim allows with two equal errors.

    Args:
        claim: The trade-off function.

    Returns:
        The rate, in [0, 1/2].

    Raises:
        ValueError: If there is none in [0, 1/2]: the claim is not a trade-off function.

    Example:
        >>> from lightning_audit.stats.tradeoff import ApproxDPTradeoff
        >>> round(common_error_rate(ApproxDPTradeoff(1.0, 0.0)), 4)  # 1 / (1 + e)
        0.2689
    """
    ends = [float(claim(alpha)) for alpha in (0.0, 0.5, 1.0)]
    if not (0.0 <= ends[0] <= 1.0 and ends[0] >= ends[1] >= ends[2] >= 0.0 and ends[1] <= 0.5):
        raise ValueError(
            f"claim={claim!r} is {ends} at alpha 0, 0.5 and 1, must be a trade-off function: "
            "between 0 and 1 - alpha, and not increasing."
        )
    return float(bisection(lambda alpha: float(claim(alpha)) > alpha, 0.0, 0.5)[0])


class TradeoffBet:
    r"""E-process for "no test has ``beta + e^t alpha`` below ``1 - delta(t)``", for several t.

    For pairs of an output x of the first world and y of the second, independent of the past, and a
    score r that the past determines (an estimate of the log likelihood ratio), the test "second if
    r > t" loses

    .. math:: L_t = e^t\, 1\{r(x) > t\} + 1\{r(y) \le t\}, \qquad
        \mathbb E\, L_t = e^t \alpha + \beta \ge 1 - \delta(t) =: c

    if the mechanism is f-DP with privacy curve delta. So ``1 + s (c - L) / (1 + e^t - c)`` has mean
    at most one for every stake 0 <= s <= 1, and its product over pairs is an e-process, for any
    scores (own proof). It is averaged over the stakes, over the t and over both orders of the
    worlds.

    Args:
        log_slopes: The t >= 0, ``[m]``.
        deltas: The claimed delta(t) in [0, 1], ``[m]``.
        shape: Leading shape for independent runs, ``()`` for one.

    Raises:
        ValueError: If a slope or delta is out of range, or their numbers differ.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> bet = TradeoffBet([1.0], [0.0])  # pure epsilon = 1
        >>> x, y = rng.normal(0, 1, 2000), rng.normal(2, 1, 2000)
        >>> bet.update(2 * x - 2, 2 * y - 2)
        >>> bool(bet.log_e > np.log(1000))
        True

    References:
        The inequality: Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022,
        arXiv:1905.02383, Proposition 2.12. Betting: Waudby-Smith and Ramdas, "Estimating means of
        bounded random variables by betting", JRSS B 86, 2024, arXiv:2010.09686. Audits without a
        sample size: Gonzalez et al., "Sequentially auditing differential privacy", NeurIPS 2025,
        arXiv:2509.07055; Dunsche, Kutta, Zikas and Wei, "Sequential auditing for f-differential
        privacy", 2026, arXiv:2602.06518.
    """

    def __init__(
        self, log_slopes: ArrayLike, deltas: ArrayLike, shape: tuple[int, ...] = ()
    ) -> None:
        self.log_slopes = np.asarray(log_slopes, dtype=np.float64)
        claimed = np.asarray(deltas, dtype=np.float64)
        each(_validate.non_negative, "log_slopes", self.log_slopes)
        if self.log_slopes.ndim != 1 or claimed.shape != self.log_slopes.shape:
            raise ValueError(
                f"log_slopes has shape {self.log_slopes.shape} and deltas {claimed.shape}, must be "
                "one [m] for both; give the privacy curve at each slope."
            )
        if not ((claimed >= 0) & (claimed <= 1)).all():
            raise ValueError(f"deltas={_validate.shown(deltas)} must lie in [0, 1].")
        slopes, floor = np.exp(self.log_slopes), 1.0 - claimed
        # Gains by (type I error, type II error), as fractions of the largest loss: [m] each.
        gains = np.array([[floor, floor - 1.0], [floor - slopes, floor - slopes - 1.0]])
        parts = gains / (1.0 + slopes - floor)
        self._log_factors = np.log1p(parts[..., None] * BET_STAKES)
        self._log_wealth = np.zeros((*shape, 2, len(claimed), len(BET_STAKES)))
        #: Number of pairs so far.
        self.pairs = 0

    def update(self, scores_p: Floats, scores_q: Floats) -> None:
        """Update with pairs of outputs.

        Args:
            scores_p: Estimated log likelihood ratios of outputs of the first world, by an estimate
                that the past determines, ``[..., n]``.
            scores_q: Those of equally many outputs of the second world, ``[..., n]``.
        """
        t = self.log_slopes[:, None]
        p, q = scores_p[..., None, :], scores_q[..., None, :]
        for order, (first, second) in enumerate(((p > t, q <= t), (q < -t, p >= -t))):
            both = np.sum(first & second, axis=-1)
            only = np.sum(first, axis=-1) - both, np.sum(second, axis=-1) - both
            neither = scores_p.shape[-1] - both - only[0] - only[1]
            counts = ((neither, only[1]), (only[0], both))
            self._log_wealth[..., order, :, :] += sum(
                counts[i][j][..., None] * self._log_factors[i, j] for i in (0, 1) for j in (0, 1)
            )
        self.pairs += scores_p.shape[-1]

    @property
    def log_e(self) -> Floats:
        """Log e-value against all slopes together, of the leading shape."""
        return log_mean_exp(self.log_e_of_slopes)

    @property
    def log_e_of_slopes(self) -> Floats:
        """Log e-value against the claim at each slope, ``[..., m]``."""
        by_order = log_mean_exp(self._log_wealth)
        return log_mean_exp(by_order, axis=-2)

    def detectable_error_rate(self, significance: float, parts: int = 1) -> float:
        """Return the largest common error rate of a test for which the pairs so far suffice.

        Args:
            significance: Probability in (0, 1) of a false alarm.
            parts: Number of e-processes whose average is the final one.

        Returns:
            The rate at which the mean log wealth reaches its goal; -1 if not even a perfect test
            would reach it.
        """
        goal = math.log(parts * 2 * len(self.log_slopes) * len(BET_STAKES) / significance)
        if self._growth(0.0) * self.pairs < goal:
            return -1.0
        return float(bisection(lambda rate: self._growth(rate) * self.pairs >= goal, 0.0, 0.5)[0])

    def _growth(self, rate: float) -> float:
        """Return the mean growth of the log wealth per pair, at the best slope and stake."""
        chance = np.array([1.0 - rate, rate])
        return float(np.max(np.einsum("i,j,ij...", chance, chance, self._log_factors)))


def _largest_gap(claim: TradeoffFunction, coarse: Floats, values: Floats, slope: float) -> float:
    """Return at least max 1 - f(alpha) - slope alpha, near its largest value on the coarse grid."""
    best = int(np.argmin(values + slope * coarse))
    ends = coarse[max(best - 1, 0)], coarse[min(best + 1, len(coarse) - 1)]
    fine = np.linspace(*ends, _FINE)
    # Between adjacent points f is at least its right value, and alpha at least the left one.
    return float(np.max(1.0 - np.asarray(claim(fine))[1:] - slope * fine[:-1]))


# --- An anytime-valid test of a claimed trade-off function from a stream of outputs.

Ratio = Callable[[Floats], Floats]

#: Epsilons among which `SequentialTradeoffTest` finds its lower bound.
EPSILONS: Floats = np.concatenate([np.arange(0.0, 1.0, 0.02), np.arange(1.0, 16.01, 0.1)])

#: The likelihood ratio is estimated again when the number of samples has grown by this factor.
REFIT = 1.2
#: Number of samples of each world before the first estimate.
FIRST_FIT = 10
# Number of samples of a world from which a tree in several dimensions is built.
_MOST_IN_TREE = 10_000
# Up to this many numbers per output the covariance is estimated; above, only the variances.
_FULL_COVARIANCE = 64
_RATIO_LIMITS = 1e-12, 1e12


class SequentialTradeoffTest:
    """Test of "the mechanism is f-DP" that is valid after any number of outputs.

    Two estimates of the likelihood ratio are fitted to the outputs so far, and used to bet on the
    next outputs (`TradeoffBet`): nearest neighbors, and kernel densities. In more than one
    dimension the densities are those of the projection on which the means differ most. The e-value
    is valid for any estimates; better ones make it grow faster under a violation. The outputs must
    be independent of each other.

    A second set of bets, against (epsilon, delta)-DP on a grid of epsilons, gives a lower bound on
    epsilon that holds at all times together (own proof, in `epsilon_lower`).

    Args:
        claim: The claimed trade-off function, convex and non-increasing; it is tested for both
            orders of the worlds, because f-DP promises both.
        delta: Delta in [0, 1) of the lower bound on epsilon.

    Raises:
        ValueError: If the claim is not a trade-off function, or ``delta`` is not in [0, 1).

    References:
        Dunsche, Kutta, Zikas and Wei, "Sequential auditing for f-differential privacy", 2026,
        arXiv:2602.06518. Gonzalez et al., "Sequentially auditing differential privacy", NeurIPS
        2025, arXiv:2509.07055.

    Example:
        >>> from lightning_audit.stats.tradeoff import GaussianTradeoff
        >>> test = SequentialTradeoffTest(GaussianTradeoff(1.0), delta=1e-5)
        >>> rng = np.random.default_rng(0)
        >>> while test.log_e < np.log(1000):
        ...     test.update(rng.normal(0, 1, 100), rng.normal(1.5, 1, 100))
        >>> test.samples
        500
    """

    def __init__(self, claim: TradeoffFunction, delta: float = 1e-5) -> None:
        slopes = claimed_log_slopes(claim)
        curve = privacy_curve(claim, slopes)
        self.delta = delta_or_zero(delta)
        self._bets = [TradeoffBet(slopes, curve) for _ in range(2)]
        level = np.full(len(EPSILONS), self.delta)
        self._epsilon_bets = [TradeoffBet(EPSILONS, level) for _ in range(2)]
        self._best = np.zeros(len(EPSILONS))
        self._ratios: list[Ratio] = []
        self._samples: list[tuple[Floats, Floats]] = []
        self._fitted = 0
        #: Number of outputs of each world so far, including those used only for fitting.
        self.samples = 0

    def update(self, samples_p: ArrayLike, samples_q: ArrayLike) -> None:
        """Update with equally many outputs of each world.

        Args:
            samples_p: Outputs on the first data set, ``[n]`` or ``[n, ...]``.
            samples_q: Outputs on the second data set, of the same shape.

        Raises:
            ValueError: If outputs are not finite, or shapes differ, also from earlier ones.
        """
        p, q = sample_pair(samples_p, samples_q, least=1)
        if len(p) != len(q):
            raise ValueError(
                f"samples_p holds {len(p)} outputs and samples_q {len(q)}, must be equally many; "
                "each bet is on a pair."
            )
        if self._samples and p.shape[1] != self._samples[0][0].shape[1]:
            raise ValueError(
                f"samples_p has {p.shape[1]} numbers an output, must have "
                f"{self._samples[0][0].shape[1]} as before."
            )
        for ratio, bet, epsilon_bet in zip(
            self._ratios, self._bets, self._epsilon_bets, strict=False
        ):
            scores = [np.log(np.clip(ratio(rows), *_RATIO_LIMITS)) for rows in (p, q)]
            bet.update(*scores)
            epsilon_bet.update(*scores)
        of_epsilons = [bet.log_e_of_slopes for bet in self._epsilon_bets]
        self._best = np.maximum(self._best, log_mean_exp(of_epsilons, axis=0))
        self._samples.append((p, q))
        self.samples += len(p)
        if self.samples >= max(FIRST_FIT, REFIT * self._fitted):
            self._learn()

    @property
    def log_e(self) -> float:
        """Log e-value against the claim; refute it at ``>= log(1 / significance)``."""
        return float(log_mean_exp([bet.log_e for bet in self._bets]))

    def epsilon_lower(self, significance: float) -> float:
        """Return a lower bound on epsilon at ``delta`` that holds at all times together.

        It is the largest epsilon of `EPSILONS` up to which all were refuted at some time. The bound
        is too large only if one given epsilon was refuted, the first that is true.

        Args:
            significance: Probability in (0, 1) with which any of the bounds may fail.

        Returns:
            The bound; 0 if nothing is proved.
        """
        goal = -math.log(significance_level(significance))
        kept = np.flatnonzero(self._best < goal)
        refuted = int(kept[0]) if len(kept) else len(EPSILONS)
        return float(EPSILONS[refuted - 1]) if refuted else 0.0

    def detectable_error_rate(self, significance: float) -> float:
        """Return the largest common error rate of a test that would have been detected, or -1."""
        return self._bets[0].detectable_error_rate(significance, parts=len(self._bets))

    def outputs(self) -> tuple[Floats, Floats]:
        """Return all outputs so far, ``[n, d]`` for each world."""
        p, q = (np.concatenate(rows) for rows in zip(*self._samples, strict=True))
        self._samples = [(p, q)]
        return p, q

    def _learn(self) -> None:
        p, q = self.outputs()
        self._fitted = len(p)
        if p.shape[1] == 1:
            neighbours = min(10 * default_neighbours(2 * len(p)), max(1, len(p) // 3))
            self._ratios = [GridRatio(p, q), NeighbourRatio(p, q, neighbours)]
            return
        recent = slice(-_MOST_IN_TREE, None)
        self._ratios = [_projected(p, q), NeighbourRatio(p[recent], q[recent])]


def _projected(p: Floats, q: Floats) -> Ratio:
    """Return a kernel ratio along the direction of the largest difference of means over spread."""
    # Half of the samples for the direction, the other half for the densities along it.
    difference = q[::2].mean(axis=0) - p[::2].mean(axis=0)
    within = np.concatenate([p[::2] - p[::2].mean(axis=0), q[::2] - q[::2].mean(axis=0)])
    variances = within.var(axis=0)
    floor = max(1e-9 * float(variances.max()), np.finfo(float).tiny)
    if p.shape[1] <= _FULL_COVARIANCE:
        covariance = within.T @ within / len(within) + np.diag(0.01 * variances + floor)
        direction = np.linalg.solve(covariance, difference)
    else:
        direction = difference / (variances + floor)
    norm = float(np.linalg.norm(direction))
    direction = direction / norm if norm > 0 else direction
    ratio = GridRatio(p[1::2] @ direction, q[1::2] @ direction)
    return lambda rows: ratio(rows @ direction)
