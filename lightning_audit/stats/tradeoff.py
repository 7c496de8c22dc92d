"""Trade-off functions: the least type II error that a claim allows at each type I error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    Floats,
    closed_unit,
    delta_in_unit,
    each,
    like_input,
    non_negative,
)

# --- Conversions between mu-GDP and (epsilon, delta)-DP.

_SQRT2 = np.sqrt(2.0)
#: Log of the normal density's denominator.
LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)

# Below this mu the difference of two Mills ratios loses digits, and the quadrature does not.
_NARROW = 0.1
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_NODES, _WEIGHTS = 0.5 * (_NODES + 1.0), 0.5 * _WEIGHTS

# Newton's error squares at each step: after a relative step of this size it is negligible.
_LAST_STEP = 1e-10
_MAX_ITERATIONS = 100
# From this mu on, Newton's starting point is accurate to the last digit, and a is only rounding.
_WIDE = 1e8


def gaussian_delta(epsilon: float | NDArray[Any], mu: float | NDArray[Any]) -> float | Floats:
    r"""Return the privacy curve of mu-GDP: the smallest delta at ``epsilon``.

    Exact for the Gaussian mechanism, and mu-GDP is equivalent to (epsilon, delta(epsilon))-DP for
    all epsilon >= 0 together. The relative error is at most 1e-12 for mu in [1e-3, 50] and delta in
    [1e-12, 0.5].

    .. math:: \delta(\varepsilon) = \Phi(a) - e^{\varepsilon} \Phi(b)
        = \varphi(a)\,[M(-a) - M(-b)], \qquad
        a = \tfrac{\mu}{2} - \tfrac{\varepsilon}{\mu},\quad b = a - \mu

    with the Mills ratio M(x) = Phi(-x) / phi(x), computed as a scaled complementary error function,
    so that neither term under- or overflows. For mu < 0.1 their difference is computed as the
    integral of -M' = 1 - x M(x), in which no digits cancel.

    Args:
        epsilon: Epsilon >= 0, infinity included; a number or an array.
        mu: Parameter of Gaussian DP >= 0, sensitivity over noise standard deviation; infinity means
            no privacy. Broadcast against ``epsilon``.

    Returns:
        Delta in [0, 1]: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If ``epsilon`` or ``mu`` is negative or not a number.

    Example:
        >>> f"{gaussian_delta(4.37717810, 1.0):.4e}"
        '1.0000e-05'
        >>> gaussian_delta(1.0, 0.0)
        0.0

    References:
        Balle and Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018,
        arXiv:1805.06530, Theorem 8. Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84,
        2022, arXiv:1905.02383, Corollary 2.13.
    """
    eps, m = np.broadcast_arrays(
        each(non_negative, "epsilon", epsilon), each(non_negative, "mu", mu)
    )
    delta = np.zeros(m.shape)
    delta[np.isinf(m)] = 1.0
    # delta <= Phi(a), which is below the smallest double from a = -40 on.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        seen = (m > 0) & np.isfinite(m) & (m / 2 - eps / m > -40.0)
    delta[seen] = np.exp(_log_delta(eps[seen], m[seen]))
    # The logarithm of a number near one may round to slightly above zero.
    return like_input(np.minimum(delta, 1.0))


def gaussian_epsilon(mu: float | NDArray[Any], delta: float | NDArray[Any]) -> float | Floats:
    """Return the smallest epsilon >= 0 for which mu-GDP implies (epsilon, delta)-DP.

    The inverse of `gaussian_delta` in epsilon, exact for the Gaussian mechanism. A lower bound on
    mu gives a lower bound on epsilon only for a Gaussian mechanism: for any other, a rejected
    mu-GDP does not refute a single (epsilon, delta). The relative error is at most 1e-12 for mu in
    [1e-3, 50] and delta in [1e-12, 0.5], except near delta = 2 Phi(mu/2) - 1, where epsilon goes to
    zero and the error is relative to mu. The sources are those of `gaussian_delta`.

    Args:
        mu: Parameter of Gaussian DP >= 0; 0 gives 0, infinity gives infinity. A number or an array.
        delta: Delta in (0, 1). Broadcast against ``mu``.

    Returns:
        Epsilon >= 0: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If ``mu`` is negative or not a number, or ``delta`` is not in (0, 1).

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 8)
        4.3771781
        >>> gaussian_epsilon(np.array([0.0, 0.1, 10.0, np.inf]), 1e-5).round(6)
        array([ 0.      ,  0.340669, 91.81729 ,       inf])
    """
    m, d = np.broadcast_arrays(each(non_negative, "mu", mu), each(delta_in_unit, "delta", delta))
    epsilon = np.zeros(m.shape)
    with np.errstate(over="ignore"):
        unbounded = np.isinf(m * m)
    epsilon[unbounded] = np.inf
    # delta(0) = 2 Phi(mu/2) - 1: from there on epsilon = 0 suffices.
    solve = ~unbounded & (d < scipy.special.erf(m / (2 * _SQRT2)))
    epsilon[solve] = _solve_epsilon(m[solve], d[solve])
    return like_input(epsilon)


def gaussian_mu(epsilon: float | NDArray[Any], delta: float | NDArray[Any]) -> float | Floats:
    """Return the mu whose Gaussian mechanism is exactly (epsilon, delta)-DP.

    It is the largest mu for which mu-GDP implies (epsilon, delta)-DP, and the inverse of
    `gaussian_epsilon` in mu. The converse is false: (epsilon, delta)-DP does not imply mu-GDP. The
    relative error is at most 1e-12 for mu in [1e-3, 50] and delta in [1e-12, 0.5].

    Args:
        epsilon: Epsilon >= 0; infinity gives infinity. A number or an array.
        delta: Delta in (0, 1). Broadcast against ``epsilon``.

    Returns:
        mu > 0: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If ``epsilon`` is negative or not a number, or ``delta`` is not in (0, 1).

    Example:
        >>> round(gaussian_mu(8.0, 1e-5), 4)
        1.666
        >>> gaussian_mu(np.array([1.0, 4.0]), 1e-5).round(4)
        array([0.2681, 0.9249])
    """
    eps, d = np.broadcast_arrays(
        each(non_negative, "epsilon", epsilon), each(delta_in_unit, "delta", delta)
    )
    mu = np.full(eps.shape, np.inf)
    solve = np.isfinite(eps)
    mu[solve] = _solve_mu(eps[solve], d[solve])
    return like_input(mu)


def _log_delta(eps: Floats, mu: Floats) -> Floats:
    """Return the log of the privacy curve of mu-GDP, for finite eps >= 0 and finite mu > 0."""
    a = mu / 2 - eps / mu
    b = -mu / 2 - eps / mu
    # Each form is evaluated everywhere, and is meaningless outside its own range.
    with np.errstate(all="ignore"):
        log_phi = -0.5 * a * a - LOG_SQRT_2PI
        x = -a[..., None] + mu[..., None] * _NODES
        narrow = log_phi + np.log(mu) + np.log((1.0 - x * mills(x)) @ _WEIGHTS)
        tail = log_phi + np.log(mills(-a) - mills(-b))
        # Phi(a) is near one here, where the Mills ratio of -a would overflow.
        bulk = np.log(scipy.special.ndtr(a) - np.exp(log_phi) * mills(-b))
    return np.asarray(np.where(mu < _NARROW, narrow, np.where(a < 1.0, tail, bulk)))


def mills(x: Floats) -> Floats:
    """Return the Mills ratio Phi(-x) / phi(x)."""
    ratio: Floats = np.sqrt(np.pi / 2.0) * scipy.special.erfcx(x / _SQRT2)
    return ratio


def _solve_epsilon(mu: Floats, delta: Floats) -> Floats:
    """Solve for epsilon by Newton's method, for finite mu > 0 and delta < delta(0).

    Log delta is concave and decreasing in epsilon: from above the root there is no overshooting.
    """
    log_target = np.log(delta)
    # delta(eps) <= Phi(a), so the solution of Phi(a) = delta is above the root.
    eps = np.maximum(mu * mu / 2 - mu * scipy.special.ndtri(delta), 0.0)
    wide = mu > _WIDE
    for _ in range(_MAX_ITERATIONS):
        log_delta = _log_delta(eps, mu)
        a = mu / 2 - eps / mu
        slope = np.exp(-0.5 * a * a - LOG_SQRT_2PI - log_delta) * mills(mu - a)
        step = (log_delta - log_target) / np.where(wide, 1.0, slope)
        step[wide] = 0.0
        eps = np.maximum(eps + step, 0.0)
        if np.all(np.abs(step) <= _LAST_STEP * eps):
            break
    return eps


def _solve_mu(eps: Floats, delta: Floats) -> Floats:
    """Solve for log mu by Newton's method, for finite eps >= 0, from the left.

    Both Phi(a) = delta and the solution for epsilon = 0 are lower bounds on mu.
    """
    log_target = np.log(delta)
    z = -scipy.special.ndtri(delta)
    root = np.sqrt(z * z + 2 * eps)
    # Both forms of the quadratic formula, each where it adds numbers of one sign.
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = np.where(z > 0, 2 * eps / (z + root), root - z)
    log_mu = np.log(np.maximum(tail, 2 * _SQRT2 * scipy.special.erfinv(delta)))
    wide = log_mu > np.log(_WIDE)
    for _ in range(_MAX_ITERATIONS):
        mu = np.exp(log_mu)
        log_delta = _log_delta(eps, mu)
        a = mu / 2 - eps / mu
        slope = np.exp(-0.5 * a * a - LOG_SQRT_2PI - log_delta) * mu
        # Far below the root, log delta may be so steep or flat that a full step overflows.
        step = np.clip((log_target - log_delta) / np.where(wide, 1.0, slope), -1.0, 1.0)
        step[wide] = 0.0
        log_mu = log_mu + step
        if np.all(np.abs(step) <= _LAST_STEP):
            break
    return np.asarray(np.exp(log_mu))


# --- Trade-off functions given by finitely many points: the convex polygon below them.

# Number of rounds in which every second point that is not a corner is removed at once.
_PASSES = 40


class PiecewiseTradeoff:
    r"""Largest trade-off function that is on or below given points (alpha, beta).

    The points, with the end points (0, 1) and (1, 0) of the test that ignores its data, are
    replaced by their lower convex hull: a test that chooses between two others by a coin reaches
    all error rates between theirs.

    .. math:: f = \max\{g \text{ convex, non-increasing} : g(\alpha_i) \le \beta_i\ \forall i,\;
        g(0) \le 1,\; g(1) \le 0\}

    Its privacy curve is a maximum over the corners, exact up to rounding (1e-15 in delta),

    .. math:: \delta(\varepsilon) = \max_i\, 1 - \beta_i - e^{\varepsilon} \alpha_i .

    Args:
        alpha: Type I error rates of the points in [0, 1], ``[m]``, in any order.
        beta: Type II error rates in [0, 1], ``[m]``.

    Attributes:
        alphas: Corners of the graph in increasing order, ``[k]``; read-only.
        betas: Type II error rates there, decreasing to 0; read-only.

    Raises:
        ValueError: If a rate is not in [0, 1], or the two arrays are not of one length.

    Example:
        Attacks with these error rates were seen:

        >>> f = PiecewiseTradeoff([0.1, 0.5, 0.4], [0.5, 0.1, 0.4])
        >>> f.alphas, f.betas
        (array([0. , 0.1, 0.5, 1. ]), array([1. , 0.5, 0.1, 0. ]))
        >>> round(f(0.3), 6), round(f.delta_at(0.0), 6), round(f.epsilon_at(0.1), 6)
        (0.3, 0.4, 1.386294)

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        Propositions 2.2 and 2.12.
    """

    def __init__(self, alpha: ArrayLike, beta: ArrayLike) -> None:
        rates = [
            each(closed_unit, name, np.asarray(values, dtype=np.float64))
            for name, values in (("alpha", alpha), ("beta", beta))
        ]
        if rates[0].ndim != 1 or rates[0].shape != rates[1].shape:
            raise ValueError(
                f"alpha has shape {rates[0].shape} and beta {rates[1].shape}, must be one [m] for "
                "both; give the two error rates of each point."
            )
        x = np.concatenate([[0.0], rates[0], [1.0]])
        y = np.concatenate([[1.0], rates[1], [0.0]])
        # Of points with equal alpha the lowest comes first, and the others turn out to be above it.
        order = np.lexsort((y, x))
        self.alphas, self.betas = _lower_hull(x[order], y[order])
        with np.errstate(over="ignore"):
            slopes = np.diff(self.betas) / np.diff(self.alphas)
        # Between corners that are nearly collinear, rounding may disturb the order.
        self._steepness: Floats = np.minimum.accumulate(-slopes)
        for values in (self.alphas, self.betas, self._steepness):
            values.flags.writeable = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.alphas)} corners)"

    def __call__(self, alpha: float | NDArray[Any]) -> float | Floats:
        """Return the type II error beta at the type I error ``alpha`` in [0, 1]."""
        rates = each(closed_unit, "alpha", alpha)
        return like_input(np.asarray(np.interp(rates, self.alphas, self.betas), dtype=np.float64))

    def delta_at(self, epsilon: float | NDArray[Any]) -> float | Floats:
        """Return the privacy curve 1 + f*(-e^epsilon): the smallest delta at ``epsilon`` >= 0."""
        eps = each(non_negative, "epsilon", epsilon)
        with np.errstate(over="ignore"):
            factor = np.exp(eps)
        # The corner that a line of slope -factor touches from below.
        corner = np.searchsorted(-self._steepness, -factor, side="left")
        return like_input(self._delta(factor, corner))

    def epsilon_at(self, delta: float | NDArray[Any]) -> float | Floats:
        """Return the smallest epsilon >= 0 at ``delta`` in (0, 1); infinite if there is none."""
        wanted = each(delta_in_unit, "delta", delta)
        # Deltas at the slopes of the edges, increasing along the corners; between two adjacent
        # ones the corner in between touches the line of the wanted delta.
        edges = np.arange(len(self._steepness))
        at_edges = np.maximum.accumulate(self._delta(self._steepness, edges))
        corner = np.searchsorted(at_edges, wanted, side="left")
        gain = 1.0 - self.betas[corner] - wanted
        with np.errstate(divide="ignore", invalid="ignore"):
            solved = np.log(gain) - np.log(self.alphas[corner])
        # No gain: this corner is below delta for every epsilon. At alpha = 0 it stays above it.
        return like_input(np.where(gain > 0, np.maximum(solved, 0.0), 0.0))

    def _delta(self, factor: Floats, corner: NDArray[np.intp]) -> Floats:
        alpha = self.alphas[corner]
        # At alpha = 0 the factor may be infinite.
        with np.errstate(invalid="ignore"):
            cost = np.where(alpha > 0, factor * alpha, 0.0)
        delta: Floats = np.maximum(1.0 - self.betas[corner] - cost, 0.0)
        return delta


def _lower_hull(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the corners of the lower convex hull, for points sorted by (x, y)."""
    first = np.append(True, x[1:] != x[:-1])
    x, y = x[first], y[first]
    for parity in range(_PASSES):
        # A point on or above the line of two others is not a corner. Of two adjacent points only
        # one is removed at a time: if rounding decides, each may seem to be above the other.
        kept = np.full(len(x), True)
        kept[1:-1] = _is_below(x[:-2], y[:-2], x[1:-1], y[1:-1], x[2:], y[2:])
        if kept.all():
            return x, y
        kept[parity % 2 :: 2] = True
        x, y = x[kept], y[kept]
    corners = hull_of_few(x.tolist(), y.tolist())
    return x[corners], y[corners]


