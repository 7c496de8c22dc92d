"""The posteriors of epsilon and of mu by one name each; a delta of None stands for mu."""

from __future__ import annotations

import numpy as np
from beta_twins import epsilon_outside, mu_outside
from hypothesis import strategies as st

from lightning_audit.stats import posteriors
from lightning_audit.stats.counts import ConfusionCounts

regions = st.sampled_from(["two_sided", "one_sided"])
deltas = st.sampled_from([None, None, 0.0, 1e-9, 1e-5, 0.05])
probabilities = st.sampled_from([1e-6, 0.05, 0.5, 0.975, 1 - 1e-9])


def thresholds(n: int, shift: float) -> ConfusionCounts:
    """Counts at every threshold of two Gaussian samples."""
    rng = np.random.default_rng(int(10 * shift) + 20)
    inside, outside = rng.normal(shift, 1, n), rng.normal(0, 1, n)
    cuts = np.concatenate([[-np.inf], inside, outside])
    return ConfusionCounts.from_scores(inside, outside, cuts)


def cdf(value, counts, delta, **options):
    if delta is None:
        return posteriors.mu_posterior_cdf(value, counts, **options)
    return posteriors.epsilon_posterior_cdf(value, counts, delta, **options)


def pdf(value, counts, delta, **options):
    if delta is None:
        return posteriors.mu_posterior_pdf(value, counts, **options)
    return posteriors.epsilon_posterior_pdf(value, counts, delta, **options)


def quantile(probability, counts, delta, **options):
    if delta is None:
        return posteriors.mu_posterior_quantile(probability, counts, **options)
    return posteriors.epsilon_posterior_quantile(probability, counts, delta, **options)


def maximum(probability, counts, delta, **options):
    if delta is None:
        return posteriors.mu_posterior_maximum(counts, probability, **options)
    return posteriors.epsilon_posterior_maximum(counts, delta, probability, **options)


def outside(value, counts, delta):
    """Exact masses below the claim's region and above it."""
    return mu_outside(value, *counts) if delta is None else epsilon_outside(value, *counts, delta)
