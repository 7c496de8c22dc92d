"""The gate: judges a report again as the run was judged, and composes its epsilon again.

The gate detects accidents and careless edits. It accepts a report in which all numbers were
rewritten consistently: a report is not a signature.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_audit.accounting.composition import COMPOSITION_ERROR, RESOLUTION, exceeds
from lightning_audit.accounting.history import Phase
from lightning_audit.accounting.spending import composed_epsilon
from lightning_audit.checks.accounting import ACCOUNTING
from lightning_audit.checks.check import REGISTRY
from lightning_audit.results.audit_report import AuditReport, CheckResult, Verdict
from lightning_audit.verdict.judge import (
    Held,
    Judged,
    OutcomeSettings,
    blockers_of_run,
    held,
    judge_all,
    with_allowed,
)

#: Relative difference of two numbers that were one before they were rounded.
_ROUNDING = 1e-9


def contradictions(report: AuditReport) -> list[str]:
    """Return what in a report contradicts its own checks, as text; empty if nothing does.

    Args:
        report: as it was read.
    """
    try:
        settings = OutcomeSettings.of(report.settings)
        if absent := list(_of_names(report)):
            return absent
        checks = tuple(_again(check, settings, len(report.optimizers)) for check in report.checks)
        now = held(checks, *_composed(report), settings.claimed_epsilon)
        return [
            *_of_verdict(report, _judged(report, checks, settings), now),
            *_of_checks(report, checks),
            *_of_numbers(report, settings, now),
        ]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return [f"its checks cannot be judged ({type(error).__name__}: {error})"]


def composed_again(report: AuditReport) -> float | None:
    """Compose the epsilon of the steps in a report, regardless of allowed findings.

    Args:
        report: one without `contradictions`.

    Returns:
        Epsilon; None if it is unknown.
    """
    if _claims(report, "noise_coefficients") is not None or not report.steps:
        return None
    histories = [report.history, report.composed]
    if _claims(report, "sampling") == "shuffled":
        histories = [report.composed]
    adjacency: Any = _claims(report, "adjacency") or "add_remove"
    # An edited report may have an epsilon of almost zero, which takes minutes to resolve.
    stated, _ = _composed(report)
    resolution = max(RESOLUTION, 0.25 * COMPOSITION_ERROR * (1.0 if stated is None else stated))
    items: Any = _claims(report, "items_per_record") or 1
    about = {"adjacency": adjacency, "resolution": resolution, "items": items}
    phases = ([Phase(*each) for each in history] for history in histories)
    epsilons = [composed_epsilon(steps, report.delta, **about) for steps in phases]
    known = [epsilon for epsilon in epsilons if epsilon is not None]
    return max(known) if len(known) == len(epsilons) else None


def contradiction_of_epsilon(report: AuditReport) -> str:
    """Return how the epsilon of a report differs from that of its steps, as text; empty if not.

    Args:
        report: one without `contradictions`.
    """
    stated, _ = _composed(report)
    try:
        again = composed_again(report)
    except (TypeError, ValueError) as error:
        return f"its history cannot be composed: {error}"
    if stated is None or again is None:
        same = stated is again
    else:
        same = not exceeds(stated, again) and not exceeds(again, stated)
    return "" if same else f"epsilon_spent is {stated}, its history composes to {again}"


def _claims(report: AuditReport, name: str) -> Any:
    """Return a part of the claim; None if it is not claimed."""
    claim = report.settings.get("claim")
    return claim.get(name) if isinstance(claim, Mapping) else None


def _of_names(report: AuditReport) -> Iterator[str]:
    """Yield the checks that are missing, duplicate or unknown."""
    counts = Counter(check.name for check in report.checks)
    yield from (f"there is no check {name!r}" for name in counts if name not in REGISTRY)
    for name, known in REGISTRY.items():
        least, most = known.occurs(len(report.optimizers))
        if not least <= counts[name] <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            yield f"{name} occurs {counts[name]} times, not {wanted}"
    labels = {one.label for one in report.optimizers}
    for check in report.checks:
        each = check.name in REGISTRY and REGISTRY[check.name].each
        if check.optimizer not in (labels if each else {""}):
            yield f"{check.name} is of optimizer {check.optimizer!r}, which is unknown"


def _again(check: CheckResult, settings: OutcomeSettings, optimizers: int) -> CheckResult:
    """Return the check with the share and the status that follow from the registry."""
    known, share = REGISTRY[check.name], 0.0
    if check.log_e_value is not None:
        share = known.share / (max(optimizers, 1) if known.each else 1)
    elif check.share:  # the check may have an e-value
        share = known.share
    if math.isclose(share, check.share, rel_tol=_ROUNDING):
        share = check.share
    scoped = any(one.finding == check.name and one.optimizer for one in settings.exemptions)
    allowed = check.name in settings.allow or (scoped and check.status == "allowed")
    wrong: Any = "allowed" if allowed and not known.warns else known.flag
    found = _is_wrong(check, share, settings.significance)
    # The report holds the numbers of a private check only if it is violated.
    unseen = known.private and check.log_e_value is None and bool(known.wrong or not known.weight)
    possible = {
        True: (wrong, *(("undecided",) if known.doubtful and not allowed else ())),
        False: ("ok", *(("not_run",) if not check.log_e_value else ())),
        None: ("not_run", *(("ok",) if unseen else ())),
    }[found]
    status = check.status if check.status in possible else possible[0]
    return dataclasses.replace(check, share=share, status=status)


def _is_wrong(check: CheckResult, share: float, significance: float) -> bool | None:
    """Return whether the numbers of a check are a finding; None if it has no numbers."""
    known = REGISTRY[check.name]
    if check.log_e_value is None or not known.weight:
        try:
            return known.is_wrong(check.evidence)
        except (KeyError, TypeError):
            return None
    threshold = -math.log(share * significance)
    if math.isclose(check.log_e_value, threshold, rel_tol=_ROUNDING):  # rounding
        return check.status not in ("ok", "not_run")
    return check.log_e_value > threshold or check.evidence.get("violated_at_step") is not None


def _judged(
    report: AuditReport, checks: tuple[CheckResult, ...], settings: OutcomeSettings
) -> Verdict:
    """Return the verdict on these checks."""
    correlated = _claims(report, "noise_coefficients") is not None
    composed, _ = _composed(report)
    blockers = blockers_of_run(
        settings,
        checks,
        composed,
        report.pass_blockers,
        complete=report.complete,
        mechanism_alone=correlated,
    )
    own: list[Judged] = [
        ([check for check in checks if check.optimizer in ("", one.label)], None, one)
        for one in report.optimizers
    ]
    seen = own or [(checks, None, None)]
    return judge_all(seen, settings.resolution, blockers, mechanism_alone=correlated)[0]


def _composed(report: AuditReport) -> tuple[float | None, float | None]:
    """Return the epsilon spent and the claim, regardless of allowed findings."""
    for check in report.checks:
        if check.name == ACCOUNTING.name:
            return check.evidence["epsilon_spent"], check.evidence["claimed_epsilon"]
    return report.epsilon_spent, report.claimed_epsilon


def _of_verdict(report: AuditReport, given: Verdict, now: Held) -> Iterator[str]:
    stated = report.verdict
    if stated.outcome != given.outcome:
        why = ", ".join(fault.finding for fault in given.faults) or "; ".join(given.pass_blockers)
        yield f"it says {stated.outcome}, its checks give {given.outcome}" + (why and f": {why}")
        return
    # Without the readings, another violated check may be the root.
    kinds: set[Any] = {c.kind for c in report.checks if c.status == "violated"}
    if stated.kind not in (kinds or {given.kind}):
        yield f"its verdict is about the {stated.kind}, its checks about the {given.kind}"
    # The text of a violation depends on readings that the report does not hold.
    words = given if given.outcome == "PASS" else stated
    names = {check.name for check in report.checks if check.status == "allowed"}
    if with_allowed(words, stated.allowed, now, report.delta) != stated or (
        not names <= {*stated.allowed}
    ):
        yield "the text of its verdict does not follow from its checks"
    for part in ("faults", "pass_blockers"):
        if bool(getattr(stated, part)) != bool(getattr(given, part)):
            yield f"{part} of its verdict do not belong to {given.outcome}"


def _of_checks(report: AuditReport, checks: tuple[CheckResult, ...]) -> Iterator[str]:
    for stated, given in zip(report.checks, checks, strict=True):
        if stated.status != given.status:
            yield f"{stated.name} is {stated.status}, its numbers give {given.status}"
        if stated.share != given.share:
            yield f"{stated.name} has the share {stated.share:g} of the significance, not " + (
                f"{given.share:g}"
            )


def _of_numbers(report: AuditReport, settings: OutcomeSettings, now: Held) -> Iterator[str]:
    """Yield numbers that differ between two places."""
    steps = sum(one.steps for one in report.optimizers)
    stated = settings.claimed_epsilon
    pairs = {
        "delta": (report.delta, settings.delta),
        "epsilon_spent": (report.epsilon_spent, now.spent),
        "claimed_epsilon": (report.claimed_epsilon, now.claimed),
        "settings.claimed_epsilon": (stated, None if stated is None else report.claimed_epsilon),
        "epsilon_refuted_by": (report.epsilon_refuted_by, now.refuted_by),
        "steps": (report.steps, steps),
        "the sum of steps in history": (sum(phase[2] for phase in report.history), steps),
    }
    for name, (here, there) in pairs.items():
        if here != there:
            yield f"{name} is {here}, and {there} elsewhere"
    if not now.lower_holds and report.epsilon_lower is not None:
        yield "bounds hold an epsilon_lower, which assumes batches as they are accounted for"
    for one in report.optimizers:
        sizes = {part: power.size for part, power in one.power.items()}
        if sizes != settings.resolution.parts and (sizes or (report.complete and one.steps)):
            yield f"power is for {sizes}, the resolution is {dict(settings.resolution.parts)}"
