"""Test that the numbers of each check in a report give its status."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from lightning_audit.checks.base.disclosure import VOID
from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.results.audit_report import AuditReport, CheckResult
from lightning_audit.verdict.pass_blockers import OutcomeSettings

#: Relative difference of log e-value and threshold that rounding can explain.
_ROUNDING = 1e-9


def contradictions_of_checks(report: AuditReport, settings: OutcomeSettings) -> Iterator[str]:
    """Yield contradictions in the checks of a report: in their names, counts and status.

    Args:
        report: the report as read from its file.
        settings: settings of the audit.
    """
    optimizers = len(report.optimizers)
    yield from _of_names(report, settings, optimizers)
    for check in report.checks:
        if check.name in REGISTRY:
            wrong = _of_status(check, settings, optimizers)
            yield from (f"checks: {check.name} {sentence}" for sentence in wrong)


def _of_names(report: AuditReport, settings: OutcomeSettings, optimizers: int) -> Iterator[str]:
    counts = Counter(check.name for check in report.checks)
    yield from (f"checks: there is no check {name!r}" for name in counts if name not in REGISTRY)
    for name, known in REGISTRY.items():
        least, most = known.occurs(optimizers)
        if not least <= counts[name] <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            yield f"checks: {name} occurs {counts[name]} times, not {wanted}"
    labels = [one.label for one in report.optimizers]
    for check in report.checks:
        each = check.name in REGISTRY and REGISTRY[check.name].each
        if check.optimizer not in (labels if each else [""]):
            yield f"checks: {check.name} is of optimizer {check.optimizer!r}, which is unknown"


def _of_status(check: CheckResult, settings: OutcomeSettings, optimizers: int) -> Iterator[str]:
    known = REGISTRY[check.name]
    if _withheld(check) and (more := sorted({*check.evidence} - {*known.public})):
        yield f"is {check.status} and shows numbers of un-noised data: {', '.join(more)}"
    scoped = any(one.finding == check.name and one.optimizer for one in settings.exemptions)
    allowed = check.name in settings.allow or (scoped and check.status == "allowed")
    wrong = "warned" if known.warns else "allowed" if allowed else "violated"
    if check.log_e_value is None:
        if check.share not in (0, known.share):
            yield f"has the share {check.share} of the significance, and no e-value"
        yield from _without_e_value(check, wrong)
        return
    if not known.share:
        yield "has an e-value, and such a check has none"
        return
    share = known.share / (max(optimizers, 1) if known.each else 1)
    if not math.isclose(check.share, share):
        yield f"has the share {check.share} of the significance, not {share}"
        return
    threshold = -math.log(share * settings.significance)
    if math.isclose(check.log_e_value, threshold, rel_tol=_ROUNDING):
        return
    crossed = check.log_e_value > threshold
    since = check.evidence.get("violated_at_step", "unknown")
    if crossed != (since is not None) and not _withheld(check):
        yield (
            f"has the log e-value {check.log_e_value:.4g}, the threshold {threshold:.4g}, and "
            f"violated_at_step {since}"
        )
    fine = ("ok", "not_run") if check.log_e_value == 0.0 else ("ok",)
    unsure = ("undecided",) if known.doubtful else ()
    if check.status not in ((wrong, *unsure) if crossed else fine):
        yield (
            f"is {check.status} at a log e-value of {check.log_e_value:.4g} with the threshold "
            f"{threshold:.4g}"
        )


def _withheld(check: CheckResult) -> bool:
    """Whether a check's numbers are private, and its status does not permit showing them."""
    return REGISTRY[check.name].private and check.status not in VOID


def _without_e_value(check: CheckResult, wrong: str) -> Iterator[str]:
    if check.status == "not_run" and (not check.evidence or REGISTRY[check.name].wrong is None):
        return
    if check.status == "ok" and _withheld(check):
        return
    try:
        found = REGISTRY[check.name].is_wrong(check.evidence)
    except (KeyError, TypeError) as error:
        if check.status != "not_run":
            yield f"is {check.status}, and its evidence lacks {error}"
        return
    if check.status == "not_run" and not found:
        return
    unsure = ("undecided",) if REGISTRY[check.name].doubtful else ()
    if check.status not in ((wrong, *unsure) if found else ("ok",)):
        yield f"is {check.status}, its evidence says {wrong if found else 'ok'}"
