"""Is the noise as large as claimed, or larger: e-values of a sum of squares."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Precision ratios over which `noise_log_e` mixes: true noise x .997 down to x .15 of the claim.
NOISE_PRECISIONS: Floats = (
    1.0 / np.array([0.997, 0.99, 0.97, 0.93, 0.88, 0.8, 0.7, 0.55, 0.35, 0.15]) ** 2
)
#: Their weights in `noise_log_e`. The first two are for limits: at a hundredth each they cost the
#: tests of short runs nothing that shows.
NOISE_WEIGHTS: Floats = np.array([0.01, 0.01, *np.full(8, 0.98 / 8)])

#: Scales between which `noise_upper` looks for its limit.
_SMALLEST, _LARGEST = 1e-9, 1e9

#: Precision ratios over which `excess_log_e` mixes.
EXCESS_PRECISIONS: Floats = 1.0 / np.array([1.05, 1.2, 1.5, 2.0, 4.0, 16.0, 64.0, 256.0]) ** 2


def noise_log_e(count: ArrayLike, sum_squares: ArrayLike) -> Floats:
    r"""Log e-value for "the noise is at least as large as claimed".

    With ``x = (r - c) / sigma_t``, ``c`` any centre that the past determines, the process
    ``prod tau^(1/2) exp(-(tau - 1) x^2 / 2)`` has expectation at most one for *any* data term
    and any true noise of at least ``sigma_t``: a Gaussian puts the least mass on intervals
    around zero when it is widest and off centre (Anderson). It depends on the past through the
    number of terms and the sum of ``x^2`` only, so no state is needed but those two.

    Formula:
        ``log mean_tau exp(count / 2 * log tau - (tau - 1) / 2 * sum_squares)``, weighted by
        `NOISE_WEIGHTS`

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
    of_mean = len(NOISE_WEIGHTS) * NOISE_WEIGHTS
    return _scale_log_e(count, sum_squares, NOISE_PRECISIONS, of_mean)


def noise_upper(
    count: ArrayLike, sum_squares: ArrayLike, weights: ArrayLike, significance: float
) -> float:
    r"""Upper limit of the noise over its claim, for one look at a time of one's choice.

    The noise is tested against c times the claim with squares over c^2. The e-value increases in
    c, so what is rejected is an interval up to infinity, and its lower end is the limit. Several
    sums enter as the weighted mean of their e-values, so none has to be chosen.

    Proved, for any data: if the noise is at least c times the claim in every step and coordinate,
    the probability that the limit is below c at any look is at most ``significance``. The rest of a
    residual's variance, the data, makes the limit larger.

    Formula:
        ``inf {c : sum_i weights_i e(count_i, sum_squares_i / c^2) >= 1 / significance}``, e as in
        `noise_log_e` with equal weights of all precisions

    Args:
        count: number of coordinates observed, of each sum, ``[n]``.
        sum_squares: sums of the squared residuals over the claimed variance, ``[n]``.
        weights: of the sums, adding up to 1, ``[n]``.
        significance: probability that the limit is too small.

    Returns:
        The limit; infinity where no scale is rejected, 0 where all are.

    Example:
        >>> round(noise_upper([40_000], [40_000.0], [1.0], 0.025), 3)
        1.013
        >>> noise_upper([0], [0.0], [1.0], 0.025)
        inf

    References:
        As `noise_log_e`; Darling and Robbins 1967 (confidence sequences by inversion).
    """
    n, s, w = np.asarray(count), np.asarray(sum_squares), np.asarray(weights)

    def excess(log_scale: float) -> float:
        values = _scale_log_e(n, s * np.exp(-2.0 * log_scale), NOISE_PRECISIONS)
        return float(special.logsumexp(values, b=w) + np.log(significance))

    low, high = np.log(_SMALLEST), np.log(_LARGEST)
    if excess(high) < 0.0:
        return float(np.inf)
    if excess(low) >= 0.0:
        return 0.0
    return float(np.exp(optimize.brentq(excess, low, high, xtol=1e-9)))


def excess_log_e(count: ArrayLike, sum_squares: ArrayLike) -> Floats:
    """Log e-value for "the noise is at most as large as claimed", where nothing but noise is read.

    The same mixture as `noise_log_e`, over `EXCESS_PRECISIONS`: true noise x 1.05 up to x 256.

    The squares are of noise alone; arguments and result are those of `noise_log_e`.

    Example:
        >>> bool(excess_log_e(400, 400 * 1.5) > 9.2)
        True
    """
    return _scale_log_e(count, sum_squares, EXCESS_PRECISIONS)


def _scale_log_e(
    count: ArrayLike, sum_squares: ArrayLike, tau: Floats, weights: ArrayLike = 1.0
) -> Floats:
    """Log of the weighted mean over the precisions ``tau``; weights of mean one."""
    n = np.asarray(count, dtype=np.float64)[..., None]
    s = np.asarray(sum_squares, dtype=np.float64)[..., None]
    return log_mean_exp(0.5 * n * np.log(tau) - 0.5 * (tau - 1.0) * s + np.log(weights))
