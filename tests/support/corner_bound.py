"""A bound on mu from counts, quick at many thresholds, for the tests of threshold choices."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import special

from lightning_audit.stats.binomial import clopper_pearson_upper
from lightning_audit.stats.counts import ConfusionCounts
from lightning_audit.stats.thresholds import (
    Fixed,
    Grid,
    Maximum,
    MultiSplit,
    Simultaneous,
    Split,
    ThresholdBound,
    ThresholdChoice,
    threshold_bound,
)

CHOICES = [
    Fixed(0.5),
    Grid([0.0, 0.5, 1.0]),
    Split(),
    MultiSplit(splits=5),
    Simultaneous(),
    Simultaneous("dkw"),
    Maximum(),
]


@lru_cache(maxsize=64)
def probits(n: int, significance: float) -> np.ndarray:
    """Probit of the Clopper-Pearson upper limit of every count."""
    return special.ndtri(clopper_pearson_upper(np.arange(n + 1), n, significance))


def mu_of_counts(counts: ConfusionCounts, significance: float) -> np.ndarray:
    """The corner bound on mu: both error rates at their upper limits."""
    n_in, n_out = int(counts.n_in.flat[0]), int(counts.n_out.flat[0])
    fnr = probits(n_in, significance / 2)[counts.fn]
    fpr = probits(n_out, significance / 2)[counts.fp]
    return np.maximum(-fnr - fpr, 0.0)


def mu_of_rates(fnr_upper: np.ndarray, fpr_upper: np.ndarray) -> np.ndarray:
    return np.maximum(-special.ndtri(fnr_upper) - special.ndtri(fpr_upper), 0.0)


def bound(
    inside, outside, choice: ThresholdChoice, significance: float = 0.05, **options: bool
) -> ThresholdBound:
    return threshold_bound(
        inside, outside, choice, mu_of_counts, significance, from_rates=mu_of_rates, **options
    )
