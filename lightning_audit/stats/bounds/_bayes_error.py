"""Bayes error of distinguishing two unit normals, and its inverse (arXiv:1905.02383)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._roots import least_nonnegative


def log_bayes_error(mu: Floats, weight: Floats) -> tuple[Floats, Floats]:
    r"""Return the log Bayes error between N(0, 1) and N(mu, 1), and its derivative in mu.

    .. math:: B(\mu) = \min_t\, w \Phi(t - \mu) + (1 - w) \Phi(-t), \qquad
        t^* = \tfrac{\mu}{2} + \tfrac{1}{\mu} \ln \tfrac{1 - w}{w}, \quad
        B'(\mu) = -w \varphi(t^* - \mu)

    Args:
        mu: Distance >= 0, any shape.
        weight: Prior weight w of N(mu, 1), in (0, 1), broadcast against ``mu``.

    Returns:
        (log error, its derivative in mu), of the broadcast shape.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = (np.log1p(-weight) - np.log(weight)) / mu
    # At a distance of zero the best guess is the likelier world; either one if they are equal.
    shift = np.where(np.isnan(shift), 0.0, shift)
    of_in = np.log(weight) + special.log_ndtr(shift - 0.5 * mu)
    of_out = np.log1p(-weight) + special.log_ndtr(-shift - 0.5 * mu)
    log_error = np.logaddexp(of_in, of_out)
    log_density = -0.5 * (shift - 0.5 * mu) ** 2 - 0.5 * np.log(2.0 * np.pi)
    slope = -np.exp(np.log(weight) + log_density - log_error)
    return log_error, slope


def distance_of_bayes_error(error: Floats, weight: Floats) -> Floats:
    """Return the mu >= 0 whose Bayes error is ``error``; 0 if mu = 0 already has a smaller one.

    Args:
        error: Mean error rate in (0, 1], ``[n]``.
        weight: Prior weight of N(mu, 1) in (0, 1), ``[n]``.

    Returns:
        The distances, ``[n]``.
    """
    mu = np.zeros(error.shape)
    rows = np.flatnonzero(error < np.minimum(weight, 1.0 - weight))
    target, w = np.log(error[rows]), weight[rows]

    def residual(value: Floats, live: NDArray[np.intp]) -> tuple[Floats, Floats]:
        log_error, slope = log_bayes_error(value, w[live])
        return target[live] - log_error, -slope

    # The root for equal weights, and an upper bound for all others.
    mu[rows] = least_nonnegative(residual, -2.0 * special.ndtri(error[rows]))
    return mu
