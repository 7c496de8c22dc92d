"""Verdict on a claim by many trainings, from the numbers of a report alone: for audit and gate.

**What a claim says of many trainings: the least mean error rate of any guess of a coin.** Each
training has a fair coin: whether its data set holds the canary. If the training has total variation
TV between the two data sets, no rule guesses the coin with a mean error rate below (1 - TV) / 2,
and this number serves every form of claim. The bounds turn a limit of the error rate back into the
parameters of the claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import scipy

from lightning_audit import _validate
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import (
    Adjacency,
    epsilon_of_history,
    passes_of,
    total_variation,
    unsampled_mu,
)
from lightning_audit.accounting.history import Phase, leaking
from lightning_audit.accounting.spending import epsilon_at_ratio
from lightning_audit.checks.check import GUESSED_COINS
from lightning_audit.report.text import NOT_TRIED
from lightning_audit.results.audit_report import (
    AuditReport,
    CheckResult,
    EpsilonBound,
    TrainingsSeen,
    Verdict,
)
from lightning_audit.stats._arguments import delta_or_zero, significance_level
from lightning_audit.stats.binomial import (
    clopper_pearson_upper,
    error_rate_confidence_sequence,
    error_rate_log_e,
)
from lightning_audit.stats.output_tests import common_error_rate, privacy_curve
from lightning_audit.stats.power import flawless_guesses, guesses_for_anytime_power
from lightning_audit.stats.sequential import log_e_of_whole_shares
from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    TradeoffFunction,
    gaussian_epsilon,
)

# --- What a claim says of many trainings: the least mean error rate of any guess of a coin.

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
    return max(-2.0 * float(scipy.special.ndtri(error)), 0.0)


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
    error = (1.0 - own.delta) * float(scipy.special.expit(-own.epsilon))
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


# --- What a number of trainings can refute, before the first of them and after the last.

_POWER = 0.95
#: About how many trainings show both data sets before the first guess: the mean of fair coins.
BEFORE_GUESSES = 3


def before_the_first(promise: Promise, trainings: int, significance: float) -> str:
    """Return what the planned trainings can refute at best, to be shown before the first one.

    Args:
        promise: What is claimed.
        trainings: Number of planned trainings.
        significance: Probability in (0, 1) with which a true claim may be refuted.

    Returns:
        A sentence or two: after how many guesses an attack without errors refutes the claim, how
        many are planned, and what to do if they are too few.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> from lightning_audit.many.verdict import promise_of
        >>> sentence = before_the_first(promise_of((8.0, 1e-5)), 1000, 1e-3)
        >>> print(sentence[:70])
        an attack without errors refutes (8, 1e-05)-DP after 20,844 guesses, a
    """
    planned = _validate.positive_int("trainings", trainings)
    level = significance_level(significance)
    needed = flawless_guesses(promise.least_error, level)
    told = "more than 10^12" if needed is None else f"{needed:,}"
    first = f"an attack without errors refutes {promise.words} after {told} guesses"
    guesses = planned - BEFORE_GUESSES
    if needed is not None and needed <= guesses:
        return f"{first}; {planned:,} trainings are planned"
    most = epsilon_of_any_mechanism(1.0 - level ** (1.0 / max(guesses, 1)), promise.delta)
    instead = (
        "; claim noise_multiplier, sample_rate and steps as PrivacyClaim instead, which takes "
        "fewer trainings"
        if promise.form == "epsilon"
        else "; plan more trainings"
    )
    bound = f", only bound epsilon by at most {most:.2g}" if promise.form == "epsilon" else ""
    return (
        f"{first}, and {planned:,} trainings are planned: the audit cannot refute the claim{bound}"
        f"{instead}"
    )


def trainings_to_pass(
    least_error: float, significance: float, failed: float = 0.0, canaries: int = 1
) -> int | None:
    """Return after how many guessed trainings the power that a PASS needs is reached.

    They are those at which an attack of twice the claimed strength would be found with 95 % power:
    one with the mean error rate of Gaussian DP with twice the mu of the claim. Canaries of one
    training are taken to be guessed all right or all wrong, which varies most.

    Args:
        least_error: Least mean error rate that the claim allows, in (0, 1/2].
        significance: Probability in (0, 1) with which a true claim may be refuted.
        failed: Share of trainings that fail, which are wrong guesses.
        canaries: Number of canaries in each training.

    Returns:
        The number; None if there is none.

    Example:
        >>> from lightning_audit.many.verdict import promise_of
        >>> from lightning_audit.stats.tradeoff import GaussianTradeoff
        >>> trainings_to_pass(promise_of(GaussianTradeoff(1.666)).least_error, 1e-3)
        153
    """
    error = failed + (1.0 - failed) * float(scipy.special.ndtr(-mu_of_error(least_error)))
    if canaries == 1:
        return guesses_for_anytime_power(least_error, error, significance, _POWER)
    return guesses_for_anytime_power(
        least_error, error, 0.5 * significance, _POWER, log_e_of_whole_shares
    )


def error_to_see(least_error: float) -> float:
    """Return the mean error rate up to which an attack sees half of the claimed strength.

    The strength is the mu of Gaussian DP, also for a claim of (epsilon, delta), whose mu is that
    of the best attack that it allows.

    Args:
        least_error: Least mean error rate that the claim allows, in (0, 1/2].

    Returns:
        The rate, in (0, 1/2].

    Example:
        >>> round(error_to_see(0.3085), 4)  # of 1-GDP: Phi(-1/4)
        0.4013
    """
    return float(scipy.special.ndtr(-0.25 * mu_of_error(least_error)))


# --- Verdict on a claim by many trainings, from the numbers of a report alone: for audit and gate.

_ADVICE = (
    "compare clipping, noise, sampling and number of steps of a training with the claim; "
    "PrivacyAudit in one training shows which of them differs"
)
#: Bounds from the error rate: in the form of the claim, and for any mechanism.
OF_GUESSES = ("coins", "coins_any")
#: Bound from the scores and the error rate at any number of looks, for a Gaussian claim.
OF_SCORES = "coins_scores"
#: Part of the stake of that bound on the guesses. With less, it is lower for scores of two values.
ON_GUESSES = 0.7
#: Relative difference of two numbers that were one before they were written.
_ROUNDING = 1e-6
#: Relative or absolute difference of epsilons that were composed on two machines.
_COMPOSED = 0.01


def check_of(seen: TrainingsSeen) -> CheckResult:
    """Return the result of the check of many trainings."""
    refuted = seen.log_e_value >= -math.log(seen.significance)
    status: Literal["violated", "ok", "not_run"] = "ok" if seen.guesses else "not_run"
    status = "violated" if refuted else status
    return CheckResult(
        name=GUESSED_COINS.name,
        kind="mechanism" if seen.form == "mechanism" else "epsilon",
        status=status,
        message=f"{_counted(seen)}; {seen.claim} allow{_s(seen)} {_rate(seen.least_error)} or more"
        if seen.guesses
        else f"no coin was guessed in {seen.trainings:,} trainings",
        advice=_ADVICE if refuted else "",
        log_e_value=seen.log_e_value,
        share=1.0,
        evidence={
            "errors": seen.errors,
            "guesses": seen.guesses,
            "least_error": seen.least_error,
            "refuted_after": seen.refuted_after,
        },
    )


def verdict_of(seen: TrainingsSeen, epsilon_lower: float, delta: float) -> Verdict:
    """Return the verdict on a claim.

    VIOLATION if a look refuted the claim, at any time. PASS if the attack was shown to see at
    least half of the claimed strength, which is the mu of Gaussian DP with the claim's least error
    rate, and an attack of twice the claimed strength would have been found with 95 % power;
    INCONCLUSIVE else. An attack that sees little cannot distinguish a correct training from one
    without noise.

    So a claim of (epsilon, delta) hardly ever passes: the best attack that it allows is far
    stronger than any on a Gaussian mechanism.

    Args:
        seen: what was counted.
        epsilon_lower: lower bound on epsilon at any number of looks.
        delta: its delta.
    """
    proved = _proved(seen, epsilon_lower, delta)
    if seen.log_e_value >= -math.log(seen.significance):
        after = "" if seen.refuted_after is None else f" after {seen.refuted_after:,} trainings"
        return Verdict(
            "VIOLATION",
            "mechanism" if seen.form == "mechanism" else "epsilon",
            f"{GUESSED_COINS.name}: {_counted(seen)}, {seen.claim} allow{_s(seen)} at least "
            f"{_rate(seen.least_error)}; refuted{after} at significance {seen.significance:g}; "
            f"{proved}",
            advice=_ADVICE,
        )
    if blockers := tuple(filter(None, (_of_power(seen), _of_signal(seen)))):
        return Verdict(
            "INCONCLUSIVE",
            None,
            f"{seen.trainings:,} trainings neither refute the claim nor show that they could have; "
            f"{proved}",
            advice=outlook(seen),
            pass_blockers=blockers,
        )
    return Verdict(
        "PASS",
        None,
        f"{seen.trainings:,} trainings do not refute {seen.claim}; {proved}; the attack saw at "
        f"least {_seen_mu(seen)}, and one of twice the claimed strength would have been found with "
        f"95 % power; this does not show that the claim holds: a stronger attack may refute it, "
        f"and {NOT_TRIED} were not tried",
    )


def outlook(seen: TrainingsSeen) -> str:
    """Return what a longer run would show, in a sentence; empty after a violation."""
    if seen.log_e_value >= -math.log(seen.significance):
        return ""
    parts = []
    if seen.trainings_more is not None:
        parts.append(
            f"run about {seen.trainings_more:,} more trainings to refute the claim, if wrong "
            f"guesses remain as frequent as they were ({seen.errors:,} of {seen.guesses:,})"
        )
    elif seen.guesses:
        parts.append(
            "wrong guesses were at least as frequent as the claim allows, so more trainings of "
            "this canary and score would not refute it; choose a stronger canary or score"
        )
    if seen.trainings_to_pass is not None and seen.trainings_to_pass > seen.trainings:
        more = seen.trainings_to_pass - seen.trainings
        parts.append(
            f"a PASS needs about {more:,} more trainings, if wrong guesses remain as frequent"
        )
    return "; ".join(parts)


def most_provable(seen: TrainingsSeen, delta: float, bound_significance: float) -> tuple[str, ...]:
    """Return what the guesses could have proved at best, in a sentence; none without guesses.

    Args:
        seen: what was counted.
        delta: delta of epsilon.
        bound_significance: probability with which a bound may fail.
    """
    if not seen.guesses or seen.canaries > 1:
        return ()
    least = float(error_rate_confidence_sequence(0, seen.guesses, bound_significance))
    return (
        f"{seen.guesses:,} guesses without an error would prove epsilon "
        f"{epsilon_of_any_mechanism(least, delta):.3g} for any mechanism and mu "
        f"{mu_of_error(least):.3g} for a Gaussian one; larger claims need more trainings",
    )


def contradictions(report: AuditReport) -> list[str]:
    """Return what in the report of an audit over many trainings contradicts its counts, as text.

    Args:
        report: as it was read, with `AuditReport.trainings`.
    """
    seen = report.trainings
    if seen is None:
        return ["it counts no trainings"]
    try:
        return [*_of_counts(seen), *_of_report(report, seen)]
    except (ArithmeticError, TypeError, ValueError) as error:
        return [f"its counts cannot be judged ({type(error).__name__}: {error})"]


def contradiction_of_epsilon(report: AuditReport) -> str:
    """Return how the numbers of a report differ from those of its claim, as text; empty if not.

    Takes some seconds for a subsampled mechanism. A trade-off function is not in the report, so
    that its least mean error rate is not computed again.

    Args:
        report: one without `contradictions`.
    """
    seen, lower = report.trainings, report.epsilon_lower
    assert seen is not None
    if seen.form == "tradeoff":
        return ""
    try:
        promise = _promise(report, seen)
        of_scores = any(bound.name == OF_SCORES for bound in report.bounds)
        limit = float(scipy.special.ndtr(-0.5 * seen.mu_lower)) if of_scores else seen.error_upper
        again = promise.proved_at(limit)
    except (ArithmeticError, TypeError, ValueError) as error:
        return f"its claim cannot be composed: {error}"
    if not math.isclose(promise.least_error, seen.least_error, rel_tol=_ROUNDING):
        return f"least_error is {seen.least_error}, its claim gives {promise.least_error}"
    epsilon = max(again.epsilon, again.epsilon_any)
    same = lower is not None and math.isclose(epsilon, lower, rel_tol=_COMPOSED, abs_tol=_COMPOSED)
    return "" if same else f"epsilon_lower is {lower}, its counts prove {epsilon}"


def _promise(report: AuditReport, seen: TrainingsSeen) -> Promise:
    if seen.form == "epsilon":
        if report.claimed_epsilon is None:
            raise ValueError("claimed_epsilon=None must be a number")
        return promise_of((report.claimed_epsilon, report.delta), pair=seen.pair)
    history = tuple(Phase(*phase) for phase in report.history)
    return promise_of_history(history, seen.claim, seen.pair, report.delta)


def _of_report(report: AuditReport, seen: TrainingsSeen) -> Iterator[str]:
    lower = report.epsilon_lower
    if lower is None:
        yield "it has no lower bound on epsilon that holds at any number of looks"
        return
    if report.verdict != verdict_of(seen, lower, report.delta):
        yield f"it says {report.verdict.outcome}, and its verdict does not follow from its counts"
    if report.checks != (check_of(seen),):
        yield f"its check {GUESSED_COINS.name} does not follow from its counts"
    if report.steps or report.optimizers:
        yield "it has steps of one training"
    for bound in report.bounds:
        if bound.name in OF_GUESSES:
            yield from _of_bound(bound, seen, lower)
    of_scores = [bound for bound in report.bounds if bound.name == OF_SCORES]
    if of_scores:
        yield from _of_scores(of_scores[0], seen)
    elif not math.isclose(seen.mu_lower, mu_of_error(seen.error_upper), abs_tol=_ROUNDING):
        yield f"mu_lower is {seen.mu_lower}, its error_upper gives another"


def _of_scores(bound: EpsilonBound, seen: TrainingsSeen) -> Iterator[str]:
    """Yield how a bound from the scores differs from its mu, which is at least that of guesses."""
    epsilon = float(gaussian_epsilon(seen.mu_lower, bound.delta)) if seen.mu_lower > 0.0 else 0.0
    if bound.epsilon_lower is None or not math.isclose(
        bound.epsilon_lower, epsilon, rel_tol=_COMPOSED, abs_tol=_COMPOSED
    ):
        yield f"its bound {bound.name} is {bound.epsilon_lower}, its mu_lower gives {epsilon}"
    if seen.canaries == 1:
        level = ON_GUESSES * bound.significance
        least = mu_of_error(float(error_rate_confidence_sequence(seen.errors, seen.guesses, level)))
        if seen.mu_lower < least - _ROUNDING:
            yield f"mu_lower is {seen.mu_lower}, its counts give at least {least}"


def _of_bound(bound: EpsilonBound, seen: TrainingsSeen, lower: float) -> Iterator[str]:
    """Yield how a bound for any mechanism, and its limit, differ from what the counts give."""
    anytime = bound.looks == "anytime"
    limit = seen.error_upper if anytime else seen.error_upper_at_end
    if limit is None or bound.epsilon_lower is None:
        yield f"its bound {bound.name} has no limit of the error rate"
        return
    least = epsilon_of_any_mechanism(limit, bound.delta)
    least = min(least, lower) if anytime else least
    if bound.epsilon_lower < least * (1.0 - _ROUNDING):
        yield f"its bound {bound.name} is {bound.epsilon_lower}, any mechanism has {least}"
    if seen.canaries == 1:
        at = error_rate_confidence_sequence if anytime else clopper_pearson_upper
        now = float(at(seen.errors, seen.guesses, bound.significance))
        if not math.isclose(now, limit, rel_tol=_ROUNDING):
            yield f"its error rate is at most {limit}, its counts give {now}"


def _of_counts(seen: TrainingsSeen) -> Iterator[str]:
    if not 0 <= seen.failures <= seen.trainings <= max(seen.planned, seen.trainings):
        yield f"{seen.failures} of {seen.trainings} trainings failed"
    if not 0 <= seen.errors <= seen.guesses <= seen.trainings * seen.canaries:
        yield (
            f"{seen.errors} of {seen.guesses} guesses of {seen.trainings} trainings of "
            f"{seen.canaries} canaries are wrong"
        )
        return
    if seen.canaries > 1:  # limits depend on the shares of each training
        return
    goal = -math.log(seen.significance)
    now = float(error_rate_log_e(seen.errors, seen.guesses, seen.least_error))
    if seen.log_e_value < max(now, 0.0) - _ROUNDING * max(abs(now), 1.0):
        yield f"log_e_value is {seen.log_e_value}, its counts give {now}"
    if (seen.log_e_value >= goal) != (seen.refuted_after is not None):
        yield "refuted_after does not belong to its log_e_value"


def _of_signal(seen: TrainingsSeen) -> str:
    """Return that the attack saw too little of the canary, in a sentence; empty if enough."""
    most = error_to_see(seen.least_error)
    if seen.error_upper <= most or not seen.guesses:
        return ""
    told = "the canary is not seen" if not mu_of_error(seen.error_upper) else _seen_mu(seen)
    advice = (
        "try more trainings, known initial weights, a crafted canary, or the logit margin as score"
        if seen.form != "epsilon"
        else "claim noise_multiplier, sample_rate and steps as PrivacyClaim instead: the best "
        f"attack that {seen.claim} allows is far stronger than any on Gaussian noise"
    )
    return (
        f"signal: {told}, and a pass needs mu {_rate(mu_of_error(most))}; {advice} (error rate at "
        f"most {_rate(seen.error_upper)}, {_rate(most)} needed: a weak attack does not see that "
        "noise is absent)"
    )


def _of_power(seen: TrainingsSeen) -> str:
    """Return that an attack could have been missed, in a sentence; empty if it could not."""
    lost = seen.failures / max(seen.trainings, 1)
    enough = trainings_to_pass(seen.least_error, seen.significance, lost, seen.canaries)
    guessed = seen.guesses // seen.canaries
    if enough is not None and enough <= guessed:
        return ""
    least = flawless_guesses(seen.least_error, seen.significance)
    if least is None or least > seen.guesses:
        needed = "more than 10^12" if least is None else f"{least:,}"
        return (
            f"trainings: {seen.guesses:,} coins were guessed, and not even an attack without "
            f"errors refutes {seen.claim} before {needed} guesses"
        )
    if enough is None:
        return (
            f"trainings: {seen.failures:,} of {seen.trainings:,} trainings failed, and each counts "
            "as a wrong guess; repair them"
        )
    return (
        f"trainings: {guessed:,} of the {enough:,} guessed trainings after which an attack of "
        "twice the claimed strength would be found with 95 % power"
    )


def _proved(seen: TrainingsSeen, epsilon_lower: float, delta: float) -> str:
    least = epsilon_of_any_mechanism(seen.error_upper, delta)
    text = f"epsilon is at least {epsilon_lower:.3g} at delta {delta:g}"
    if least >= epsilon_lower:
        return text
    return f"{text} if the noise is Gaussian, and {least:.3g} for any mechanism"


def _seen_mu(seen: TrainingsSeen) -> str:
    claimed = _rate(mu_of_error(seen.least_error))
    return f"mu {_rate(mu_of_error(seen.error_upper))} of the claim's {claimed}"


def _counted(seen: TrainingsSeen) -> str:
    failed = f"; {seen.failures:,} failed trainings count as wrong guesses" * bool(seen.failures)
    return (
        f"{seen.errors:,} of {seen.guesses:,} coins were guessed wrong (error rate at most "
        f"{_rate(seen.error_upper)}{failed})"
    )


def _rate(value: float) -> str:
    return f"{value:.3g}"


def _s(seen: TrainingsSeen) -> str:
    """Return the ending of the verb after the claim's words."""
    return "" if seen.form == "mechanism" else "s"
