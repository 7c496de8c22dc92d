r"""A membership attack by the loss of a record, and its error counts.

Models trained without the record (H0) and with it (H1) give one loss of the record each. A normal
distribution is fitted to the losses of either kind, and the likelihood-ratio test of the two
decides about another model. Its p-value is the probability under the fitted H0 of a loss with at
least the same likelihood ratio. The log ratio is a parabola in the loss, so a loss and its mirror
image about the parabola's vertex have the same ratio:

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
from lightning_audit.stats._arguments import Floats, places
from lightning_audit.stats._confusion import ConfusionCounts

__all__ = ["Challenges", "measure_attack", "measure_cross_fed", "normal_ratio_p_value"]


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
    result: Floats = np.select([scale < 1, scale > 1], [between, outside], one_sided)
    return result


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
