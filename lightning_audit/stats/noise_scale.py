"""Is the noise as large as claimed, or larger: e-values of a sum of squares."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit.stats.sequential import log_mean_exp

FloatArray = NDArray[np.float64]

#: Precision ratios over which `noise_log_e` mixes: true noise x .97 down to x .15 of the claim.
NOISE_PRECISIONS: FloatArray = 1.0 / np.array([0.97, 0.93, 0.88, 0.8, 0.7, 0.55, 0.35, 0.15]) ** 2

#: Precision ratios over which `excess_log_e` mixes.
EXCESS_PRECISIONS: FloatArray = 1.0 / np.array([1.05, 1.2, 1.5, 2.0, 4.0, 16.0, 64.0, 256.0]) ** 2


def noise_log_e(count: ArrayLike, sum_squares: ArrayLike) -> FloatArray:
    r"""Log e-value for "the noise is at least as large as claimed".

    With ``x = (r - c) / sigma_t``, ``c`` any centre that the past determines, the process
    ``prod tau^(1/2) exp(-(tau - 1) x^2 / 2)`` has expectation at most one for *any* data term
    and any true noise of at least ``sigma_t``: a Gaussian puts the least mass on intervals
    around zero when it is widest and off centre (Anderson). It depends on the past through the
    number of terms and the sum of ``x^2`` only, so no state is needed but those two.

    Formula:
        ``log mean_tau exp(count / 2 * log tau - (tau - 1) / 2 * sum_squares)``

    Args:
        count: number of coordinates observed so far, any shape.
        sum_squares: sum of the squared standardised residuals, same shape.

    Returns:
        Log e-value, the broadcast shape of the arguments; flag at ``>= log(1 / significance)``.

    Example:
        >>> round(float(noise_log_e(0, 0.0)), 12)
        0.0
        >>> bool(noise_log_e(400, 400 * 0.64) > 9.2)
        True

    References:
        Anderson 1955; Ville 1939; Robbins 1970 (mixtures).
    """
    return _scale_log_e(count, sum_squares, NOISE_PRECISIONS)


def excess_log_e(count: ArrayLike, sum_squares: ArrayLike) -> FloatArray:
    """Log e-value for "the noise is at most as large as claimed", where nothing but noise is read.

    The same mixture as `noise_log_e`, over `EXCESS_PRECISIONS`: true noise x 1.05 up to x 256.

    Args:
        count: number of coordinates observed so far, any shape.
        sum_squares: sum of the squared noise, in units of the claimed variance, same shape.

    Returns:
        Log e-value, the broadcast shape of the arguments.

    Example:
        >>> bool(excess_log_e(400, 400 * 1.5) > 9.2)
        True
    """
    return _scale_log_e(count, sum_squares, EXCESS_PRECISIONS)


def _scale_log_e(count: ArrayLike, sum_squares: ArrayLike, tau: FloatArray) -> FloatArray:
    n = np.asarray(count, dtype=np.float64)[..., None]
    s = np.asarray(sum_squares, dtype=np.float64)[..., None]
    return log_mean_exp(0.5 * n * np.log(tau) - 0.5 * (tau - 1.0) * s)
