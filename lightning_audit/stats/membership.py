r"""Separation of members from non-members by scores: ROC curve, privacy curve, loss attack.

**Separation of two worlds by scores: ROC curve, area, TPR at an FPR, privacy curve.** A curve or an
area of observed scores is an estimate. Functions named lower or upper return bounds, by bands that
hold for both error rates at all thresholds at once.

**A membership attack by the loss of a record, and its error counts.** Models trained without the
record (H0) and with it (H1) give one loss of the record each. A normal distribution is fitted to
the losses of either kind, and the likelihood-ratio test of the two decides about another model. Its
p-value is the probability under the fitted H0 of a loss with at least the same likelihood ratio.
The log ratio is a parabola in the loss, so a loss and its mirror image about the parabola's vertex
have the same ratio:

.. math:: \ell' = -2R - \ell, \qquad R = \frac{\mu_0 / \sigma_0^2 - \mu_1 / \sigma_1^2}
    {1 / \sigma_1^2 - 1 / \sigma_0^2}

The H1 region is between the two if sigma_0 > sigma_1, outside of them if sigma_0 < sigma_1, and on
the side of the smaller or larger losses if both are equal and the vertex is infinite.

The published algorithm 3 has R with the opposite sign and decides 0 if both variances are equal;
this is the test that the paper's appendix D derives.

References:
    Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of differential privacy from
    membership inference attacks", 2025, arXiv:2504.16683: algorithms 2 to 5 and appendix D.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    ConfusionCounts,
    Floats,
    places,
    score_vector,
    significance_level,
)
from lightning_audit.stats.thresholds import (
    Band,
    Stairs,
    candidate_thresholds,
    simultaneous_upper_limits,
)
from lightning_audit.stats.tradeoff import PiecewiseTradeoff

# --- Separation of two worlds by scores: ROC curve, area, TPR at an FPR, privacy curve.

# Number of thresholds of `tradeoff_upper`: any choice is valid, and more make no difference.
_MOST = 4096


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Observed rates of the guess "in if the score exceeds the threshold".

    Args:
        fpr: False positive rates, non-decreasing from 0 to 1, ``[k]``.
        tpr: True positive rates, non-decreasing from 0 to 1, ``[k]``.
        thresholds: Thresholds, decreasing, ``[k]``.
    """

    fpr: Floats
    tpr: Floats
    thresholds: Floats


def roc_curve(scores_in: ArrayLike, scores_out: ArrayLike) -> RocCurve:
    """Return every pair of error rates of a threshold, once.

    Args:
        scores_in: Scores with the canary in, larger if it seems to be in, ``[n_in]``.
        scores_out: Scores with the canary out, ``[n_out]``, in the same unit.

    Returns:
        The curve, from "never in" to "always in".

    Raises:
        ValueError: If a group is empty, or scores are not one-dimensional or hold nan.

    Example:
        >>> curve = roc_curve([1.0, 2.0, 3.0], [0.0, 2.0])
        >>> curve.fpr, curve.tpr.round(2)
        (array([0. , 0. , 0.5, 0.5, 1. ]), array([0.  , 0.33, 0.67, 1.  , 1.  ]))
    """
    inside, outside = _groups(scores_in, scores_out)
    stairs = _backwards(inside, outside)
    return RocCurve(
        fpr=(stairs.n_out - stairs.tn) / stairs.n_out,
        tpr=(stairs.n_in - stairs.fn) / stairs.n_in,
        thresholds=stairs.thresholds,
    )


