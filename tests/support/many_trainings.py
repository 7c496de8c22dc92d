"""Audits over many simulated trainings: scores of a Gaussian mechanism."""

from functools import lru_cache
from typing import Any

import numpy as np

from lightning_audit.many.training_audit import TrainingAudit, conclude
from lightning_audit.many.verdict import Promise, promise_of
from lightning_audit.stats.tradeoff import GaussianTradeoff

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def trainings(mu: float, n: int, seed: int = 0) -> Arrays:
    """Scores, coins and failures of n trainings that are mu-GDP for their canary."""
    rng = np.random.default_rng(seed)
    coins = rng.random(n) < 0.5
    return rng.standard_normal(n) + mu * coins, coins, np.zeros(n, dtype=bool)


@lru_cache
def promised(mu: float = 1.0) -> Promise:
    return promise_of(GaussianTradeoff(mu))


def audited(
    mu: float = 1.0, n: int = 400, promise: Promise | None = None, seed: int = 0, **settings: Any
) -> TrainingAudit:
    """The audit of n trainings, against 1-GDP if nothing else is promised."""
    given = {"planned": n, **settings}
    return conclude(*trainings(mu, n, seed), promise or promised(), **given)