def hull_of_few(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Return the positions of the lower hull's corners, point by point: a microsecond for each."""
    kept: list[int] = []
    for i, (xi, yi) in enumerate(zip(x, y, strict=True)):
        while len(kept) > 1:
            last, before = kept[-1], kept[-2]
            if _is_below(x[before], y[before], x[last], y[last], xi, yi):
                break
            kept.pop()
        kept.append(i)
    return kept


def _is_below(x0: Any, y0: Any, x1: Any, y1: Any, x2: Any, y2: Any) -> Any:
    """Return whether the second point is below the line through the first and the third."""
    return (y1 - y0) * (x2 - x0) < (y2 - y0) * (x1 - x0)


# --- Trade-off function of one Poisson-subsampled Gaussian step, in closed form.

Direction = Literal["both", "remove", "add"]

_LAST_SUBSAMPLED_STEP = 1e-14
_MAX_SUBSAMPLED_ITERATIONS = 200


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
        left = scipy.special.ndtr(np.asarray(-self._mu / 2))
        right = self._remove(left)
        line = left + right - rates
        # Each form is evaluated where it is valid; elsewhere it gets a placeholder.
        above = np.where(rates > right, rates, 1.0)
        upper = np.where(rates > right, self._add(above), line)
        return like_input(np.where(rates < left, self._remove(rates), upper))

    def delta_at(self, epsilon: float | NDArray[Any]) -> float | Floats:
        """Return the privacy curve 1 + f*(-e^epsilon): the smallest delta at ``epsilon`` >= 0."""
        eps = each(non_negative, "epsilon", epsilon)
        if self.direction == "add":
            return like_input(self._delta_add(eps))
        unsampled = gaussian_delta(self._unsampled(eps), self._mu)
        return like_input(np.asarray(self.sample_rate * unsampled))

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
        gaussian = scipy.special.ndtr(-scipy.special.ndtri(alpha) - self._mu)
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
        u_low = sign * scipy.special.ndtri_exp(log_target)
        u_high = u_low + mu
        u = u_low + q * mu
        for _ in range(_MAX_SUBSAMPLED_ITERATIONS):
            x = sign * u
            shifted = x - sign * mu
            mass = (1.0 - q) * scipy.special.ndtr(x) + q * scipy.special.ndtr(shifted)
            slope = (1.0 - q) * np.exp(-0.5 * x * x) + q * np.exp(-0.5 * shifted * shifted)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                excess = sign * (np.log(mass) - log_target)
                following = u - excess * mass / (slope / np.sqrt(2.0 * np.pi))
            u_low, u_high = np.where(excess < 0, u, u_low), np.where(excess < 0, u_high, u)
            inside = (following >= u_low) & (following <= u_high)
            following = np.where(inside, following, 0.5 * (u_low + u_high))
            done = np.abs(following - u) <= _LAST_SUBSAMPLED_STEP * (1.0 + np.abs(u))
            u = following
            if np.all(done):
                break
        ends = np.where(alpha == 0, 1.0, 0.0)
        return np.asarray(np.where((alpha == 0) | (alpha == 1), ends, scipy.special.ndtr(-u)))

    def _delta_add(self, epsilon: Floats) -> Floats:
        q = self.sample_rate
        # The first form cancels for large epsilon, the second for small q.
        near, far = 1.0 + np.expm1(-epsilon) / q, (np.exp(-epsilon) - (1.0 - q)) / q
        rest = np.maximum(np.where(epsilon < 0.5, near, far), 0.0)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            unsampled = -np.log(rest)
            # q t e^epsilon = 1 - (1 - q) e^epsilon
            factor = q * np.exp(epsilon - unsampled)
        delta = gaussian_delta(np.maximum(unsampled, 0.0), self._mu)
        return np.asarray(np.where((rest > 0) & (delta > 0), factor * delta, 0.0))

    def _unsampled(self, epsilon: Floats) -> Floats:
        """Return ln(1 + (e^epsilon - 1) / q) without overflow."""
        # The second form, e^epsilon (1 - (1 - q) e^-epsilon) / q, would cancel for small epsilon.
        q = self.sample_rate
        small = epsilon < 1.0
        near = np.log1p(np.expm1(np.where(small, epsilon, 0.0)) / q)
        far = epsilon - np.log(q) + np.log1p(-(1.0 - q) * np.exp(-np.maximum(epsilon, 1.0)))
        return np.asarray(np.where(small, near, far))

    def _epsilon_remove(self, delta: Floats) -> Floats:
        q = self.sample_rate
        unsampled = gaussian_epsilon(self._mu, delta / q)
        small = unsampled < 1.0
        near = np.log1p(q * np.expm1(np.where(small, unsampled, 0.0)))
        far = unsampled + np.log(q) + np.log1p((1.0 - q) / q * np.exp(-unsampled))
        return np.asarray(np.where(small, near, far))

    def _epsilon_add(self, delta: Floats, upper: Floats) -> Floats:
        """Bisect for the "add" curve, below the solution of the "remove" curve."""
        low, high = np.zeros(delta.shape), upper
        for _ in range(_MAX_SUBSAMPLED_ITERATIONS):
            middle = 0.5 * (low + high)
            above = self._delta_add(middle) > delta
            low, high = np.where(above, middle, low), np.where(above, high, middle)
            if np.all(high - low <= _LAST_SUBSAMPLED_STEP * high):
                break
        return high


# --- Trade-off functions: the least type II error that a claim allows at each type I error.


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
        return like_input(scipy.special.ndtr(-scipy.special.ndtri(rates) - self.mu))

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
