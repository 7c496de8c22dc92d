"""Trade-off function of a composed mechanism from its privacy loss distribution."""

from __future__ import annotations

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from lightning_audit.stats.tradeoff import PiecewiseTradeoff


def tradeoff_from_pld(pld: PrivacyLossDistribution) -> PiecewiseTradeoff:
    r"""Return the trade-off function of a mechanism for both directions: f = min(T, T^-1)**.

    The function is on or below the true one, because the discretization is pessimistic; its
    privacy curve is that of the distribution itself, up to the rounding of sums.

    The test "in if the loss is at least l" has the error rates

    .. math:: \alpha(l) = \sum_{l' \ge l} p(l')\, e^{-l'}, \qquad
        \beta(l) = 1 - p(\infty) - \sum_{l' \ge l} p(l')

    for l >= 0, with p the "remove" part: the loss of a record that is in, against it being out. The
    "add" part gives the same with the roles of the errors exchanged, that is the other half of the
    curve. Negative losses are not used: there e^-l multiplies the rounding errors of the Fourier
    transform.

    Raises:
        ValueError: If ``pld`` is an optimistic estimate, whose curve proves nothing.

    References:
        Doroshenko et al., "Connect the dots: tighter discrete approximations of privacy loss
        distributions", PoPETs 2022(4). Kulynych et al., "Attack-aware noise calibration for
        differential privacy", NeurIPS 2024.
    """
    first, second = [], []
    # Against "record in" it is a guess of "out" that errs when it says "in" of a record out.
    for part in (pld._pmf_remove, pld._pmf_add):
        if not part._pessimistic_estimate:
            raise ValueError("pessimistic_estimate=False must be True.")
        power, false_alarm = _error_rates(part)
        first += [false_alarm, 1.0 - power]
        second += [1.0 - power, false_alarm]
    return PiecewiseTradeoff(np.concatenate(first), np.concatenate(second))


def _error_rates(part) -> tuple[np.ndarray, np.ndarray]:
    """Return power and false alarm rate of the tests "loss at least l", from infinite l to 0."""
    dense = part.to_dense_pmf()
    # The Fourier transform leaves rounding errors of either sign; those below zero count as zero.
    probability = np.maximum(np.asarray(dense._probs, dtype=np.float64), 0.0)[::-1]
    index = int(dense._lower_loss) + np.arange(len(probability))[::-1]
    probability, index = probability[index >= 0], index[index >= 0]
    infinite = max(float(dense._infinity_mass), 0.0)
    # Rounding may make sums of thousands of terms slightly larger than one.
    power = np.minimum(infinite + np.cumsum(probability), 1.0)
    loss = index * float(dense._discretization)
    false_alarm = np.minimum(np.cumsum(probability * np.exp(-loss)), 1.0)
    return np.append(infinite, power), np.append(0.0, false_alarm)
