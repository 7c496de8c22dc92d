"""Exact one-sided confidence limits for a binomial rate."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit import _validate

__all__ = ["clopper_pearson_lower", "clopper_pearson_upper"]


@overload
def clopper_pearson_lower(successes: int, trials: int, significance: float) -> float: ...
@overload
def clopper_pearson_lower(
    successes: NDArray[Any], trials: int | NDArray[Any], significance: float
) -> NDArray[np.float64]: ...
@overload
def clopper_pearson_lower(
    successes: int, trials: NDArray[Any], significance: float
) -> NDArray[np.float64]: ...
def clopper_pearson_lower(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | NDArray[np.float64]:
    r"""One-sided Clopper-Pearson lower limit of a binomial rate.

    With ``successes`` drawn from Bin(n, p), the limit exceeds p with probability at most
    ``significance``, for every n and p. The number of trials must be fixed beforehand: a limit that
    is looked at repeatedly, or whose event was chosen on the same data, does not have this level.

    .. math:: p_- = \sup\{p : \Pr[\mathrm{Bin}(n, p) \ge k] \le \text{significance}\}
        = I^{-1}_{\text{significance}}(k,\, n - k + 1), \qquad p_-(k = 0) = 0

    Args:
        successes: Number k of successes, a whole number in [0, trials]; a number or an array.
        trials: Number n of trials, a whole number >= 0; broadcast against ``successes``.
        significance: Probability in (0, 1) with which the limit may fail.

    Returns:
        The limit in [0, 1]: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If a count is no whole number, is negative, or exceeds ``trials``; if
            ``significance`` is not in (0, 1).

    Example:
        >>> round(clopper_pearson_lower(65, 100, 0.05), 6)
        0.563916
        >>> clopper_pearson_lower(0, 100, 0.05)
        0.0

    References:
        Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of
        the binomial", Biometrika 26, 1934.
    """
    k, n = _counts(successes, trials)
    level = _validate.open_unit("significance", significance, _SIGNIFICANCE_ADVICE)
    # k = 0 is outside the domain of the Beta quantile; the stand-in 1 is overwritten below.
    quantile = special.betaincinv(np.maximum(k, 1.0), n - k + 1.0, level)
    return _like_input(np.where(k > 0, quantile, 0.0))


@overload
def clopper_pearson_upper(successes: int, trials: int, significance: float) -> float: ...
@overload
def clopper_pearson_upper(
    successes: NDArray[Any], trials: int | NDArray[Any], significance: float
) -> NDArray[np.float64]: ...
@overload
def clopper_pearson_upper(
    successes: int, trials: NDArray[Any], significance: float
) -> NDArray[np.float64]: ...
def clopper_pearson_upper(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | NDArray[np.float64]:
    r"""One-sided Clopper-Pearson upper limit of a binomial rate.

    With ``successes`` drawn from Bin(n, p), the limit falls below p with probability at most
    ``significance``, for every n and p. The number of trials must be fixed beforehand: a limit that
    is looked at repeatedly, or whose event was chosen on the same data, does not have this level.

    .. math:: p_+ = \inf\{p : \Pr[\mathrm{Bin}(n, p) \le k] \le \text{significance}\}
        = I^{-1}_{1 - \text{significance}}(k + 1,\, n - k), \qquad p_+(k = n) = 1

    Args:
        successes: Number k of successes, a whole number in [0, trials]; a number or an array.
        trials: Number n of trials, a whole number >= 0; broadcast against ``successes``.
        significance: Probability in (0, 1) with which the limit may fail.

    Returns:
        The limit in [0, 1]: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If a count is no whole number, is negative, or exceeds ``trials``; if
            ``significance`` is not in (0, 1).

    Example:
        No success in 1,000 trials, 95 %:

        >>> round(clopper_pearson_upper(0, 1000, 0.05), 8)
        0.00299125
        >>> clopper_pearson_upper(np.array([0, 500, 1000]), 1000, 0.05).round(4)
        array([0.003 , 0.5265, 1.    ])

    References:
        Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of
        the binomial", Biometrika 26, 1934.
    """
    k, n = _counts(successes, trials)
    level = _validate.open_unit("significance", significance, _SIGNIFICANCE_ADVICE)
    # k = n is outside the domain of the Beta quantile; the stand-in 1 is overwritten below. The
    # complemented inverse keeps the digits of a small significance.
    quantile = special.betainccinv(k + 1.0, np.maximum(n - k, 1.0), level)
    return _like_input(np.where(k < n, quantile, 1.0))


_SIGNIFICANCE_ADVICE = "it is the probability with which the limit may fail, such as 0.05"


def _counts(
    successes: int | NDArray[Any], trials: int | NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    k = _whole("successes", successes)
    n = _whole("trials", trials)
    k, n = np.broadcast_arrays(k, n)
    excess = k > n
    if np.any(excess):
        raise ValueError(
            f"successes={int(k[excess][0])} must be at most trials={int(n[excess][0])}; "
            "pass the number of events and the number of all observations."
        )
    return k, n


def _whole(name: str, value: int | NDArray[Any]) -> NDArray[np.float64]:
    counts = np.asarray(value)
    advice = "pass event counts, not rates or scores"
    # A boolean array is usually the outcomes themselves, passed where their sum is meant.
    if counts.dtype.kind not in "iuf":
        raise ValueError(f"{name} has dtype {counts.dtype}, must hold whole numbers >= 0; {advice}")
    bad = ~((counts >= 0) & (counts == np.floor(counts)) & np.isfinite(counts))
    if np.any(bad):
        raise ValueError(f"{name}={counts[bad][0].item()!r} must be a whole number >= 0; {advice}")
    return counts.astype(np.float64)


def _like_input(values: NDArray[np.float64]) -> float | NDArray[np.float64]:
    return float(values) if values.ndim == 0 else values
