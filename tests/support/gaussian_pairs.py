"""Divergence and epsilon of two Gaussians of any variances, in both directions."""

import math

import numpy as np

from lightning_audit.stats.divergences import _log_divergence, one_way_epsilon
from lightning_audit.stats.tradeoff import gaussian_delta, gaussian_epsilon


def gaussian_pair_delta(
    epsilon: float, mean_p: float, std_p: float, mean_q: float, std_q: float
) -> float:
    """The hockey-stick divergence of N(mean_p, std_p^2) from N(mean_q, std_q^2)."""
    d, r = abs(mean_p - mean_q) / std_q, std_p / std_q
    if r == 1:
        return float(gaussian_delta(epsilon, d))
    log_delta, _ = _log_divergence(np.array([epsilon]), np.array([d]), np.array([r]))
    return min(math.exp(log_delta.item()), 1.0)


def gaussian_pair_epsilon(
    mean_p: float, std_p: float, mean_q: float, std_q: float, delta: float
) -> float:
    """The least epsilon at which neither diverges from the other by more than delta."""
    d, r = abs(mean_p - mean_q) / std_q, std_p / std_q
    if r == 1:
        return float(gaussian_epsilon(d, delta))
    found = one_way_epsilon(np.array([d, d / r]), np.array([r, 1 / r]), np.array([delta, delta]))
    return float(found.max())
