"""An anytime-valid test of a claimed trade-off function from a stream of outputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.stats._arguments import Floats, delta_or_zero, significance_level
from lightning_audit.stats.evalues.sequential import log_mean_exp
from lightning_audit.stats.outputs._samples import sample_pair
from lightning_audit.stats.outputs.density import GridRatio
from lightning_audit.stats.outputs.nearest_neighbours import NeighbourRatio, default_neighbours
from lightning_audit.stats.outputs.tradeoff_bet import (
    TradeoffBet,
    claimed_log_slopes,
    privacy_curve,
)
from lightning_audit.stats.tradeoff.tradeoff_functions import TradeoffFunction

__all__ = ["EPSILONS", "SequentialTradeoffTest"]

Ratio = Callable[[Floats], Floats]

#: Epsilons among which `SequentialTradeoffTest` finds its lower bound.
EPSILONS: Floats = np.concatenate([np.arange(0.0, 1.0, 0.02), np.arange(1.0, 16.01, 0.1)])

#: The likelihood ratio is estimated again when the number of samples has grown by this factor.
REFIT = 1.5
#: Number of samples of each world before the first estimate.
FIRST_FIT = 16
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
        >>> from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff
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
