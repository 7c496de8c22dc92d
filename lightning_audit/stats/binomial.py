"""One-sided limits for binomial rates and for their ratio, at one look and at all times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit._validate import shown
from lightning_audit.stats._arguments import (
    Floats,
    bisection,
    each,
    like_input,
    significance_level,
    whole_counts,
)

# --- One-sided limits for a binomial rate: exact confidence limits and Bayesian limits.


def clopper_pearson_lower(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | Floats:
    r"""Return a one-sided Clopper-Pearson lower limit of a binomial rate.

    With ``successes`` drawn from Bin(n, p), the limit exceeds p with probability at most
    ``significance``, for every n and p. The number of trials must be fixed beforehand: a limit that
    is inspected repeatedly, or whose event was chosen on the same data, does not have this level.

    .. math:: p_- = \sup\{p : \Pr[\mathrm{Bin}(n, p) \ge k] \le \text{significance}\}
        = I^{-1}_{\text{significance}}(k,\, n - k + 1), \qquad p_-(k = 0) = 0

    Args:
        successes: Number k of successes, a whole number in [0, trials]; a number or an array.
        trials: Number n of trials, a whole number >= 0; broadcast against ``successes``.
        significance: Probability in (0, 1) with which the limit may fail.

    Returns:
        The limit in [0, 1]: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If a count is negative, not a whole number, or exceeds ``trials``; if
            ``significance`` is not in (0, 1).

    Example:
        >>> round(clopper_pearson_lower(65, 100, 0.05), 6)
        0.563916
        >>> clopper_pearson_lower(0, 100, 0.05)
        0.0

    References:
        Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of
        the binomial", Biometrika 26, 1934, doi:10.1093/biomet/26.4.404.
    """
    k, n = whole_counts(successes, trials)
    level = significance_level(significance)
    # k = 0 is outside the domain of the Beta quantile; the placeholder 1 is overwritten below.
    quantile = scipy.special.betaincinv(np.maximum(k, 1.0), n - k + 1.0, level)
    return like_input(np.where(k > 0, quantile, 0.0))


def clopper_pearson_upper(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | Floats:
    r"""Return a one-sided Clopper-Pearson upper limit of a binomial rate.

    Like `clopper_pearson_lower`, with the same arguments, result, errors and source. The limit
    falls below p with probability at most ``significance``.

    .. math:: p_+ = \inf\{p : \Pr[\mathrm{Bin}(n, p) \le k] \le \text{significance}\}
        = I^{-1}_{1 - \text{significance}}(k + 1,\, n - k), \qquad p_+(k = n) = 1

    Example:
        No success in 1,000 trials, 95 %:

        >>> round(clopper_pearson_upper(0, 1000, 0.05), 8)
        0.00299125
        >>> clopper_pearson_upper(np.array([0, 500, 1000]), 1000, 0.05).round(4)
        array([0.003 , 0.5265, 1.    ])
    """
    k, n = whole_counts(successes, trials)
    level = significance_level(significance)
    # k = n is outside the domain of the Beta quantile; the placeholder 1 is overwritten below. The
    # complemented inverse keeps the digits of a small significance.
    quantile = scipy.special.betainccinv(k + 1.0, np.maximum(n - k, 1.0), level)
    return like_input(np.where(k < n, quantile, 1.0))


def jeffreys_lower(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | Floats:
    r"""Return a one-sided Jeffreys lower limit of a binomial rate.

    A quantile of the posterior for the prior Beta(1/2, 1/2). It fails with probability close to
    ``significance`` on average over rates, and more often at some rates: it is not a confidence
    limit.

    .. math:: p_- = I^{-1}_{\text{significance}}(k + \tfrac12,\, n - k + \tfrac12),
        \qquad p_-(k = 0) = 0

    Arguments, result and errors are those of `clopper_pearson_lower`.

    Example:
        >>> round(jeffreys_lower(65, 100, 0.05), 6)
        0.56906
        >>> jeffreys_lower(0, 100, 0.05)
        0.0

    References:
        Brown, Cai and DasGupta, "Interval estimation for a binomial proportion", Statistical
        Science 16, 2001, doi:10.1214/ss/1009213286, section 4.1.
    """
    k, n = whole_counts(successes, trials)
    level = significance_level(significance)
    quantile = scipy.special.betaincinv(k + 0.5, n - k + 0.5, level)
    # Without a success, no small rate can be ruled out, regardless of the prior.
    return like_input(np.where(k > 0, quantile, 0.0))


def jeffreys_upper(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | Floats:
    r"""Return a one-sided Jeffreys upper limit of a binomial rate.

    The mirror image of `jeffreys_lower`, with the same arguments and the same caveat: it is not a
    confidence limit.

    .. math:: p_+ = I^{-1}_{1 - \text{significance}}(k + \tfrac12,\, n - k + \tfrac12),
        \qquad p_+(k = n) = 1

    Example:
        >>> round(jeffreys_upper(0, 1000, 0.05), 8)
        0.00191841
        >>> jeffreys_upper(np.array([0, 500, 1000]), 1000, 0.05).round(4)
        array([0.0019, 0.526 , 1.    ])
    """
    k, n = whole_counts(successes, trials)
    level = significance_level(significance)
    quantile = scipy.special.betainccinv(k + 0.5, n - k + 0.5, level)
    return like_input(np.where(k < n, quantile, 1.0))


# --- Confidence limit for the ratio of two binomial rates.


def katz_log_lower(
    k1: int | NDArray[Any],
    n1: int | NDArray[Any],
    k0: int | NDArray[Any],
    n0: int | NDArray[Any],
    significance: float,
) -> float | Floats:
    r"""Return a one-sided lower limit of the log ratio of two rates, from its normal limit.

    Asymptotic: the failure probability tends to ``significance`` as all counts grow; nothing is
    proved at finite counts. With small counts in the denominator it is usually on the safe side.

    .. math:: \ln\frac{k_1 / n_1}{k_0 / n_0} - z_{1 - \text{significance}}
        \sqrt{\frac{1}{k_1} - \frac{1}{n_1} + \frac{1}{k_0} - \frac{1}{n_0}}

    Args:
        k1: Successes of the numerator's rate, a number or an array.
        n1: Trials of the numerator's rate.
        k0: Successes of the denominator's rate.
        n0: Trials of the denominator's rate. All are broadcast against each other.
        significance: Probability in (0, 1) with which the limit may fail, for large counts.

    Returns:
        The limit of ln(p1 / p0): a float for numbers, an array for arrays. It is -inf, which proves
        nothing, if a count k1 or k0 is zero: the normal limit is undefined there.

    Raises:
        ValueError: If a count is negative, not a whole number, or exceeds its number of trials; if
            ``significance`` is not in (0, 1).

    Example:
        >>> round(katz_log_lower(65, 100, 25, 100, 0.05), 4)
        0.6461
        >>> katz_log_lower(65, 100, 0, 100, 0.05)
        -inf

    References:
        Katz, Baptista, Azen and Pike, "Obtaining confidence intervals for the risk ratio in cohort
        studies", Biometrics 34, 1978, doi:10.2307/2530610.
    """
    level = significance_level(significance)
    a, m = whole_counts(k1, n1)
    b, n = whole_counts(k0, n0)
    a, m, b, n = np.broadcast_arrays(a, m, b, n)
    defined = (a > 0) & (b > 0)
    a, m, b, n = (np.where(defined, value, 1.0) for value in (a, m, b, n))
    variance = (m - a) / (a * m) + (n - b) / (b * n)
    limit = np.log(a / m) - np.log(b / n) + scipy.special.ndtri(level) * np.sqrt(variance)
    return like_input(np.where(defined, limit, -np.inf))


# --- Upper limits on an error rate that hold at all times at once.

#: Weights of the null rate in the mixture of `error_rate_log_e`, in observations: a small one is
#: best after few guesses, a large one after many. Averaging costs at most log 3 of the best one.
CONCENTRATIONS = np.array([3.0, 30.0, 300.0])


def error_rate_log_e(
    errors: int | NDArray[Any], trials: int | NDArray[Any], rate: float | NDArray[Any]
) -> Floats:
    r"""Return the log e-value for "the error rate of every guess is at least ``rate``".

    The error rate of a guess is its probability of error given the past. A guess at a fair private
    coin has the error rate (FNR + FPR) / 2, for any values of the two rates; the attack and the
    mechanism may change over time. The e-value is the likelihood of the guesses under lower rates
    over that under ``rate``,

    .. math:: E = \frac13 \sum_{\kappa \in \{3, 30, 300\}} \int_0^{e} \Big(\frac{p}{e}\Big)^{k}
        \Big(\frac{1 - p}{1 - e}\Big)^{n - k} \, \mathrm{d}\pi_{\kappa}(p), \qquad
        \pi_{\kappa} = \mathrm{Beta}(\kappa e,\, \kappa (1 - e)) \text{ truncated at } e .

    Each factor has expectation at most one if the rate is at least e, because it falls with the
    number of errors. So the process is a supermartingale, valid at any stopping time (own proof,
    after Robbins and Ville). The same holds for pairs of one guess in either world, by the
    inequality of arithmetic and geometric means. Several guesses of one step must be independent
    given the past.

    Args:
        errors: Number k of wrong guesses so far, a whole number in [0, trials].
        trials: Number n of guesses so far, >= 0; broadcast against ``errors``.
        rate: Rate e in (0, 1) of the null hypothesis; broadcast against the counts.

    Returns:
        Log e-value, of the broadcast shape; flag at ``>= log(1 / significance)``.

    Raises:
        ValueError: If a count is negative, not a whole number, or exceeds ``trials``; if ``rate``
            is not in (0, 1).

    Example:
        >>> float(error_rate_log_e(0, 0, 0.4))
        0.0
        >>> bool(error_rate_log_e(3600, 10_000, 0.4) > np.log(1e6))
        True

    References:
        Robbins, "Statistical methods related to the law of the iterated logarithm", Annals of
        Mathematical Statistics 41, 1970, doi:10.1214/aoms/1177696786. Ville, "Étude critique de la
        notion de collectif", 1939.
    """
    k, n = _counts(errors, trials)
    e = each(_validate.open_unit, "rate", rate)
    k, n, e = np.broadcast_arrays(k, n, e)
    return _log_e(k, n, e)


def error_rate_confidence_sequence(
    errors: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | Floats:
    r"""Return an upper limit of an error rate that is valid after every guess.

    With probability at least ``1 - significance`` the limits at *all* times are at or above the
    true rate, so their running minimum is a limit as well. It is the rate from which on
    `error_rate_log_e` rejects, with its assumptions: for guesses at a fair private coin the rate is
    (FNR + FPR) / 2. Since mu-GDP implies an error rate of at least Phi(-mu/2), -2 Phi^-1(limit) is
    at all times a lower bound on the mu of the worst step.

    .. math:: e_+ = \inf\{e > k / n : \log E(k, n; e') \ge \ln(1 / \text{significance})\
        \text{ for all } e' \ge e\}

    Args:
        errors: Number k of wrong guesses so far, a whole number in [0, trials].
        trials: Number n of guesses so far, >= 0; broadcast against ``errors``.
        significance: Probability in (0, 1) with which any of the limits may fail.

    Returns:
        The limit in (0, 1]: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: As in `error_rate_log_e`; if ``significance`` is not in (0, 1).

    Example:
        >>> limit = error_rate_confidence_sequence(617, 2000, 0.05)
        >>> round(limit, 4), round(-2 * float(scipy.special.ndtri(limit)), 3)
        (0.3399, 0.825)
        >>> few = error_rate_confidence_sequence(0, np.array([30, 100, 1000]), 0.05)
        >>> np.round(-2 * scipy.special.ndtri(few), 2).tolist()  # 2.62, 3.78, 5.5 for a single look
        [2.13, 3.53, 5.43]
        >>> error_rate_confidence_sequence(0, 0, 0.05)
        1.0

    References:
        Robbins, "Statistical methods related to the law of the iterated logarithm", Annals of
        Mathematical Statistics 41, 1970, doi:10.1214/aoms/1177696786. Howard et al., "Time-uniform,
        nonparametric, nonasymptotic confidence sequences", Annals of Statistics 49, 2021,
        arXiv:1810.08240.
    """
    k, n = _counts(errors, trials)
    level = _validate.open_unit(
        "significance", significance, "it is the probability with which a limit may fail"
    )

    def is_kept(rate: Floats) -> Any:
        # At the ends of the interval the rate itself may round to zero or one.
        inside = (rate > 0) & (rate < 1)
        log_e = _log_e(k, n, np.where(inside, rate, 0.5))
        return ~(inside & (log_e >= -np.log(level)))

    observed = np.where(n > 0, k / np.maximum(n, 1.0), 1.0)
    return like_input(bisection(is_kept, observed, np.ones(k.shape))[1])


def _log_e(k: Floats, n: Floats, e: Floats) -> Floats:
    k, n, e = (values[..., None] for values in (k, n, e))
    a, b = CONCENTRATIONS * e, CONCENTRATIONS * (1.0 - e)
    posterior = scipy.special.betainc(a + k, b + n - k, e)
    with np.errstate(divide="ignore"):
        log_e = (
            scipy.special.betaln(a + k, b + n - k)
            - scipy.special.betaln(a, b)
            + np.log(posterior)
            - np.log(scipy.special.betainc(a, b, e))
            - scipy.special.xlogy(k, e)
            - scipy.special.xlog1py(n - k, -e)
        )
    mixed = scipy.special.logsumexp(log_e, axis=-1) - np.log(CONCENTRATIONS.size)
    return np.asarray(mixed, dtype=np.float64)


def _counts(errors: int | NDArray[Any], trials: int | NDArray[Any]) -> tuple[Floats, Floats]:
    checked = []
    for name, value in (("errors", errors), ("trials", trials)):
        counts = np.asarray(value)
        if counts.dtype.kind not in "iu" or np.any(counts < 0):
            raise ValueError(
                f"{name}={shown(value)} must hold whole numbers >= 0; pass event counts."
            )
        checked.append(counts.astype(np.float64))
    k, n = np.broadcast_arrays(*checked)
    if np.any(k > n):
        raise ValueError(
            f"errors={shown(errors)} must be at most trials={shown(trials)}; pass the wrong "
            "guesses and all guesses."
        )
    return k, n


# --- Beta distributions with densities that stay accurate for shapes from 1/2 to millions.

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)
# 1/3, 1/5, ...: for v^2 < 0.01 the first omitted term is below 1e-17 of the sum.
_ODD = 1.0 / np.arange(3.0, 20.0, 2.0)


@dataclass(frozen=True)
class Beta:
    """Independent Beta variables X, one per row, and an interval that omits a tail on either side.

    Args:
        a: First shapes, ``[n]``.
        b: Second shapes, ``[n]``.
        lower: Quantile of X at the tail probability, ``[n]``.
        lower_rest: The same quantile of 1 - X, so that 1 - lower_rest is the upper end, ``[n]``.
        log_scale: Log of the factor of the density of log(X / (1 - X)), ``[n]``.
    """

    a: Floats
    b: Floats
    lower: Floats
    lower_rest: Floats
    log_scale: Floats

    @classmethod
    def of(cls, a: Floats, b: Floats, tail: float) -> Beta:
        """Return variables with shapes a and b; the interval omits ``tail`` on either side."""
        total = a + b
        correction = stirling_error(total) - stirling_error(a) - stirling_error(b)
        return cls(
            a=a,
            b=b,
            lower=np.asarray(scipy.special.betaincinv(a, b, tail), dtype=np.float64),
            lower_rest=np.asarray(scipy.special.betaincinv(b, a, tail), dtype=np.float64),
            log_scale=correction + 0.5 * np.log(a * b / total) - _HALF_LOG_2PI,
        )

    def take(self, rows: NDArray[np.intp] | slice) -> Beta:
        """Return the variables of some rows."""
        kept = (self.a, self.b, self.lower, self.lower_rest, self.log_scale)
        return Beta(*(values[rows] for values in kept))

    def mirrored_where(self, mask: NDArray[np.bool_] | bool) -> Beta:
        """Return 1 - X in the rows of the mask (True: in all), X in the others."""
        return Beta(
            np.where(mask, self.b, self.a),
            np.where(mask, self.a, self.b),
            np.where(mask, self.lower_rest, self.lower),
            np.where(mask, self.lower, self.lower_rest),
            self.log_scale,
        )

    def density_of_logit(self, x: Floats, rest: Floats) -> Floats:
        r"""Density of log(X / (1 - X)), which is x (1 - x) times the density of X.

        .. math:: \sqrt{\tfrac{ab}{2 \pi N}}\, e^{S(N) - S(a) - S(b)}\,
            e^{-D(a, N x) - D(b, N (1 - x))}, \qquad N = a + b

        with the Stirling errors S and the deviances D. Neither loses digits by cancellation; the
        naive logarithm of the density has an error of N times the rounding error.

        Args:
            x: Points in (0, 1), ``[n, nodes]``.
            rest: 1 - x, given separately because it cannot be computed accurately for x near one.

        Returns:
            The density, ``[n, nodes]``.

        References:
            Loader, "Fast and accurate computation of binomial probabilities", 2000.
        """
        a, b = self.a[:, None], self.b[:, None]
        total = a + b
        exponent = deviance(a, total * x) + deviance(b, total * rest)
        return np.exp(self.log_scale[:, None] - exponent)

    def below(self, x: Floats, rest: Floats) -> Floats:
        """Return Pr[X <= x], accurate relative to its size; ``rest`` is 1 - x."""
        return _cdf(self.a, self.b, x, rest)

    def above(self, x: Floats, rest: Floats) -> Floats:
        """Return Pr[X > x], accurate relative to its size; ``rest`` is 1 - x."""
        return _cdf(self.b, self.a, rest, x)


def _cdf(a: Floats, b: Floats, x: Floats, rest: Floats) -> Floats:
    if x.ndim > a.ndim:
        a, b = a[:, None], b[:, None]
    small = x < 0.5
    if np.all(small):
        return np.asarray(scipy.special.betainc(a, b, x), dtype=np.float64)
    a, b = np.broadcast_to(a, x.shape), np.broadcast_to(b, x.shape)
    result = np.empty(x.shape)
    result[small] = scipy.special.betainc(a[small], b[small], x[small])
    large = ~small
    result[large] = scipy.special.betaincc(b[large], a[large], rest[large])
    return result


def deviance(k: Floats, mean: Floats) -> Floats:
    """Return the deviance k log(k / mean) + mean - k >= 0 for k, mean > 0, also near k = mean."""
    k, mean = np.broadcast_arrays(k, mean)
    difference = k - mean
    v = difference / (k + mean)
    square = v * v
    series = np.full(v.shape, _ODD[-1])
    for coefficient in _ODD[-2::-1]:
        series = series * square + coefficient
    result: Floats = v * (difference + 2.0 * k * square * series)
    far = square > 0.01
    if np.any(far):
        with np.errstate(divide="ignore"):
            result[far] = k[far] * np.log(k[far] / mean[far]) - difference[far]
    return result


def stirling_error(z: Floats) -> Floats:
    """Return log of Gamma(z + 1) over Stirling's formula sqrt(2 pi z) (z / e)^z, for z >= 1/2."""
    z = np.asarray(z, dtype=np.float64)
    s = 1.0 / (z * z)
    series = (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188))))) / z
    direct = scipy.special.gammaln(z + 1.0) - (z + 0.5) * np.log(z) + z - _HALF_LOG_2PI
    return np.where(z > 15.0, series, direct)
