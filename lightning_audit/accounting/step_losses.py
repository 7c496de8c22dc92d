"""The privacy loss of one subsampled Gaussian step, as dp-accounting discretizes it, vectorized."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
#: Newton steps to an outcome by its loss, and the least loss that they find.
_NEWTON_STEPS, _LEAST = 12, 1e6


def step_losses(
    sigma: float, sample_rate: float, grid: float, items: int = 1
) -> PrivacyLossDistribution:
    r"""Return the privacy loss distribution of one Poisson-subsampled Gaussian step.

    That of ``from_gaussian_mechanism`` of dp-accounting for a record that is added or removed, up
    to rounding errors, in a tenth of its time. With L(e) = log(1 + (exp(e) - 1) / q), the loss of
    the unsampled step at which the loss of the step is e, and x = -1/2 - sigma^2 L(e),

    .. math:: \delta_{remove}(e) = q\,\big[\Phi(\tfrac{x + 1}{\sigma})
        - e^{L(e)}\,\Phi(\tfrac{x}{\sigma})\big], \qquad
        \delta_{add}(e) = (1 - (1 - q) e^e)\,\Phi(\tfrac{y}{\sigma})
        - q\,e^e\,\Phi(\tfrac{y - 1}{\sigma})

    with y = 1/2 + sigma^2 L(-e). These are joined by the connect-the-dots algorithm.

    Of a record with k items, each of which joins the batch with probability q, the step is
    dominated by a mixture of Gaussians whose sensitivity is binomial, Bin(k, q): q becomes
    Q = 1 - (1 - q)^k, and the terms with a shift of 1 become means over shifts of 1 to k, with the
    weights of Bin(k, q) above 0 (Ganesh 2024). There L has no closed inverse; Newton's method
    finds it. Weights beyond a tail of exp(-50) count as an infinite loss.

    Args:
        sigma: Noise multiplier, > 0.
        sample_rate: Probability q in (0, 1] with which an item joins the batch.
        grid: Width of the grid of losses, in nats, > 0.
        items: Number k >= 1 of items that are added or removed together.

    Returns:
        The distribution; its composition with itself is as fast.

    References:
        Doroshenko et al., "Connect the dots: tighter discrete approximations of privacy loss
        distributions", PoPETs 2022(4), arXiv:2207.04380, Algorithm 1. Ganesh, "Tight group-level
        DP guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms", 2024,
        arXiv:2401.10294.
    """
    reach = -sigma * float(special.ndtri(0.5 * math.exp(_LOG_TAIL)))
    group = _Group.of(sigma, sample_rate, items)
    lowest, highest = (group.loss(x) for x in (reach, -reach - group.shifts[-1]))
    removed = _connected(lowest, highest, grid, group.removed)
    if sample_rate == 1.0:
        return PrivacyLossDistribution(removed)
    lowest, highest = (-group.loss(-x) for x in (reach + group.shifts[-1], -reach))
    return PrivacyLossDistribution(removed, _connected(lowest, highest, grid, group.added))


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


@dataclass(frozen=True)
class _Group:
    """Items that are added or removed together, of which some join a step's batch.

    Args:
        sigma: noise multiplier.
        log_out: logarithm of the probability that none of them joins.
        joins: probability that any of them joins.
        shifts: how many of them join, if any does, ``[j]``.
        weights: the probability of each, ``[j]``.
        lost: probability of other numbers, at most exp(-50), which counts as an infinite loss.
    """

    sigma: float
    log_out: float
    joins: float
    shifts: Floats
    weights: Floats
    lost: float

    @classmethod
    def of(cls, sigma: float, rate: float, items: int) -> _Group:
        """Return the items, each of which joins with probability ``rate``."""
        log_out = float(special.xlog1py(items, -rate))
        joins, counts = -math.expm1(log_out), np.arange(1.0, items + 1.0)
        ways = -np.log(items + 1.0) - special.betaln(items - counts + 1.0, counts + 1.0)
        logs = ways + special.xlogy(counts, rate) + special.xlog1py(items - counts, -rate)
        kept = logs > _LOG_TAIL - math.log(items)
        weights = np.exp(logs) / joins
        return cls(sigma, log_out, joins, counts[kept], weights[kept], weights[~kept].sum())

    def loss(self, x: float) -> float:
        """Return the loss at an outcome ``x`` if items that are removed shift it down."""
        terms = -(self.shifts * x + 0.5 * self.shifts**2) / self.sigma**2
        joined = math.log(self.joins) + special.logsumexp(terms, b=self.weights)
        return float(np.logaddexp(self.log_out, joined))

    def removed(self, loss: Floats) -> Floats:
        """Return delta at each epsilon, ``[n]``, if the items are removed."""
        inside = loss > self.log_out
        deltas = -np.expm1(np.minimum(loss, 0.0))
        unsampled = self._unsampled(loss[inside])
        z = -self._outcome(unsampled) / self.sigma
        outside = np.exp(unsampled + special.log_ndtr(z))
        deltas[inside] = self.joins * (self._mean_ndtr(z, 1.0) + self.lost - outside)
        return deltas

    def added(self, loss: Floats) -> Floats:
        """Return delta at each epsilon, ``[n]``, if the items are added."""
        deltas = np.zeros_like(loss)
        inside = loss < -self.log_out
        epsilon = loss[inside]
        z = self._outcome(self._unsampled(-epsilon)) / self.sigma
        with np.errstate(divide="ignore"):  # of underflow, which makes delta larger
            outside = np.exp(epsilon + np.log(self.joins * self._mean_ndtr(z, -1.0)))
        deltas[inside] = -np.expm1(epsilon + self.log_out) * special.ndtr(z) - outside
        return deltas

    def _unsampled(self, loss: Floats) -> Floats:
        """Return L, the loss if some items joined, ``[n]``; for losses above ``log_out``."""
        return loss + np.log(-np.expm1(self.log_out - loss)) - math.log(self.joins)

    def _mean_ndtr(self, z: Floats, sign: float) -> Floats:
        """Return the mean over the shifts of the normal distribution function, ``[n]``."""
        found: Floats = np.dot(
            self.weights, special.ndtr(z + sign * self.shifts[:, None] / self.sigma)
        )
        return found

    def _outcome(self, unsampled: Floats) -> Floats:
        """Return the outcome, ``[n]``, whose loss of joining is ``unsampled``."""
        # The largest term alone has the loss here, so that the sum has at least that.
        shifts, logs, square = self.shifts[:, None], np.log(self.weights)[:, None], self.sigma**2
        target = np.maximum(unsampled, -_LEAST)
        x: Floats = np.min((square * (target - logs) + 0.5 * shifts**2) / shifts, axis=0)
        for _ in range(_NEWTON_STEPS if len(shifts) > 1 else 0):  # convex: it falls to the root
            terms = np.exp(logs + (shifts * x - 0.5 * shifts**2) / square - target)
            total = terms.sum(axis=0)
            x -= square * np.log(total) * total / (shifts * terms).sum(axis=0)
        return x
