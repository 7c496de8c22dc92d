r"""Is noise independent of other noise: an e-value that supposes symmetry and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.stats._arguments import Floats

#: Variance of the mixed slope, over that of what it multiplies.
_SPREAD = 30.0


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