def auroc(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    r"""Return the area under the ROC curve: the probability that a score "in" exceeds one "out".

    Exact, as a ratio of whole numbers; ties count half, which gives the area under straight lines
    between the points of the curve, and the Mann-Whitney statistic over its maximum.

    .. math:: \frac{1}{n_1 n_0} \sum_{i,j} \bigl(\mathbf 1\{x_i > y_j\}
        + \tfrac12 \mathbf 1\{x_i = y_j\}\bigr)

    Arguments and errors are those of `roc_curve`.

    Returns:
        The area in [0, 1]; .5 if the scores do not separate the worlds.

    Example:
        >>> auroc([1.0, 2.0, 3.0], [0.0, 2.0])
        0.75

    References:
        Mann and Whitney, Annals of Mathematical Statistics 18, 1947, doi:10.1214/aoms/1177730491.
        Hanley and McNeil, "The meaning and use of the area under a ROC curve", Radiology 143, 1982,
        doi:10.1148/radiology.143.1.7063747.
    """
    inside, outside = _groups(scores_in, scores_out)
    below, up_to = (np.searchsorted(outside, inside, side=side) for side in ("left", "right"))
    # Python's whole numbers do not overflow.
    wins = int(below.sum()) + int(up_to.sum())
    return wins / (2 * len(inside) * len(outside))


def tpr_at_fpr(scores_in: ArrayLike, scores_out: ArrayLike, fpr: float) -> float:
    """Return the observed true positive rate at an observed false positive rate <= ``fpr``.

    The rate is that of a threshold, without interpolation between points of the curve. With fewer
    than 1 / fpr scores "out", none of them may pass.

    Args:
        scores_in: As in `roc_curve`, ``[n_in]``.
        scores_out: As in `roc_curve`, ``[n_out]``.
        fpr: False positive rate in [0, 1].

    Returns:
        The rate in [0, 1], an estimate.

    Raises:
        ValueError: As in `roc_curve`; if ``fpr`` is out of its range.

    Example:
        >>> tpr_at_fpr([1.0, 2.0, 3.0, 4.0], [0.0, 0.5, 1.5, 3.5], fpr=0.25)
        0.75

    References:
        Carlini et al., "Membership inference attacks from first principles", IEEE S&P 2022,
        arXiv:2112.03570.
    """
    inside, outside = _groups(scores_in, scores_out)
    # Number of scores "out" that may pass; the factor keeps rounding from removing one.
    passing = int(np.floor(_rate(fpr) * len(outside) * (1 + 1e-12)))
    if passing == len(outside):
        return 1.0
    return float(np.mean(inside > outside[len(outside) - passing - 1]))


def tpr_at_fpr_lower(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    fpr: float,
    significance: float,
    band: Band = "berk_jones",
) -> float:
    """Return a lower bound on the true positive rate at a true FPR of at most ``fpr``.

    With probability at least ``1 - significance`` there is a threshold with a true false positive
    rate of at most ``fpr`` and a true positive rate of at least the result. A band for each rate
    has half of the significance, so the threshold may be chosen afterwards. The scores must be
    independent.

    Args:
        scores_in: As in `roc_curve`, ``[n_in]``.
        scores_out: As in `roc_curve`, ``[n_out]``.
        fpr: False positive rate in [0, 1].
        significance: Probability in (0, 1) with which the bound may fail.
        band: As in `stats.thresholds.simultaneous_upper_limits`, which has its source.

    Returns:
        The bound in [0, 1]; 0 if too few scores "out" were seen to limit a rate to ``fpr``.

    Raises:
        ValueError: As in `roc_curve`; if another argument is out of its range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = 2 + rng.standard_normal(5000), rng.standard_normal(5000)
        >>> round(tpr_at_fpr(*scores, 0.01), 2), round(tpr_at_fpr_lower(*scores, 0.01, 0.05), 2)
        (0.37, 0.3)
    """
    inside, outside = _groups(scores_in, scores_out)
    limit, level = _rate(fpr), significance_level(significance) / 2
    fnr_upper = simultaneous_upper_limits(len(inside), level, band)
    fpr_upper = simultaneous_upper_limits(len(outside), level, band)
    passing = int(np.searchsorted(fpr_upper, limit, side="right")) - 1
    if passing < 0:
        return 0.0
    if passing == len(outside):
        return 1.0
    missed = int(np.sum(inside <= outside[len(outside) - passing - 1]))
    return float(1.0 - fnr_upper[missed])


def tradeoff_upper(
    scores_in: ArrayLike, scores_out: ArrayLike, significance: float, band: Band = "berk_jones"
) -> PiecewiseTradeoff:
    """Return a trade-off function that is nowhere below that of the mechanism.

    With probability at least ``1 - significance`` the mechanism's trade-off function is on or below
    the result. So `PiecewiseTradeoff.epsilon_at` is a lower bound on epsilon at every delta, and
    `PiecewiseTradeoff.delta_at` one on delta at every epsilon, at all of them together: the privacy
    curve may be read at its most informative point.

    The upper limits of both error rates at up to 4,096 thresholds are points above the function,
    and so are their mirror images, because adding and removing a canary both give neighbors. The
    result is the largest convex function below these points.

    Args:
        scores_in: As in `roc_curve`, ``[n_in]``.
        scores_out: As in `roc_curve`, ``[n_out]``.
        significance: Probability in (0, 1) with which the function may fail anywhere.
        band: As in `tpr_at_fpr_lower`.

    Returns:
        The trade-off function.

    Raises:
        ValueError: As in `tpr_at_fpr_lower`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = 2 + rng.standard_normal(5000), rng.standard_normal(5000)
        >>> f = tradeoff_upper(*scores, significance=0.05)
        >>> f.epsilon_at(np.array([1e-5, 1e-2, 0.1])).round(2)
        array([4.01, 3.92, 3.03])
    """
    inside, outside = _groups(scores_in, scores_out)
    level = significance_level(significance) / 2
    stairs = _backwards(inside, outside, _MOST)
    fnr = simultaneous_upper_limits(stairs.n_in, level, band)[stairs.fn]
    fpr = simultaneous_upper_limits(stairs.n_out, level, band)[stairs.n_out - stairs.tn]
    return PiecewiseTradeoff(np.concatenate([fpr, fnr]), np.concatenate([fnr, fpr]))


def _rate(fpr: float) -> float:
    if fpr != 0:
        _validate.rate("fpr", fpr, "or 0; it is a false positive rate")
    return float(fpr)


def _groups(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[Floats, Floats]:
    groups = []
    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        groups.append(np.sort(score_vector(name, scores)))
        if not groups[-1].size:
            raise ValueError(
                f"{name} is empty, must hold at least one score; an empty group has no rate."
            )
    return groups[0], groups[1]


def _backwards(inside: Floats, outside: Floats, most: int | None = None) -> Stairs:
    """Return counts at decreasing thresholds: all, or a subset that misses no rate by much."""
    if most is None or len(inside) + len(outside) < most:
        thresholds = candidate_thresholds(inside, outside)
    else:
        # Counts at equal distances in units of their standard deviations, for either group.
        turns = np.sin(np.linspace(0.0, np.pi / 2, most // 2)) ** 2
        thresholds = np.unique(
            np.concatenate(
                [s[np.floor(turns * (len(s) - 1)).astype(int)] for s in (inside, outside)]
            )
        )
    return Stairs.of(inside, outside, thresholds[::-1])


# --- A membership attack by the loss of a record, and its error counts.


def normal_ratio_p_value(
    loss: ArrayLike, mean_out: ArrayLike, std_out: ArrayLike, mean_in: ArrayLike, std_in: ArrayLike
) -> Floats:
    """Return the p-value of the best test of N(mean_out, std_out^2) and N(mean_in, std_in^2).

    Its size is exact for the fitted distributions, not for the true distributions of the losses.

    Args:
        loss: Loss of the record under the attacked model, any shape that broadcasts.
        mean_out: Mean of the losses of models without the record, in the unit of ``loss``.
        std_out: Standard deviation of these losses, > 0, in the same unit.
        mean_in: Mean of the losses of models with the record, in the same unit.
        std_in: Standard deviation of these losses, > 0, in the same unit.

    Returns:
        The p-values, of the broadcast shape; 1 if both distributions are the same.

    Raises:
        ValueError: If a number is not finite or a standard deviation is not > 0.

    Example:
        >>> normal_ratio_p_value([0.0, -1.645], 0.0, 1.0, -1.0, 1.0).round(3)
        array([0.5 , 0.05])
    """
    x, m0, m1 = (
        _finite(name, value)
        for name, value in (("loss", loss), ("mean_out", mean_out), ("mean_in", mean_in))
    )
    s0, s1 = _spread("std_out", std_out), _spread("std_in", std_in)
    # In units of H0 a loss is z ~ N(0, 1), or N(shift, scale^2) under H1.
    z, shift, scale = (x - m0) / s0, (m1 - m0) / s0, s1 / s0
    with np.errstate(divide="ignore", invalid="ignore"):
        mirror = 2.0 * shift / ((1.0 - scale) * (1.0 + scale)) - z
    low, high = np.minimum(z, mirror), np.maximum(z, mirror)
    # The difference of the two smaller tails keeps the digits of a small probability.
    between = np.where(
        low > 0, special.ndtr(-low) - special.ndtr(-high), special.ndtr(high) - special.ndtr(low)
    )
    outside = special.ndtr(low) + special.ndtr(-high)
    one_sided = np.where(shift == 0, 1.0, special.ndtr(-np.sign(shift) * z))
    return np.asarray(np.select([scale < 1, scale > 1], [between, outside], one_sided))


@dataclass(frozen=True, eq=False)
class Challenges:
    """Losses of a record under attacked models, with separate shadow models for each.

    Args:
        losses: Losses under the attacked models, ``[n]``.
        shadows_out: Losses under models without the record, ``[n, k]``, k >= 2.
        shadows_in: Losses under models with the record, ``[n, k]``, k >= 2.
    """

    losses: ArrayLike
    shadows_out: ArrayLike
    shadows_in: ArrayLike

    def p_values(self, name: str) -> Floats:
        """Return the p-value of each challenge, ``[n]``; ``name`` is for messages."""
        losses = _finite(f"{name}.losses", self.losses)
        fits = []
        for side in ("shadows_out", "shadows_in"):
            shadows = _finite(f"{name}.{side}", getattr(self, side))
            if losses.ndim != 1 or shadows.ndim != 2 or len(shadows) != len(losses):
                raise ValueError(
                    f"{name}.{side} has shape {shadows.shape} for losses of shape {losses.shape}, "
                    "must be [n, shadow models] for [n]; train shadow models for each challenge, "
                    "or use measure_cross_fed."
                )
            if shadows.shape[1] < 2:
                raise ValueError(
                    f"{name}.{side} has {shadows.shape[1]} shadow models, must have at least 2 a "
                    "challenge: one has no standard deviation."
                )
            fits += [shadows.mean(axis=1), shadows.std(axis=1, ddof=1)]
        return normal_ratio_p_value(losses, *fits)


def measure_attack(out: Challenges, inside: Challenges, alpha: ArrayLike) -> ConfusionCounts:
    """Count the errors of the attack on models that are challenged independently.

    The counts are independent binomials, as `attack_strength_posterior` assumes.

    Args:
        out: Challenges by models that were trained without the record.
        inside: Challenges by models that were trained with it.
        alpha: Target false positive rate in (0, 1), a number or several, ``[k]``. Fix the one that
            is used before the losses are seen.

    Returns:
        The counts, in the shape of ``alpha``.

    Raises:
        ValueError: If an argument is out of its range, or losses are equal, which have no spread.
    """
    return _counted(out.p_values("out"), inside.p_values("inside"), alpha)


def measure_cross_fed(
    losses_out: ArrayLike, losses_in: ArrayLike, alpha: ArrayLike
) -> ConfusionCounts:
    """Count the errors of the attack if each model is challenged by all the others.

    It needs n models a side instead of n times as many. The decisions are correlated: use
    `correlated_attack_posterior` with ``cluster=n``, not a binomial model.

    Args:
        losses_out: Losses under models without the record, ``[n]``, n >= 3. At least two of any
            n - 1 of them must differ.
        losses_in: Losses under models with the record, ``[m]``, m >= 3, likewise.
        alpha: As in `measure_attack`.

    Returns:
        The counts, in the shape of ``alpha``.

    Raises:
        ValueError: If an argument is out of its range, or losses have no spread.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> out, inside = rng.normal(2.0, 1.0, 100), rng.normal(0.5, 0.5, 100)
        >>> counts = measure_cross_fed(out, inside, alpha=0.1)
        >>> int(counts.fp), int(counts.fn)
        (13, 24)
    """
    sides = [_finite("losses_out", losses_out), _finite("losses_in", losses_in)]
    for name, losses in zip(("losses_out", "losses_in"), sides, strict=True):
        if losses.ndim != 1 or losses.size < 3:
            raise ValueError(
                f"{name} has shape {losses.shape}, must be [n] with n >= 3: a standard "
                "deviation needs two other models; train more models."
            )
    (out, inside), whole = sides, [(side.mean(), side.std(ddof=1)) for side in sides]
    p_out = normal_ratio_p_value(out, *_without_each(out), *whole[1])
    p_in = normal_ratio_p_value(inside, *whole[0], *_without_each(inside))
    return _counted(p_out, p_in, alpha)


def _without_each(losses: Floats) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of all losses but one, for each, ``[n]``."""
    n = losses.size
    apart = losses - losses.mean()
    means = losses.mean() - apart / (n - 1)
    squares = np.sum(apart**2)
    rest = squares - apart**2 * n / (n - 1)
    # If one loss causes the whole spread, the difference loses the spread of the others.
    for i in np.flatnonzero(rest < 1e-6 * squares).tolist():
        others = np.delete(losses, i)
        rest[i] = np.sum((others - others.mean()) ** 2)
    return means, np.sqrt(rest / (n - 2))


def _counted(p_out: Floats, p_in: Floats, alpha: ArrayLike) -> ConfusionCounts:
    levels = np.asarray(alpha, dtype=np.float64)
    for level in levels.ravel().tolist():
        _validate.open_unit("alpha", level, "it is the false positive rate aimed at, such as 0.1")
    fp = np.count_nonzero(p_out <= levels[..., None], axis=-1)
    tp = np.count_nonzero(p_in <= levels[..., None], axis=-1)
    return ConfusionCounts(fn=p_in.size - tp, tp=tp, fp=fp, tn=p_out.size - fp)


def _finite(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all(finite := np.isfinite(array)):
        at = f" ({places(~finite)})" if finite.ndim else ""
        raise ValueError(f"{name} holds nan or infinity, must be finite; clip such losses{at}.")
    return array


def _spread(name: str, values: ArrayLike) -> Floats:
    array = _finite(name, values)
    if np.any(array <= 0):
        raise ValueError(
            f"{name}={float(np.min(array))!r} must be > 0: equal losses have no spread; train more "
            "models, or another random seed for each."
        )
    return array
