"""Trade-off functions: the least type II error that a claim allows at each type I error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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

__all__ = ["ApproxDPTradeoff", "GaussianTradeoff", "TradeoffFunction"]


@runtime_checkable
class TradeoffFunction(Protocol):
    """A trade-off function f: the least type II error beta of any test at type I error alpha.

    A mechanism is f-DP if every test between neighboring data sets has beta >= f(alpha). Valid
    functions are convex, continuous, non-increasing, with f(alpha) <= 1 - alpha.

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        Proposition 2.2.
    """

    def __call__(self, alpha: float | NDArray[Any]) -> float | Floats:
        """Return beta = f(alpha) for alpha in [0, 1]."""
        ...


@dataclass(frozen=True)
class GaussianTradeoff:
    r"""Trade-off function of mu-GDP, the test of N(0, 1) against N(mu, 1).

    .. math:: G_\mu(\alpha) = \Phi(\Phi^{-1}(1 - \alpha) - \mu)

    Args:
        mu: Parameter of Gaussian DP, finite and >= 0: sensitivity over noise standard deviation.

    Raises:
        ValueError: If ``mu`` is negative, infinite or not a number.

    Example:
        >>> f = GaussianTradeoff(mu=1.0)
        >>> round(f(0.05), 4), round(f.epsilon_at(1e-5), 4)
        (0.7405, 4.3772)

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        Definition 2.6 and Corollary 2.13.
    """

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _validate.non_negative("mu", self.mu))

    def __call__(self, alpha: float | NDArray[Any]) -> float | Floats:
        """Return the type II error beta at the type I error ``alpha`` in [0, 1]."""
        rates = each(closed_unit, "alpha", alpha)
        return like_input(special.ndtr(-special.ndtri(rates) - self.mu))

    def delta_at(self, epsilon: float | NDArray[Any]) -> float | Floats:
        """Return the privacy curve 1 + f*(-e^epsilon): the smallest delta at ``epsilon`` >= 0."""
        return gaussian_delta(epsilon, self.mu)

    def epsilon_at(self, delta: float | NDArray[Any]) -> float | Floats:
        """Return the smallest epsilon >= 0 at ``delta`` in (0, 1)."""
        return gaussian_epsilon(self.mu, delta)


@dataclass(frozen=True)
class ApproxDPTradeoff:
    r"""Trade-off function equivalent to (epsilon, delta)-DP.

    .. math:: f_{\varepsilon,\delta}(\alpha) = \max\{0,\; 1 - \delta - e^{\varepsilon} \alpha,\;
        e^{-\varepsilon} (1 - \delta - \alpha)\}

    Its privacy curve is the largest 1 - beta - e^t alpha over the corners of the graph,

    .. math:: \delta(t) = \delta
        + (1 - \delta)\, \frac{1 - e^{-\max(\varepsilon - t, 0)}}{1 + e^{-\varepsilon}} .

    Args:
        epsilon: Epsilon of the claim, finite and >= 0.
        delta: Delta of the claim in [0, 1).

    Raises:
        ValueError: If ``epsilon`` is negative, infinite or not a number, or ``delta`` is not in
            [0, 1).

    Example:
        >>> f = ApproxDPTradeoff(epsilon=1.0, delta=0.1)
        >>> round(f(0.0), 6), round(f.delta_at(1.0), 6), round(f.epsilon_at(0.1), 6)
        (0.9, 0.1, 1.0)
        >>> f.epsilon_at(0.05)
        inf

    References:
        Wasserman and Zhou, "A statistical framework for differential privacy", JASA 105, 2010,
        arXiv:0811.2501, Theorem 2.4. Dong, Roth and Su, "Gaussian differential privacy", JRSS B
        84, 2022, arXiv:1905.02383, Propositions 2.5 and 2.12.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.non_negative("epsilon", self.epsilon))
        if self.delta != 0:
            _validate.open_unit("delta", self.delta, "or 0 for pure DP")
        object.__setattr__(self, "delta", float(self.delta))

    def __call__(self, alpha: float | NDArray[Any]) -> float | Floats:
        """Return the type II error beta at the type I error ``alpha`` in [0, 1]."""
        rates = each(closed_unit, "alpha", alpha)
        rest = 1.0 - self.delta
        # e^epsilon alpha may overflow; the maximum with zero is still right.
        with np.errstate(over="ignore"):
            steep = rest - np.exp(self.epsilon + np.log(np.maximum(rates, np.finfo(float).tiny)))
        flat = np.exp(-self.epsilon) * (rest - rates)
        return like_input(np.where(rates > 0, np.maximum(np.maximum(steep, flat), 0.0), rest))

    def delta_at(self, epsilon: float | NDArray[Any]) -> float | Floats:
        """Return the privacy curve 1 + f*(-e^epsilon): the smallest delta at ``epsilon`` >= 0."""
        short = np.maximum(self.epsilon - each(non_negative, "epsilon", epsilon), 0.0)
        gap = -np.expm1(-short) / (1.0 + np.exp(-self.epsilon))
        return like_input(self.delta + (1.0 - self.delta) * gap)

    def epsilon_at(self, delta: float | NDArray[Any]) -> float | Floats:
        """Return the smallest epsilon >= 0 at ``delta`` in (0, 1); infinite below that claimed."""
        wanted = each(delta_in_unit, "delta", delta)
        gap = (wanted - self.delta) / (1.0 - self.delta) * (1.0 + np.exp(-self.epsilon))
        with np.errstate(divide="ignore", invalid="ignore"):
            solved = np.maximum(self.epsilon + np.log1p(-np.minimum(gap, 1.0)), 0.0)
        return like_input(np.where(wanted < self.delta, np.inf, solved))
