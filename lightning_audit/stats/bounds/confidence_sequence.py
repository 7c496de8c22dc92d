"""Upper limits on an error rate that hold at all times at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit._validate import shown
from lightning_audit.stats._arguments import Floats, each, like_input

__all__ = ["error_rate_confidence_sequence", "error_rate_log_e"]

#: Weights of the null rate in the mixture of `error_rate_log_e`, in observations: a small one is
#: best after few guesses, a large one after many. Averaging costs at most log 3 of the best one.
CONCENTRATIONS = np.array([3.0, 30.0, 300.0])

# Halvings of an interval of at most one: to double precision near one.
_HALVINGS = 60


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
        >>> round(limit, 4), round(-2 * float(special.ndtri(limit)), 3)
        (0.3399, 0.825)
        >>> few = error_rate_confidence_sequence(0, np.array([30, 100, 1000]), 0.05)
        >>> np.round(-2 * special.ndtri(few), 2).tolist()  # 2.62, 3.78, 5.5 for a single look
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
    low, high = np.where(n > 0, k / np.maximum(n, 1.0), 1.0), np.ones(k.shape)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        # At the ends of the interval the rate itself may round to zero or one.
        inside = (middle > 0) & (middle < 1)
        log_e = _log_e(k, n, np.where(inside, middle, 0.5))
        rejected = inside & (log_e >= -np.log(level))
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)
    return like_input(high)


def _log_e(k: Floats, n: Floats, e: Floats) -> Floats:
    k, n, e = (values[..., None] for values in (k, n, e))
    a, b = CONCENTRATIONS * e, CONCENTRATIONS * (1.0 - e)
    posterior = special.betainc(a + k, b + n - k, e)
    with np.errstate(divide="ignore"):
        log_e = (
            special.betaln(a + k, b + n - k)
            - special.betaln(a, b)
            + np.log(posterior)
            - np.log(special.betainc(a, b, e))
            - special.xlogy(k, e)
            - special.xlog1py(n - k, -e)
        )
    mixed = special.logsumexp(log_e, axis=-1) - np.log(CONCENTRATIONS.size)
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
