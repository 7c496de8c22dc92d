"""Verdict on a claim by many trainings, from the numbers of a report alone: for audit and gate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from lightning_audit.accounting.phases import Phase
from lightning_audit.many.least_error import (
    Promise,
    epsilon_of_any_mechanism,
    mu_of_error,
    promise_of,
    promise_of_history,
)
from lightning_audit.many.trainings_needed import error_to_see, trainings_to_pass
from lightning_audit.report.guessed_coins import GUESSED_COINS
from lightning_audit.report.in_words import NOT_TRIED
from lightning_audit.results.audit_report import AuditReport, CheckResult, EpsilonBound, Verdict
from lightning_audit.results.trainings_seen import TrainingsSeen
from lightning_audit.stats.bounds.confidence_sequence import (
    error_rate_confidence_sequence,
    error_rate_log_e,
)
from lightning_audit.stats.bounds.error_rate_power import flawless_guesses
from lightning_audit.stats.bounds.intervals import clopper_pearson_upper

_ADVICE = (
    "compare clipping, noise, sampling and number of steps of a training with the claim; "
    "PrivacyAudit in one training shows which of them differs"
)
#: Bounds from the error rate: in the form of the claim, and for any mechanism.
OF_GUESSES = ("coins", "coins_any")
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
        again = promise.proved_at(seen.error_upper)
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
            yield from _of_bound(bound, seen)


def _of_bound(bound: EpsilonBound, seen: TrainingsSeen) -> Iterator[str]:
    """Yield how a bound for any mechanism, and its limit, differ from what the counts give."""
    anytime = bound.looks == "anytime"
    limit = seen.error_upper if anytime else seen.error_upper_at_end
    if limit is None or bound.epsilon_lower is None:
        yield f"its bound {bound.name} has no limit of the error rate"
        return
    least = epsilon_of_any_mechanism(limit, bound.delta)
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
    if not math.isclose(seen.mu_lower, mu_of_error(seen.error_upper), abs_tol=_ROUNDING):
        yield f"mu_lower is {seen.mu_lower}, its error_upper gives another"
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
