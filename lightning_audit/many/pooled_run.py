"""Few trainings of many canaries: all their coins as those of one training, at the planned end.

A coin changes one training only, so the trainings together are as private for it as that training
is, and the tests of one training hold for all coins together. They rank the scores and look at no
coin before they guess.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.many.least_error import Promise
from lightning_audit.results.audit_report import EpsilonBound
from lightning_audit.stats.one_run.one_run_epsilon import epsilon_one_run_from_scores
from lightning_audit.stats.one_run.one_run_fdp import mu_one_run_from_scores
from lightning_audit.stats.tradeoff.gdp import gaussian_epsilon

__all__ = ["PooledRun"]


class PooledRun:
    """All coins of several trainings as those of one training.

    Scores of all trainings and canaries are ranked together, so they must be comparable. The coins
    of a training that failed are not guessed, and count: failing is part of what it shows.

    Args:
        scores: Scores of each canary in each training, ``[n, m]``.
        coins: Whether each canary was in, ``[n, m]``.
        failed: Whether each training failed, ``[n]``.

    References:
        Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
        arXiv:2305.08846. Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one
        run", 2024, arXiv:2410.22235. That trainings pool is our own remark.
    """

    def __init__(self, scores: ArrayLike, coins: ArrayLike, failed: ArrayLike) -> None:
        kept = ~np.asarray(failed, dtype=bool)
        values, inside = np.asarray(scores)[kept], np.asarray(coins)[kept]
        self._groups = values[inside], values[~inside]
        self._unscored = int(np.asarray(coins)[~kept].size)

    def refutes(self, promise: Promise, significance: float) -> bool:
        """Return whether one look at the planned end refutes a claim.

        (epsilon, delta) by Steinke's test. A Gaussian trade-off function, or steps on full batches,
        by that of Mahloujifar. Other claims are not tested.

        Args:
            promise: What is claimed.
            significance: Probability in (0, 1) with which a true claim may be refuted.
        """
        if promise.form == "epsilon" and promise.epsilon is not None:
            return self.epsilon_lower(promise.delta, significance) > promise.epsilon
        return promise.is_gaussian and self.mu_lower(significance) > promise.mu

    def epsilon_lower(self, delta: float, significance: float) -> float:
        """Return a lower bound on epsilon, for any mechanism."""
        found = epsilon_one_run_from_scores(
            *self._groups, delta, significance, unscored=self._unscored
        )
        return found.value

    def mu_lower(self, significance: float) -> float:
        """Return a lower bound on mu of Gaussian DP."""
        return mu_one_run_from_scores(*self._groups, significance, unscored=self._unscored).value

    def bounds(self, promise: Promise, significance: float) -> Sequence[EpsilonBound]:
        """Return the bounds of one look at the planned end.

        Args:
            promise: What is claimed.
            significance: Probability in (0, 1) with which each bound may fail.
        """
        delta = promise.delta
        found = {"coins_one_run": (self.epsilon_lower(delta, significance), "any mechanism")}
        if promise.is_gaussian:
            mu = self.mu_lower(significance)
            epsilon = float(gaussian_epsilon(mu, delta)) if mu > 0 else 0.0
            found["coins_one_run_mu"] = epsilon, "Gaussian outputs"
        return [
            EpsilonBound(
                name=name,
                epsilon_lower=epsilon,
                delta=delta,
                mu_lower=None,
                significance=significance,
                interpretation="confidence",
                threshold="fixed",
                looks="single",
                assumptions=("a fair coin of each canary's own, independent of all else", assumed),
            )
            for name, (epsilon, assumed) in found.items()
        ]
