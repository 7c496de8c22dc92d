"""Trade-off function of one Poisson-subsampled Gaussian step, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    Floats,
    closed_unit,
    delta_in_unit,
    each,
    like_input,
    non_negative,
)
from lightning_audit.stats.tradeoff.gdp import gaussian_delta, gaussian_epsilon

__all__ = ["Direction", "SubsampledGaussianTradeoff"]

Direction = Literal["both", "remove", "add"]

_LAST_STEP = 1e-14
_MAX_ITERATIONS = 200


@dataclass(frozen=True)
class SubsampledGaussianTradeoff:
    r"""Trade-off function of one step of the Poisson-subsampled Gaussian mechanism.

    A record is in the batch with probability q and then shifts the sum by one sensitivity; the
    noise has the standard deviation s = ``noise_multiplier`` times that. The test is that of the
    record out, Q = N(0, s^2), against the record in, P = (1 - q) N(0, s^2) + q N(1, s^2):

    .. math:: T_{\text{remove}}(\alpha) = T(Q, P)(\alpha) = (1 - q)(1 - \alpha)
        + q\, G_{1/s}(\alpha), \qquad T_{\text{add}} = T(P, Q) = T_{\text{remove}}^{-1}

    and, if tests in both directions are allowed, f = min(T, T^-1)**, which is T_remove up to the
    fixed point x = Phi(-1/(2s)) of G, T_add from T_remove(x) on, and a line of slope -1 between.
    The privacy curves, with d that of the unsampled Gaussian,

    .. math:: \delta_{\text{remove}}(\varepsilon) = q\, d(\ln(1 + (e^{\varepsilon} - 1) / q)),
        \qquad \delta_{\text{add}}(\varepsilon) = q\, t\, e^{\varepsilon}\, d(-\ln t), \quad
        t = 1 - (1 - e^{-\varepsilon}) / q

    have delta_remove >= delta_add for epsilon >= 0. Exact up to rounding; the inverses have a
    relative error below 1e-12.

    Args:
        noise_multiplier: Noise standard deviation over sensitivity, finite and > 0.
        sample_rate: Probability q in (0, 1] with which each record joins the batch.
        direction: "remove", "add" or "both".

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> f = SubsampledGaussianTradeoff(noise_multiplier=0.3**0.5, sample_rate=0.25)
        >>> round(f(0.1), 4), round(f.epsilon_at(1e-5), 4)
        (0.7483, 6.9533)

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        section 4. Balle, Barthe and Gaboardi, "Privacy amplification by subsampling", NeurIPS 2018,
        arXiv:1807.01647, Theorem 8.
    """

    noise_multiplier: float
    sample_rate: float
    direction: Direction = "both"

    def __post_init__(self) -> None:
        sigma = _validate.positive("noise_multiplier", self.noise_multiplier)
        rate = _validate.rate("sample_rate", self.sample_rate, "use 1.0 for full batches")
        _validate.one_of("direction", self.direction, ("both", "remove", "add"))
        object.__setattr__(self, "noise_multiplier", sigma)
        object.__setattr__(self, "sample_rate", rate)

    @property
    def _mu(self) -> float:
        return 1.0 / self.noise_multiplier

    def __call__(self, alpha: float | NDArray[Any]) -> float | Floats:
        """Return the type II error beta at the type I error ``alpha`` in [0, 1]."""
        rates = each(closed_unit, "alpha", alpha)
        if self.direction == "remove":
            return like_input(self._remove(rates))
        if self.direction == "add":
            return like_input(self._add(rates))
        left = special.ndtr(np.asarray(-self._mu / 2))
        right = self._remove(left)
        line = left + right - rates
        # Each form is evaluated where it is valid; elsewhere it gets a placeholder.
        above = np.where(rates > right, rates, 1.0)
        upper = np.where(rates > right, self._add(above), line)
        return like_input(np.where(rates < left, self._remove(rates), upper))

    def delta_at(self, epsilon: float | NDArray[Any]) -> float | Floats:
        """Return the privacy curve 1 + f*(-e^epsilon): the smallest delta at ``epsilon`` >= 0."""
        eps = each(non_negative, "epsilon", epsilon)
        return like_input(
            self._delta_add(eps) if self.direction == "add" else self._delta_remove(eps)
        )

    def epsilon_at(self, delta: float | NDArray[Any]) -> float | Floats:
        """Return the smallest epsilon >= 0 at ``delta`` in (0, 1)."""
        wanted = each(delta_in_unit, "delta", delta)
        epsilon = np.zeros(wanted.shape)
        solve = wanted < self.sample_rate
        epsilon[solve] = self._epsilon_remove(wanted[solve])
        if self.direction == "add":
            epsilon[solve] = self._epsilon_add(wanted[solve], epsilon[solve])
        return like_input(epsilon)

    def _remove(self, alpha: Floats) -> Floats:
        q = self.sample_rate
        gaussian = special.ndtr(-special.ndtri(alpha) - self._mu)
        result: Floats = (1.0 - q) * (1.0 - alpha) + q * gaussian
        return result

    def _add(self, alpha: Floats) -> Floats:
        """Return the inverse of `_remove`: solve for the threshold u, in units of the noise.

        Newton's method, within a bracket, on log alpha for the lower half and on log(1 - alpha)
        for the upper half, so that both ends are accurate.
        """
        q, mu = self.sample_rate, self._mu
        lower = alpha <= 0.5
        sign = np.where(lower, 1.0, -1.0)
        log_target = np.log(np.clip(np.where(lower, alpha, 1.0 - alpha), 1e-300, 1.0))
        u_low = sign * special.ndtri_exp(log_target)
        u_high = u_low + mu
        u = u_low + q * mu
        for _ in range(_MAX_ITERATIONS):
            x = sign * u
            shifted = x - sign * mu
            mass = (1.0 - q) * special.ndtr(x) + q * special.ndtr(shifted)
            slope = (1.0 - q) * np.exp(-0.5 * x * x) + q * np.exp(-0.5 * shifted * shifted)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                excess = sign * (np.log(mass) - log_target)
                following = u - excess * mass / (slope / np.sqrt(2.0 * np.pi))
            u_low, u_high = np.where(excess < 0, u, u_low), np.where(excess < 0, u_high, u)
            inside = (following >= u_low) & (following <= u_high)
            following = np.where(inside, following, 0.5 * (u_low + u_high))
            done = np.abs(following - u) <= _LAST_STEP * (1.0 + np.abs(u))
            u = following
            if np.all(done):
                break
        ends = np.where(alpha == 0, 1.0, 0.0)
        result: Floats = np.where((alpha == 0) | (alpha == 1), ends, special.ndtr(-u))
        return result

    def _delta_remove(self, epsilon: Floats) -> Floats:
        delta = np.asarray(gaussian_delta(self._unsampled(epsilon), self._mu))
        return np.asarray(self.sample_rate * delta)

    def _delta_add(self, epsilon: Floats) -> Floats:
        q = self.sample_rate
        rest = np.maximum(1.0 + np.expm1(-epsilon) / q, 0.0)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            unsampled = -np.log(rest)
            # q t e^epsilon = 1 - (1 - q) e^epsilon
            factor = q * np.exp(epsilon - unsampled)
        delta = gaussian_delta(np.maximum(unsampled, 0.0), self._mu)
        result: Floats = np.where((rest > 0) & (delta > 0), factor * delta, 0.0)
        return result

    def _unsampled(self, epsilon: Floats) -> Floats:
        """Return ln(1 + (e^epsilon - 1) / q) without overflow."""
        # The second form, e^epsilon (1 - (1 - q) e^-epsilon) / q, would cancel for small epsilon.
        q = self.sample_rate
        small = epsilon < 1.0
        near = np.log1p(np.expm1(np.where(small, epsilon, 0.0)) / q)
        far = epsilon - np.log(q) + np.log1p(-(1.0 - q) * np.exp(-np.maximum(epsilon, 1.0)))
        result: Floats = np.where(small, near, far)
        return result

    def _epsilon_remove(self, delta: Floats) -> Floats:
        q = self.sample_rate
        unsampled = gaussian_epsilon(self._mu, delta / q)
        small = unsampled < 1.0
        near = np.log1p(q * np.expm1(np.where(small, unsampled, 0.0)))
        far = unsampled + np.log(q) + np.log1p((1.0 - q) / q * np.exp(-unsampled))
        result: Floats = np.where(small, near, far)
        return result

    def _epsilon_add(self, delta: Floats, upper: Floats) -> Floats:
        """Bisect for the "add" curve, below the solution of the "remove" curve."""
        low, high = np.zeros(delta.shape), upper
        for _ in range(_MAX_ITERATIONS):
            middle = 0.5 * (low + high)
            above = self._delta_add(middle) > delta
            low, high = np.where(above, middle, low), np.where(above, high, middle)
            if np.all(high - low <= _LAST_STEP * high):
                break
        return high
