"""Trade-off function of a composed mechanism from its privacy loss distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats.tradeoff.piecewise import PiecewiseTradeoff

__all__ = ["tradeoff_from_pld"]

Floats = NDArray[np.float64]


def tradeoff_from_pld(pld: Any, *, symmetric: bool = True) -> PiecewiseTradeoff:
    r"""Trade-off function of a mechanism from dp_accounting's privacy loss distribution.

    It lies on or below the true one wherever the discretisation is pessimistic, as by default: what
    falls below it is no mechanism with that privacy loss. Its privacy curve is that of the
    distribution itself, up to the rounding of sums.

    The test "in if the loss is at least l" has the error rates

    .. math:: \alpha(l) = \sum_{l' \ge l} p(l')\, e^{-l'}, \qquad
        \beta(l) = 1 - p(\infty) - \sum_{l' \ge l} p(l')

    for l >= 0, with p the "remove" part: the loss of a record that is in, against it being out. The
    "add" part gives the same with the roles of the errors exchanged, that is the other half of the
    curve. Negative losses are not used: there e^-l multiplies the rounding errors of the Fourier
    transform.

    Args:
        pld: A `dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution`.
        symmetric: If true, the curve for both directions together, f = min(T, T^-1)**, to which the
            privacy curve max(delta_remove, delta_add) belongs. If false, the curve T of type II
            against type I errors for "record in" against "record out", which is tighter where the
            two differ.

    Returns:
        The trade-off function; its corners are those of the discretised loss. It takes about a
        microsecond a corner.

    Raises:
        TypeError: If ``pld`` does not have the parts that dp_accounting's class had.
        ValueError: If ``pld`` is an optimistic estimate.

    Example:
        >>> from dp_accounting.pld import privacy_loss_distribution
        >>> step = privacy_loss_distribution.from_gaussian_mechanism(
        ...     2.0, value_discretization_interval=1e-3, sampling_prob=0.1)
        >>> f = tradeoff_from_pld(step.self_compose(100))
        >>> round(f(0.1), 3), round(f.epsilon_at(1e-5), 3)
        (0.772, 2.337)

    References:
        Doroshenko et al., "Connect the dots: tighter discrete approximations of privacy loss
        distributions", PoPETs 2022(4). Kulynych et al., "Attack-aware noise calibration for
        differential privacy", NeurIPS 2024. Dong, Roth and Su, "Gaussian differential
        privacy", JRSS B 84, 2022, Proposition 2.12.
    """
    remove, add = _losses(pld, "_pmf_remove"), _losses(pld, "_pmf_add")
    power, false_alarm = _error_rates(remove)
    # Against "record in" it is a guess of "out" that errs when it says "in" of a record out.
    right, missed = _error_rates(add)
    alpha, beta = [false_alarm, 1.0 - right], [1.0 - power, missed]
    if symmetric:
        alpha, beta = alpha + beta, beta + alpha
    return PiecewiseTradeoff(np.concatenate(alpha), np.concatenate(beta))


@dataclass(frozen=True)
class _Losses:
    """Probabilities of the losses >= 0 of one direction, in decreasing order of the loss."""

    loss: Floats
    probability: Floats
    infinite: float


def _error_rates(losses: _Losses) -> tuple[Floats, Floats]:
    """Power and false alarm rate of the tests "loss at least l", from infinite l down to 0."""
    # Rounding may lift sums of thousands of terms above one by a hair.
    power = np.minimum(losses.infinite + np.cumsum(losses.probability), 1.0)
    false_alarm = np.minimum(np.cumsum(losses.probability * np.exp(-losses.loss)), 1.0)
    return np.append(losses.infinite, power), np.append(0.0, false_alarm)


def _losses(pld: Any, part: str) -> _Losses:
    """Read one part of a distribution; the only place that knows dp_accounting's private fields."""
    try:
        pmf = getattr(pld, part)
        if not pmf._pessimistic_estimate:
            raise ValueError(
                "pessimistic_estimate=False must be True: a curve that is not below the true one "
                "proves nothing; build the distribution with pessimistic_estimate=True."
            )
        width, infinite = float(pmf._discretization), float(pmf._infinity_mass)
        if hasattr(pmf, "_loss_probs"):
            index = np.array(list(pmf._loss_probs.keys()), dtype=np.int64)
            values = np.array(list(pmf._loss_probs.values()), dtype=np.float64)
        else:
            values = np.asarray(pmf._probs, dtype=np.float64)
            index = int(pmf._lower_loss) + np.arange(len(values), dtype=np.int64)
    except (AttributeError, TypeError) as error:
        raise TypeError(
            f"pld of {type(pld)} must be a PrivacyLossDistribution whose {part} holds _probs and "
            "_lower_loss or _loss_probs, _infinity_mass and _discretization; this was written "
            "for dp-accounting 0.6, so pin that and report your version."
        ) from error
    order = np.argsort(index)[::-1]
    order = order[index[order] >= 0]
    # The Fourier transform leaves rounding errors of either sign; those below zero count as zero.
    loss = width * index[order].astype(np.float64)
    return _Losses(loss, np.maximum(values[order], 0.0), max(infinite, 0.0))
