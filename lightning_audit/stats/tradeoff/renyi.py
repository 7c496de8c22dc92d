"""Privacy cost of a step: Rényi divergences of a subsampled Gaussian step."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lightning_audit.stats._arguments import Floats


def order_two_divergence(mu: ArrayLike, sample_rate: ArrayLike) -> Floats:
    r"""Return the Rényi divergence of order two of a Poisson-subsampled Gaussian step.

    .. math:: c(\mu, q) = \log\big(1 + q^2 (e^{\mu^2} - 1)\big)

    It adds up over steps, increases in mu and is convex in ``mu^2``. For full batches (q = 1) it is
    ``mu^2``, which determines epsilon. With many small steps, their privacy loss is normal with a
    variance equal to the sum of c (the central limit theorem of Bu et al.). Between these cases it
    orders histories about as epsilon does (by simulation).

    Args:
        mu: Signal over noise, >= 0, any shape.
        sample_rate: q in (0, 1], of a shape that broadcasts with that of mu.

    Returns:
        The divergence in nats, of the common shape.

    References:
        Mironov, Talwar and Zhang, "Rényi differential privacy of the sampled Gaussian mechanism",
        2019, arXiv:1908.10530, section 3.3 (alpha = 2). Bu, Dong, Long and Su, "Deep learning with
        Gaussian differential privacy", HDSR 2020, arXiv:1911.11607.
    """
    square, q = np.asarray(mu, dtype=np.float64) ** 2, np.asarray(sample_rate, dtype=np.float64)
    # For mu^2 >= 1, q^2 (exp(mu^2) - 1) may overflow; below, the sum of logarithms cancels.
    small = np.log1p(q**2 * np.expm1(np.minimum(square, 1.0)))
    with np.errstate(divide="ignore"):
        large = np.logaddexp(np.log1p(-(q**2)), 2.0 * np.log(q) + square)
    return np.asarray(np.where(square < 1.0, small, large))


def order_two_slope(mu: ArrayLike, sample_rate: ArrayLike) -> Floats:
    """Return the derivative of `order_two_divergence` with respect to mu.

    Args:
        mu: Signal over noise, >= 0, any shape.
        sample_rate: q in (0, 1], of a shape that broadcasts with that of mu.

    Returns:
        The derivative, of the common shape.
    """
    mu, q = np.asarray(mu, dtype=np.float64), np.asarray(sample_rate, dtype=np.float64)
    with np.errstate(divide="ignore"):
        odds = 2.0 * np.log(q) - np.log1p(-(q**2))
    return np.asarray(2.0 * mu * special.expit(mu**2 + odds))


def renyi_divergence(mu: ArrayLike, sample_rate: ArrayLike, order: int) -> Floats:
    r"""Return the Rényi divergence of an integer order of a Poisson-subsampled Gaussian step.

    .. math:: \frac{1}{\alpha - 1} \log \sum_{k=0}^{\alpha} \binom{\alpha}{k}
        (1 - q)^{\alpha - k} q^k e^{k (k - 1) \mu^2 / 2}

    Args:
        mu: Signal over noise, >= 0, any shape.
        sample_rate: q in (0, 1], of a shape that broadcasts with that of mu.
        order: alpha >= 2.

    Returns:
        The divergence in nats, of the common shape.

    References:
        As in `order_two_divergence`.
    """
    k = np.arange(order + 1.0)
    q = np.asarray(sample_rate, dtype=np.float64)[..., None]
    exponent = 0.5 * k * (k - 1.0) * np.asarray(mu, dtype=np.float64)[..., None] ** 2
    ways = -special.betaln(k + 1.0, order - k + 1.0) - np.log(order + 1.0)
    chance = ways + special.xlogy(k, q) + special.xlog1py(order - k, -q)
    return np.asarray(special.logsumexp(chance + exponent, axis=-1) / (order - 1.0))
