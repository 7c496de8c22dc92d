r"""E-values for independence of noise that assume only its symmetry."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Prior variance of the mixed slope, relative to that of its factor.
_SPREAD = 30.0
#: Prior variances for draws that are weakly or strongly dependent.
_SPREADS = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 6.0, 30.0])


def product_log_e(products: ArrayLike) -> Floats:
    r"""Return the log e-value for "these are products of two independent symmetric numbers".

    Given their sizes, the signs of such products are fair coins, for any sizes: noise may be
    larger than claimed, of any symmetric shape, or on a lattice. A sum of coins of sizes ``a`` is
    sub-Gaussian with variance ``V = sum a^2``, so ``exp(lambda T - lambda^2 V / 2)`` has an
    expectation of at most one; it is mixed over a normal lambda of variance ``g / V``.

    The products of terms of a sequence at one distance are independent coins as well, because they
    form chains.

    Formula:
        ``g T^2 / (2 (1 + g) V) - log(1 + g) / 2``, ``T = sum a``, g = 30

    Args:
        products: Products of one number and the other, finite, ``[..., n]``.

    Returns:
        Log e-value, ``[...]``; 0 if all products are zero.

    Example:
        >>> round(float(product_log_e([])), 12)
        0.0
        >>> bool(product_log_e(np.ones(40)) > 9.2)
        True

    References:
        Hoeffding 1963, doi:10.1080/01621459.1963.10500830 (sums of bounded terms); Robbins 1970,
        doi:10.1214/aoms/1177696786 (mixtures).
    """
    terms = np.asarray(products, dtype=np.float64)
    total, variance = terms.sum(axis=-1), np.square(terms).sum(axis=-1)
    square = np.divide(total**2, variance, out=np.zeros_like(variance), where=variance > 0.0)
    gain = 0.5 * _SPREAD / (1.0 + _SPREAD) * square - 0.5 * np.log1p(_SPREAD)
    return np.asarray(np.where(variance > 0.0, gain, 0.0), dtype=np.float64)


def together_log_e(draws: ArrayLike) -> float:
    r"""Return the log e-value for "these draws and their entries are independent and symmetric".

    If entries depend on each other in a way that is the same in all draws, inner products of draws
    are large, with either sign; the kind of dependence need not be known. Given all sizes and the
    earlier draws, the products S of a draw with those before are sums of fair coins: sub-Gaussian
    with the matrix ``M = sum_j x_j^2 p_j p_j'``, where ``p_j`` holds entry j of the earlier draws.
    They are mixed over normal slopes of covariance ``g M^-1``, and multiplied over draws. With
    ``M`` near the identity, and products ``c`` times as large as those of independent entries, log
    e grows by ``(c - 1 - log c) / 2`` for each pair of draws, as fast as a likelihood ratio.

    Formula:
        ``log mean_g prod_b (1 + g)^(-r_b / 2) exp(g S_b' M_b^+ S_b / (2 (1 + g)))``,
        ``r_b`` the rank of ``M_b``

    Args:
        draws: Finite draws in any unit, ``[n, entries]``.

    Returns:
        Log e-value; 0 if there are fewer than two draws, or all are zero.

    Example:
        >>> together_log_e(np.zeros((3, 5)))
        0.0
        >>> together_log_e(np.outer([1.0, -1.0, 1.0, 1.0, -1.0, 1.0], np.ones(40))) > 9.2
        True

    References:
        Hoeffding 1963, doi:10.1080/01621459.1963.10500830 (sums of bounded terms); de la Peña,
        Klass and Lai 2009, doi:10.1016/j.spa.2009.10.003 (normal mixtures of vectors).
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
