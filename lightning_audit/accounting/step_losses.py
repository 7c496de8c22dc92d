"""The privacy loss of one subsampled Gaussian step, as dp-accounting discretizes it, vectorized."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy import fft, special

Floats = NDArray[np.float64]

#: Logarithm of the mass of either tail that counts as an infinite loss; dp-accounting's default.
_LOG_TAIL = -50.0
#: Orders of the Chernoff bound on the tails of a sum, times the number of grid points.
_ORDERS = np.arange(1.0, 21.0)


def step_losses(sigma: float, sample_rate: float, grid: float) -> PrivacyLossDistribution:
    r"""Return the privacy loss distribution of one Poisson-subsampled Gaussian step.

    That of ``from_gaussian_mechanism`` of dp-accounting for a record that is added or removed, up
    to rounding errors, in a tenth of its time. With L(e) = log(1 + (exp(e) - 1) / q), the loss of
    the unsampled step at which the loss of the step is e, and x = -1/2 - sigma^2 L(e),

    .. math:: \delta_{remove}(e) = q\,\big[\Phi(\tfrac{x + 1}{\sigma})
        - e^{L(e)}\,\Phi(\tfrac{x}{\sigma})\big], \qquad
        \delta_{add}(e) = (1 - (1 - q) e^e)\,\Phi(\tfrac{y}{\sigma})
        - q\,e^e\,\Phi(\tfrac{y - 1}{\sigma})

    with y = 1/2 + sigma^2 L(-e). These are joined by the connect-the-dots algorithm.

    Args:
        sigma: Noise multiplier, > 0.
        sample_rate: Probability q in (0, 1] with which the record joins the batch.
        grid: Width of the grid of losses, in nats, > 0.

    Returns:
        The distribution; its composition with itself is as fast.

    References:
        Doroshenko et al., "Connect the dots: tighter discrete approximations of privacy loss
        distributions", PoPETs 2022(4), arXiv:2207.04380, Algorithm 1.
    """
    reach = -sigma * float(special.ndtri(0.5 * math.exp(_LOG_TAIL)))
    lowest, highest = (_loss(x, sigma, sample_rate) for x in (reach, -reach - 1.0))
    removed = _connected(lowest, highest, grid, lambda e: _removed(e, sigma, sample_rate))
    if sample_rate == 1.0:
        return PrivacyLossDistribution(removed)
    lowest, highest = (-_loss(-x, sigma, sample_rate) for x in (reach + 1.0, -reach))
    added = _connected(lowest, highest, grid, lambda e: _added(e, sigma, sample_rate))
    return PrivacyLossDistribution(removed, added)


class _Losses(DensePLDPmf):  # type: ignore[misc]
    """Losses of one step, whose sums are truncated as by dp-accounting, vectorized."""

    def self_compose(self, num_times: int, tail_mass_truncation: float = 1e-15) -> DensePLDPmf:
        """Return the distribution of the sum of independent losses.

        Args:
            num_times: number of losses, >= 1.
            tail_mass_truncation: mass that counts as an infinite loss.
        """
        first, last = _bounds(self._probs, num_times, tail_mass_truncation)
        size = fft.next_fast_len(max(last - first + 1, len(self._probs)), real=True)
        total = fft.irfft(fft.rfft(self._probs, size) ** num_times, size)
        infinite = -math.expm1(num_times * math.log1p(-self._infinity_mass))
        return DensePLDPmf(
            self._discretization,
            self._lower_loss * num_times + first,
            np.roll(total, -first)[: last - first + 1],  # the transform is cyclic
            tail_mass_truncation + infinite,
            self._pessimistic_estimate,
        )


def _bounds(probs: Floats, steps: int, tail_mass: float) -> tuple[int, int]:
    """Return first and last grid point of a sum of losses up to ``tail_mass``, by Chernoff."""
    base = np.arange(len(probs)) / len(probs)
    first, last = 0, (len(probs) - 1) * steps
    slack = math.log(2.0 / tail_mass)
    for sign in (1.0, -1.0):
        powers, factor = np.ones_like(probs), np.exp(sign * base)
        for order in sign * _ORDERS / len(probs):
            powers *= factor
            bound = (steps * math.log(float(powers @ probs)) + slack) / order
            if sign > 0:
                last = min(last, math.ceil(bound))
            else:
                first = max(first, math.floor(bound))
    return first, last


def _connected(lowest: float, highest: float, grid: float, delta: Any) -> _Losses:
    """Return the losses on a grid whose privacy curve has the values of ``delta`` on it."""
    begin, end = math.floor(lowest / grid), math.ceil(highest / grid)
    deltas = np.minimum.accumulate(np.clip(delta(np.arange(begin, end + 1) * grid), 0.0, 1.0))
    if begin == end:
        return _Losses(grid, begin, 1.0 - deltas, float(deltas[0]), True)
    rises, width = np.diff(deltas), math.expm1(grid)
    probs = np.empty_like(deltas)
    probs[0] = 1.0 - deltas[0] + rises[0] / width
    probs[1:-1] = (rises[1:] - rises[:-1] * math.exp(grid)) / width
    probs[-1] = rises[-1] / math.expm1(-grid)
    return _Losses(grid, begin, np.maximum(probs, 0.0), float(deltas[-1]), True)


def _loss(x: float, sigma: float, rate: float) -> float:
    """Return the loss at an outcome ``x`` if the record that is removed shifts it to -1."""
    log_out = math.log1p(-rate) if rate < 1.0 else -math.inf
    return float(np.logaddexp(log_out, math.log(rate) - (0.5 + x) / sigma**2))


def _unsampled(loss: Floats, rate: float) -> Floats:
    """Return L, the loss without subsampling; for a loss above log(1 - rate)."""
    up, down = np.maximum(loss, 0.0), np.minimum(loss, 0.0)
    high = up - math.log(rate) + np.log(rate * np.exp(-up) - np.expm1(-up))
    return np.where(loss > 0.0, high, np.log1p(np.expm1(down) / rate))


def _removed(loss: Floats, sigma: float, rate: float) -> Floats:
    """Return delta at each epsilon, ``[n]``, if a record is removed."""
    inside = loss > (math.log1p(-rate) if rate < 1.0 else -math.inf)
    deltas = -np.expm1(np.minimum(loss, 0.0))
    unsampled = _unsampled(loss[inside], rate)
    z = (-0.5 - sigma**2 * unsampled) / sigma
    outside = np.exp(unsampled + special.log_ndtr(z))
    deltas[inside] = rate * (special.ndtr(z + 1.0 / sigma) - outside)
    return deltas


def _added(loss: Floats, sigma: float, rate: float) -> Floats:
    """Return delta at each epsilon, ``[n]``, if a record is added."""
    deltas = np.zeros_like(loss)
    inside = loss < -math.log1p(-rate)
    epsilon = loss[inside]
    z = (0.5 + sigma**2 * _unsampled(-epsilon, rate)) / sigma
    joins = rate * np.exp(epsilon)
    deltas[inside] = (joins - np.expm1(epsilon)) * special.ndtr(z) - joins * special.ndtr(
        z - 1.0 / sigma
    )
    return deltas
