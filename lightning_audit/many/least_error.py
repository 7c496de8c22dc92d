"""What a claim says of many trainings: the least mean error rate of any guess of a coin.

Each training has a fair coin: whether its data set holds the canary. If the training has total
variation TV between the two data sets, no rule guesses the coin with a mean error rate below
(1 - TV) / 2, and this number serves every form of claim. The bounds turn a limit of the error
rate back into the parameters of the claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scipy import special

from lightning_audit import _validate
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import Adjacency, epsilon_of_history
from lightning_audit.accounting.phases import Phase, leaking
from lightning_audit.accounting.shuffled_passes import passes_of
from lightning_audit.accounting.spending import epsilon_at_ratio
from lightning_audit.accounting.total_variation import total_variation, unsampled_mu
from lightning_audit.stats._arguments import delta_or_zero
from lightning_audit.stats.outputs.tradeoff_bet import common_error_rate, privacy_curve
from lightning_audit.stats.tradeoff.gdp import gaussian_epsilon
from lightning_audit.stats.tradeoff.tradeoff_functions import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    TradeoffFunction,
)

__all__ = [
    "Claim",
    "Promise",
    "Proved",
    "epsilon_of_any_mechanism",
    "mu_of_error",
    "promise_of",
    "promise_of_history",
]

#: A whole training, a trade-off function, or (epsilon, delta): in this order of power.
Claim = PrivacyClaim | TradeoffFunction | tuple[float, float]
Form = Literal["mechanism", "tradeoff", "epsilon"]

_DELTA = 1e-5
# The solution for the ratio: secants at most, their largest step in its logarithm, its precision.
_MOST_SECANTS, _FAR, _NEAR = 12, 1.5, 1e-3


@dataclass(frozen=True)
class Proved:
    """What an upper limit of the mean error rate proves.

    Args:
        epsilon: Lower bound on epsilon at the delta of the promise, in the form of the claim.
        epsilon_any: Lower bound on epsilon at the same delta for any mechanism.
        mu: The training is not Gaussian DP with a smaller mu.
        ratio: Lower bound on leakage over claim; None if no mechanism is claimed.
    """

    epsilon: float
    epsilon_any: float
    mu: float
    ratio: float | None = None


@dataclass(frozen=True)
class Promise:
    """A claim as the least mean error rate of guesses at fair coins.

    Args:
        form: "mechanism" of noise multiplier, sample rate and steps; "tradeoff" of a trade-off
            function; "epsilon" of (epsilon, delta).
        least_error: Least mean error rate (FNR + FPR) / 2 that the claim allows, in (0, 1/2],
            rounded down where it is computed on a grid.
        delta: Delta at which lower bounds on epsilon are given, in [0, 1).
        words: The claim in words.
        history: Steps of a claimed mechanism, else empty; shuffled batches as passes.
        pair: How the two data sets of the game differ.
        gaussian: Whether the claim is a Gaussian trade-off function.
        epsilon: Claimed epsilon at `delta`, or that which the claim composes to; None if unknown.
    """

    form: Form
    least_error: float
    delta: float
    words: str
    history: tuple[Phase, ...] = ()
    pair: Adjacency = "add_remove"
    gaussian: bool = False
    epsilon: float | None = None

    @property
    def mu(self) -> float:
        """The mu of Gaussian DP with the same least mean error rate."""
        return mu_of_error(self.least_error)

    @property
    def is_gaussian(self) -> bool:
        """Whether a training that is as claimed shows a record as a Gaussian of `mu` does."""
        full = self.form == "mechanism" and all(p.known_rate == 1 for p in self.history)
        return self.gaussian or full

    def proved_at(self, error_upper: float) -> Proved:
        """Return what an upper limit of the mean error rate proves.

        The ratio is that by which every claimed noise multiplier may be divided before the steps
        allow the limit. Full batches are in closed form. Otherwise total variation, which is
        rounded up, is solved for the ratio, and the result is lowered until it is proved.

        Epsilon is that of the claimed steps at the ratio, so it assumes subsampled Gaussian steps
        that leak more than claimed by a constant ratio. For a Gaussian trade-off function it
        assumes Gaussian outputs. For other claims it is `epsilon_of_any_mechanism`.

        Args:
            error_upper: Upper limit of the mean error rate, in [0, 1].

        Returns:
            The lower bounds; 0 where nothing is proved.
        """
        mu, least = mu_of_error(error_upper), epsilon_of_any_mechanism(error_upper, self.delta)
        if self.form == "mechanism":
            ratio = self._ratio_at(error_upper)
            epsilon = epsilon_at_ratio(self.history, ratio, self.delta, self.pair)
            return Proved(epsilon or 0.0, least, mu, ratio)
        if self.gaussian:
            return Proved(float(gaussian_epsilon(mu, self.delta)), least, mu)
        return Proved(least, least, mu)

    def _ratio_at(self, error_upper: float) -> float:
        wanted = 1.0 - 2.0 * error_upper
        if wanted <= 0.0:
            return 0.0
        if all(phase.known_rate == 1 for phase in self.history):
            return mu_of_error(error_upper) / unsampled_mu(self.history, self.pair)
        # The mu of the same total variation is nearly a power of the ratio.
        target, ratio, slope = math.log(mu_of_error(error_upper)), 1.0, 1.0
        at = math.log(self.mu)
        for _ in range(_MOST_SECANTS):
            if abs(target - at) <= _NEAR:
                break
            following = ratio * math.exp(min(max((target - at) / slope, -_FAR), _FAR))
            after = self._log_mu(following)
            if following != ratio and after != at:
                slope = max((after - at) / math.log(following / ratio), 0.1)
            ratio, at = following, after
        while self._log_mu(ratio) > target:
            ratio *= 1.0 - _NEAR
        return ratio

    def _log_mu(self, ratio: float) -> float:
        """Return the log of the mu with the total variation of the steps at a ratio."""
        variation = total_variation(leaking(self.history, ratio), adjacency=self.pair)
        mu = mu_of_error(0.5 * (1.0 - variation))
        return math.log(mu) if mu > 0.0 else -math.inf


def promise_of(
    claim: Claim, *, pair: Adjacency = "add_remove", delta: float | None = None
) -> Promise:
    r"""Return what a claim says of guesses at fair coins.

    The strongest form that is stated counts: (noise multiplier, sample rate, steps), then a
    trade-off function, then (epsilon, delta), whose least mean error rate is

    .. math:: \frac{1 - \mathrm{TV}(\sigma, q, T)}{2}, \qquad \frac12 \min_\alpha
        \big(\alpha + f(\alpha)\big), \qquad \frac{1 - \delta}{1 + e^{\varepsilon}} .

    Args:
        claim: A `PrivacyClaim` with ``noise_multiplier``, ``sample_rate`` and ``steps``, or with
            ``epsilon`` and ``delta``; a trade-off function of the whole training; or the pair
            (epsilon, delta).
        pair: How the two data sets of the game differ: "add_remove" if one holds the canary in
            addition, "replace_one" if the canary takes the position of another record.
        delta: Delta in [0, 1) of the lower bounds on epsilon; None for that of the claim, or 1e-5.

    Returns:
        The promise; for a subsampled mechanism it takes up to some seconds.

    Raises:
        ValueError: If the claim promises nothing that guesses can refute, does not cover the pair,
            or ``delta`` or ``pair`` is out of its range.
        TypeError: If ``claim`` is not a claim.

    Example:
        >>> promise = promise_of((1.0, 1e-5))
        >>> promise.form, round(promise.least_error, 4)
        ('epsilon', 0.2689)
        >>> steps = PrivacyClaim(noise_multiplier=10.0, sample_rate=1.0, steps=100, delta=1e-5)
        >>> promise_of(steps).form, round(promise_of(steps).least_error, 4)  # Phi(-1/2)
        ('mechanism', 0.3085)

    References:
        Wasserman and Zhou, "A statistical framework for differential privacy", JASA 105, 2010,
        arXiv:0811.2501, Theorem 2.4. Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84,
        2022, arXiv:1905.02383, Proposition 2.12.
    """
    _validate.one_of("pair", pair, ("add_remove", "replace_one"))
    stated = None if delta is None else delta_or_zero(delta)
    if isinstance(claim, PrivacyClaim):
        promise = _of_privacy_claim(claim, pair, stated)
    elif isinstance(claim, tuple) and len(claim) == 2:
        promise = _of_epsilon(*claim, pair, None, stated)
    elif callable(claim):
        promise = _of_tradeoff(claim, pair, stated)
    else:
        raise TypeError(
            f"claim={_validate.shown(claim)} must be a PrivacyClaim, a trade-off function or "
            "(epsilon, delta)."
        )
    if not promise.least_error > 0.0:
        raise ValueError(
            f"claim={_validate.shown(claim)} allows an attack without errors, so no number of "
            "trainings can refute it; claim more noise or a smaller epsilon."
        )
    return promise


def epsilon_of_any_mechanism(error_upper: float, delta: float) -> float:
    r"""Return the least epsilon of (epsilon, delta)-DP that allows a mean error rate.

    .. math:: \varepsilon \ge \ln\Big(\frac{1 - \delta}{e} - 1\Big)

    A lower bound for any mechanism, where the mean error rate of an attack is at most e.

    Args:
        error_upper: Upper limit e of the mean error rate, in [0, 1].
        delta: Delta in [0, 1).

    Returns:
        Epsilon >= 0; infinite if e is 0.

    Example:
        >>> round(epsilon_of_any_mechanism(0.1, 1e-5), 4)
        2.1972
    """
    if error_upper <= 0.0:
        return math.inf
    odds = (1.0 - delta) / error_upper - 1.0
    return math.log(odds) if odds > 1.0 else 0.0


def mu_of_error(error: float) -> float:
    """Return the mu >= 0 of Gaussian DP whose least mean error rate, Phi(-mu/2), is ``error``."""
    return max(-2.0 * float(special.ndtri(error)), 0.0)


def _of_privacy_claim(claim: PrivacyClaim, pair: Adjacency, delta: float | None) -> Promise:
    mechanism = (claim.noise_multiplier, claim.sample_rate, claim.steps)
    if claim.adjacency == "replace_one" and pair == "add_remove":
        raise ValueError(
            "pair='add_remove' does not play the claim's adjacency='replace_one': it promises "
            "nothing for data sets of different sizes; replace a record by the canary."
        )
    if any(value is None for value in mechanism):
        if claim.epsilon is None or claim.delta is None:
            raise ValueError(
                f"claim={_validate.shown(claim)} must state noise_multiplier, sample_rate and "
                "steps, or epsilon and delta."
            )
        return _of_epsilon(claim.epsilon, claim.delta, pair, claim.adjacency, delta)
    history = tuple(claim.history())
    if claim.sampling == "shuffled":  # a record enters one batch of each pass
        history = (Phase(history[0].noise_multiplier, 1.0, passes_of(history)),)
    at = _validate.open_unit("delta", claim.delta or _DELTA if delta is None else delta, "as 1e-5")
    words = (
        f"noise multiplier {claim.noise_multiplier:g}, sample rate {claim.sample_rate:g} and "
        f"{claim.steps:,} steps"
    )
    return promise_of_history(history, words, pair, at)


def promise_of_history(
    history: tuple[Phase, ...], words: str, pair: Adjacency, delta: float
) -> Promise:
    """Return the promise of a mechanism, given its phases; the arguments are those of `Promise`."""
    error = 0.5 * (1.0 - total_variation(history, adjacency=pair))
    epsilon = epsilon_of_history(history, delta, adjacency=pair)
    return Promise("mechanism", error, delta, words, history, pair, epsilon=epsilon)


def _of_tradeoff(claim: TradeoffFunction, pair: Adjacency, delta: float | None) -> Promise:
    if isinstance(claim, ApproxDPTradeoff):
        return _of_epsilon(claim.epsilon, claim.delta, pair, pair, delta)
    common_error_rate(claim)  # raises if it is no trade-off function
    error = 0.5 * (1.0 - float(privacy_curve(claim, 0.0)))
    at = _validate.open_unit("delta", _DELTA if delta is None else delta, "as 1e-5")
    gaussian = isinstance(claim, GaussianTradeoff)
    words = f"{claim.mu:g}-GDP" if isinstance(claim, GaussianTradeoff) else f"{claim!r}"
    own = getattr(claim, "epsilon_at", None)
    epsilon = None if own is None else float(own(at))
    return Promise(
        "tradeoff", error, at, words, pair=pair, gaussian=gaussian, epsilon=_finite(epsilon)
    )


def _of_epsilon(
    epsilon: float, delta: float, pair: Adjacency, claimed: Adjacency | None, at: float | None
) -> Promise:
    own = ApproxDPTradeoff(epsilon, delta)
    words = f"({own.epsilon:g}, {own.delta:g})-DP"
    error = (1.0 - own.delta) * float(special.expit(-own.epsilon))
    if pair == "replace_one" and claimed == "add_remove":
        raise ValueError(
            f"pair='replace_one' is not what {words} with adjacency='add_remove' is about; play "
            "pair='add_remove', or claim noise_multiplier, sample_rate and steps."
        )
    at = own.delta if at is None else at
    stated = own.epsilon if at == own.delta else float(own.epsilon_at(at)) if at else None
    return Promise("epsilon", error, at, words, pair=pair, epsilon=_finite(stated))


def _finite(epsilon: float | None) -> float | None:
    return epsilon if epsilon is not None and math.isfinite(epsilon) else None
