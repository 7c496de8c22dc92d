"""What the page says of an audit over many trainings."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_audit.files.printable import visible
from lightning_audit.page.shown_text import PERCENT, level, number, sentence
from lightning_audit.report.in_words import counted
from lightning_audit.results.audit_report import AuditReport, EpsilonBound
from lightning_audit.results.trainings_seen import TrainingsSeen

_FROM = "error rate of the guessed coins"
#: By the name of a bound: its name and its method in the table of numbers.
METHODS = {
    "coins": ("Proved ε, at least", f"{_FROM}, in the form of the claim"),
    "coins_any": ("Proved ε, any mechanism", _FROM),
    "coins_one_run": ("Proved ε, any mechanism", "all coins of all canaries at the planned end"),
    "coins_one_run_mu": ("Proved ε, at least", "all coins of all canaries at the planned end"),
}


def meaning(report: AuditReport, seen: TrainingsSeen) -> str:
    """Return what the verdict means, in one or two sentences below it."""
    verdict = report.verdict
    if verdict.outcome == "PASS":
        return sentence(verdict.summary.partition("; ")[2])
    if verdict.outcome == "INCONCLUSIVE":
        return "The claim is neither confirmed nor refuted. What a pass needs is listed below."
    return (
        "Do not rely on the claimed epsilon. A claim that is true is refuted with probability "
        f"{number(seen.significance)} at most. {sentence(verdict.advice)}"
    )


def facts(seen: TrainingsSeen) -> list[tuple[str, str, str]]:
    """Return the numbers below the verdict, each with a remark."""
    found = counted(seen)
    if seen.canaries > 1:
        found.append(("Canaries", f"{seen.canaries:,}", "in each training"))
    if seen.refuted_after is not None:
        found.append(("Refuted", f"after {seen.refuted_after:,}", "trainings"))
    alarm = f"≤ {100 * seen.significance:g}{PERCENT}"
    return [*found, ("False alarm", alarm, "over all looks at the trainings")]


def bound_row(bound: EpsilonBound) -> tuple[str, str]:
    """Return the name and the meaning of a bound among the epsilons."""
    anytime = bound.looks == "anytime"
    name = "Proved at least" if anytime else "At the planned end"
    name += ", any mechanism" if bound.name in ("coins_any", "coins_one_run") else ""
    looks = "no matter how often one looks" if anytime else "for one look at the planned end"
    proved = "this much leaks at least" if bound.epsilon_lower else "nothing is proved"
    remark = "" if bound.epsilon_lower else " 0 is no sign of privacy."
    return name, (
        f"Measured by the guessed coins, with {level(bound.significance)} confidence, {looks}: "
        f"{proved}. Valid for: {visible(bound.assumptions[-1])}.{remark}"
    )


def numbers(
    report: AuditReport, seen: TrainingsSeen
) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
    """Yield the rows of the table of numbers that no other report has."""
    yield (
        "Error rate, claimed",
        f"≥ {number(seen.least_error)}",
        f"least error rate of guesses with {visible(seen.claim)}",
        "computed",
        (),
    )
    if anytime := [bound for bound in report.bounds if bound.looks == "anytime"]:
        holds = f"{level(anytime[0].significance)} confidence, at all looks together"
        assumed = anytime[0].assumptions[:-1]
        how = "confidence sequence of the wrong guesses"
        yield "Error rate, measured", f"≤ {number(seen.error_upper)}", how, holds, assumed
        how = f"{_FROM}, for Gaussian outputs"
        yield "Proved μ, at least", number(seen.mu_lower), how, holds, assumed
        if seen.ratio_lower is not None:
            how = f"{_FROM}, if leakage over claim is constant"
            yield "Leakage over claim", f"≥ {number(seen.ratio_lower)}", how, holds, assumed
    how = "e-value of the guesses (Ville's inequality)"
    alarm = f"≤ {number(seen.significance)}"
    yield "False alarm", alarm, how, "any number of looks", ("fair private coins",)
