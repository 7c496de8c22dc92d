r"""Is noise independent of other noise: an e-value that supposes symmetry and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Variance of the mixed slope, over that of what it multiplies.
_SPREAD = 30.0
#: The same for draws that go together a little or much.
_SPREADS = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 6.0, 30.0])


def product_log_e(products: ArrayLike) -> Floats:
    r"""Log e-value for "these are products of two independent numbers, symmetric about zero".

    Given their sizes, the signs of such products are fair coins, whatever the sizes are: noise may
    be larger than claimed, of any symmetric shape, or lie on a lattice. A sum of coins of sizes
    ``a`` is sub-Gaussian of variance ``V = sum a^2``, so that the expectation of
    ``exp(lambda T - lambda^2 V / 2)`` is at most one; it is mixed over a normal lambda of variance
    ``g / V``.

    The products of the terms of a sequence at one distance are independent coins, too, for they
    form chains.

    Formula:
        ``g T^2 / (2 (1 + g) V) - log(1 + g) / 2``, ``T = sum a``, g = 30

    Args:
        products: of one number and the other, finite, ``[..., n]``.

    Returns:
        Log e-value, ``[...]``; 0 where all products are zero.

    Example:
        >>> round(float(product_log_e([])), 12)
        0.0
        >>> bool(product_log_e(np.ones(40)) > 9.2)
        True

    References:
        Hoeffding 1963 (sums of bounded terms); Robbins 1970 (mixtures).
    """
    terms = np.asarray(products, dtype=np.float64)
    total, variance = terms.sum(axis=-1), np.square(terms).sum(axis=-1)
    square = np.divide(total**2, variance, out=np.zeros_like(variance), where=variance > 0.0)
    gain = 0.5 * _SPREAD / (1.0 + _SPREAD) * square - 0.5 * np.log1p(_SPREAD)
    return np.asarray(np.where(variance > 0.0, gain, 0.0), dtype=np.float64)


def together_log_e(draws: ArrayLike) -> float:
    r"""Log e-value for "these draws are independent, and so are their entries, about zero".

    Entries that go together, in a way that is the same in all draws and that nobody needs to know,
    make inner products of draws large, of either sign. Given all sizes and the draws before it, the
    products S of a draw with those before are sums of fair coins: sub-Gaussian with the matrix
    ``M = sum_j x_j^2 p_j p_j'``, where ``p_j`` holds what the draws before have at entry j. They
    are mixed over normal slopes of covariance ``g M^-1``, and multiplied over draws. With ``M``
    near the identity, and ``c`` times as large products as independent entries have, log e grows
    by ``(c - 1 - log c) / 2`` for each pair of draws, which is what a likelihood ratio could do.

    Formula:
        ``log mean_g prod_b (1 + g)^(-r_b / 2) exp(g S_b' M_b^+ S_b / (2 (1 + g)))``,
        ``r_b`` the rank of ``M_b``

    Args:
        draws: finite, ``[n, entries]``.

    Returns:
        Log e-value; 0 where there are fewer than two draws, or all are zero.

    Example:
        >>> together_log_e(np.zeros((3, 5)))
        0.0
        >>> together_log_e(np.outer([1.0, -1.0, 1.0, 1.0, -1.0, 1.0], np.ones(40))) > 9.2
        True

    References:
        Hoeffding 1963 (sums of bounded terms); de la Peña, Klass, Lai 2009 (normal mixtures of
        vectors).
    """
    rows = np.asarray(draws, dtype=np.float64)
    log_e = np.zeros(len(_SPREADS))
    for number in range(1, len(rows)):
        coins = rows[:number] * rows[number]
        eigenvalues, directions = np.linalg.eigh(coins @ coins.T)
        whole = eigenvalues > 1e-9 * max(float(eigenvalues[-1]), 1e-300)
        along = directions[:, whole].T @ coins.sum(axis=1)
        square = float((along**2 / eigenvalues[whole]).sum())
        log_e += 0.5 * _SPREADS / (1.0 + _SPREADS) * square
        log_e -= 0.5 * int(whole.sum()) * np.log1p(_SPREADS)
    return float(log_mean_exp(log_e))
