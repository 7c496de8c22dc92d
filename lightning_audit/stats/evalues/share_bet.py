"""Bets on the share of right guesses in each training, if a training has several coins."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

__all__ = [
    "SHARE_STAKES",
    "further_trainings",
    "log_e_of_whole_shares",
    "share_error_upper",
    "share_log_e",
]

#: Stakes over which `share_log_e` averages; an infinite one multiplies by the share itself.
SHARE_STAKES: Floats = np.array([0.05, 0.2, 0.8, 3.0, 12.0, 50.0, np.inf])

_HALVINGS = 60


def share_log_e(right: ArrayLike, rate: float, stakes: ArrayLike = SHARE_STAKES) -> Floats:
    r"""Return the log e-values for "the share of wrong guesses of each training is at least e".

    The claim is about the expectation of each share, given the past. Coins of one training may
    depend on each other in any way, since each training is one bet,

    .. math:: E_n = \frac1J \sum_j \prod_{k \le n} \frac{1 + \kappa_j W_k}{1 + \kappa_j (1 - e)} ,

    with the factor W_k / (1 - e) for an infinite stake. Each factor has expectation at most one, so
    that the process is valid at any stopping time (Ville).

    Args:
        right: Share W of right guesses in each training, in [0, 1], in the order of the plan,
            ``[n]``.
        rate: Least share e of wrong guesses under the claim, in (0, 1).
        stakes: Stakes > 0, infinity included, ``[j]``.

    Returns:
        Log e-value after each training, ``[n]``.

    Raises:
        ValueError: If a share is not in [0, 1], or ``rate`` is not in (0, 1).

    Example:
        >>> share_log_e([0.76] * 100, 0.33)[[9, 99]].round(2)
        array([ 0.84, 11.35])

    References:
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B
        86, 2024, arXiv:2010.09686.
    """
    shares, kappa = _shares(right), np.asarray(stakes, dtype=np.float64)
    least = _validate.open_unit("rate", rate, "it is the least error rate of a guess")
    growth = _growth(shares[:, None], kappa, 1.0 - least)
    return log_mean_exp(np.cumsum(growth, axis=0))


def share_error_upper(right: ArrayLike, significance: float) -> float:
    """Return an upper limit of the mean error rate that is valid after every training.

    Args:
        right: As in `share_log_e`.
        significance: Probability in (0, 1) with which the limit may fail at any time.

    Returns:
        The largest error rate that `share_log_e` does not reject after the last training, in
        (0, 1]; 1 without a training.

    Raises:
        ValueError: See `share_log_e`; or if ``significance`` is not in (0, 1).

    Example:
        >>> share_error_upper([0.76] * 1000, 0.05) < 0.26
        True
    """
    shares = _shares(right)
    goal = -math.log(_validate.open_unit("significance", significance, "such as 0.05"))
    low, high = 0.0, 1.0  # the e-value grows with the rate
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        total = np.sum(_growth(shares[:, None], SHARE_STAKES, 1.0 - middle), axis=0)
        rejected = float(log_mean_exp(total)) >= goal
        low, high = (low, middle) if rejected else (middle, high)
    return high


def log_e_of_whole_shares(errors: int, trainings: int, rate: float) -> Floats:
    """Return the log e-value if all coins of a training are guessed wrong or all are right.

    Args:
        errors: Number of trainings with wrong guesses.
        trainings: Number of all trainings.
        rate: As in `share_log_e`.
    """
    growth = _growth(np.array([[0.0], [1.0]]), SHARE_STAKES, 1.0 - rate)
    counts = np.array([errors, trainings - errors])[:, None]
    # Without an error, the infinite stake has lost nothing.
    total = np.multiply(counts, growth, out=np.zeros_like(growth), where=counts > 0)
    return log_mean_exp(np.sum(total, axis=0))


def further_trainings(right: ArrayLike, rate: float, significance: float) -> int | None:
    """Return how many more trainings refute the rate, if they are like those so far.

    Not a bound: the wealth of each stake is taken to grow as it grew on average.

    Args:
        right: As in `share_log_e`.
        rate: As in `share_log_e`.
        significance: Probability in (0, 1) with which a true claim may be refuted.

    Returns:
        The number, 0 if the rate is refuted; None without a training, or if no stake gains.
    """
    shares = _shares(right)
    if not shares.size:
        return None
    goal = -math.log(_validate.open_unit("significance", significance, "such as 1e-3"))
    total = np.sum(_growth(shares[:, None], SHARE_STAKES, 1.0 - rate), axis=0)
    if log_mean_exp(total) >= goal:
        return 0
    best = float(np.max(total)) / len(shares)
    if best <= 0.0:
        return None
    return max(math.ceil((goal + math.log(len(SHARE_STAKES))) / best) - len(shares), 1)


def _growth(right: Floats, kappa: Floats, chance: float) -> Floats:
    """Return the log factors of each training and stake, ``[n, j]``."""
    flat = np.isinf(kappa)
    finite = np.where(flat, 0.0, kappa)
    with np.errstate(divide="ignore"):
        all_in = np.log(right) - math.log(chance) if chance > 0 else np.full(right.shape, np.inf)
    return np.asarray(np.where(flat, all_in, np.log1p(finite * right) - np.log1p(finite * chance)))


def _shares(right: ArrayLike) -> Floats:
    shares = np.asarray(right, dtype=np.float64)
    if shares.ndim != 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(
            f"right={_validate.shown(right)} must be a vector of shares in [0, 1], one for each "
            "training."
        )
    return shares
