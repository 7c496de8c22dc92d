r"""Lower bounds on the epsilon of a subsampled step, from guesses at a coin known to the auditor.

The game: given a step's gradient, guess whether the canary is in the data, from which it joins the
batch with probability q. Take a guess whose error rates are FNR and FPR if the auditor *knows*
whether the canary is in the batch. In this game its rates are

.. math:: \mathrm{FPR}_q = \mathrm{FPR}, \qquad
    \mathrm{FNR}_q = q\, \mathrm{FNR} + (1 - q)(1 - \mathrm{FPR})

exactly, as the coin by which the canary joins is independent of everything else. So the game need
not be played: limits of the known coin's rates are converted to limits of this game's rates, which
is sharper than drawing members at random and counting. Both new rates rise with FPR and FNR
wherever they are used below, so upper limits give valid bounds (own proof, below).

References:
    Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383, section
    4: the subsampled trade-off function. Kairouz, Oh and Viswanath, "The composition theorem for
    differential privacy", ICML 2015, arXiv:1311.0776, Theorem 2.1.
"""

from __future__ import annotations

import math

import numpy as np

from lightning_audit import _validate
from lightning_audit.stats._arguments import significance_level
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.bounds.intervals import clopper_pearson_upper
from lightning_audit.stats.tradeoff.subsampled import SubsampledGaussianTradeoff

__all__ = ["subsampled_epsilon_clopper_pearson", "subsampled_epsilon_of_mu"]


def subsampled_epsilon_of_mu(mu: float, sample_rate: float, delta: float) -> float:
    r"""Return the epsilon of one subsampled Gaussian step that is mu-GDP without sampling.

    With (FPR, FNR_q) of the module's formula, the subsampled curve of noise multiplier 1 / mu,

    .. math:: \mathrm{FNR}_q < (1 - q)(1 - \mathrm{FPR}) + q\, G_\mu(\mathrm{FPR})
        \iff \mathrm{FNR} < G_\mu(\mathrm{FPR})

    is refuted by exactly those rates that refute mu-GDP. So a lower bound on mu from the known coin
    is one for the subsampled game against its own curve, at the same significance.

    Args:
        mu: Lower bound on mu, >= 0; infinite without noise.
        sample_rate: Probability q in (0, 1] with which a member joins a step.
        delta: Delta of the epsilon, in (0, 1).

    Returns:
        The lower bound on epsilon, >= 0.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(subsampled_epsilon_of_mu(0.3**-0.5, 0.25, 1e-5), 4)
        6.9533
    """
    q = _validate.rate("sample_rate", sample_rate)
    at = _validate.open_unit("delta", delta)
    if mu == math.inf:
        return math.inf if at < q else 0.0
    if _validate.non_negative("mu", mu) == 0.0:
        return 0.0
    return float(SubsampledGaussianTradeoff(1.0 / mu, q).epsilon_at(at))


def subsampled_epsilon_clopper_pearson(
    counts: ConfusionCounts, sample_rate: float, delta: float, significance: float
) -> float:
    r"""Return a lower bound on the epsilon of a subsampled step from Clopper-Pearson limits.

    Nothing is assumed about the mechanism. An (epsilon, delta)-DP step has FNR_q + e^epsilon FPR_q
    >= 1 - delta and the same with the rates exchanged, so that

    .. math:: \varepsilon \ge \ln\Big(1 - q
        + \frac{q (1 - \mathrm{FNR}) - \delta}{\mathrm{FPR}}\Big), \qquad
        \varepsilon \ge \ln \frac{1 - \delta - \mathrm{FPR}}
        {q\, \mathrm{FNR} + (1 - q)(1 - \mathrm{FPR})}

    Both fall with FNR and with FPR (the second because the derivative of its quotient in FPR has
    the sign of -q FNR - (1 - q) delta), so the upper limits, each at half of ``significance``, give
    the least value over all rates that are not rejected.

    Args:
        counts: Outcomes of guessing the known coin, at a threshold fixed beforehand.
        sample_rate: Probability q in (0, 1] with which a member joins a step.
        delta: Delta of the epsilon, in (0, 1).
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The lower bound on epsilon, >= 0.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> counts = ConfusionCounts(fn=10, tp=990, fp=5, tn=995)
        >>> round(subsampled_epsilon_clopper_pearson(counts, 0.25, 1e-5, 0.05), 4)
        3.0843
    """
    q = _validate.rate("sample_rate", sample_rate)
    at = _validate.open_unit("delta", delta)
    level = significance_level(significance) / 2
    fnr = np.float64(clopper_pearson_upper(counts.fn, counts.n_in, level))
    fpr = np.float64(clopper_pearson_upper(counts.fp, counts.n_out, level))
    missed = q * fnr + (1.0 - q) * (1.0 - fpr)
    # No limit is zero: each is at least that of no error in finitely many guesses.
    gains = 1.0 - q + (q * (1.0 - fnr) - at) / fpr, (1.0 - at - fpr) / missed
    return max(math.log(max(*gains, 1.0)), 0.0)
