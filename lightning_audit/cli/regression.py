"""Comparison of the reports of two runs of one training: what became worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_audit.results.audit_report import AuditReport, Outcome

#: Statuses of a check that failed. A failure that the user allows is one.
_FAILED = ("violated", "undecided", "allowed")
#: Epsilons that must not increase.
_EPSILONS = ("epsilon_spent", "epsilon_lower")


def another_training(old: AuditReport, new: AuditReport) -> str:
    """Return why two reports are of different trainings, as text; empty if they may be of one.

    A report does not name its training. Those of one training have the same delta, private
    optimizers, adjacency and tensors; what else differs between them, such as noise, steps and
    seed, is compared.
    """
    facts = {
        "delta": (old.delta, new.delta),
        "private optimizers": (_labels(old), _labels(new)),
        "adjacency": (_adjacency(old), _adjacency(new)),
        "data sets of many trainings": (_pair(old), _pair(new)),
    }
    tensors = _tensors(old), _tensors(new)
    if all(tensors):
        facts["tensors"] = tensors
    for name, (before, now) in facts.items():
        if before != now:
            return f"its {name}: {_shown(before, now)}, here {_shown(now, before)}"
    return ""


def regressions(old: AuditReport, new: AuditReport, most: float) -> list[tuple[Outcome, str]]:
    """Return what became worse from one report to another.

    Args:
        old: the baseline.
        new: of the same training.
        most: increase of an epsilon that is accepted, >= 0.

    Returns:
        (VIOLATION, a sentence) of each increase of an epsilon and each newly failed check;
        (INCONCLUSIVE, a sentence) of each epsilon that is no longer known.
    """
    found: list[tuple[Outcome, str]] = []
    for name in _EPSILONS:
        before, now = getattr(old, name), getattr(new, name)
        if before is not None and now is None:
            found.append(("INCONCLUSIVE", f"{name} was {before:.4g} and is unknown now"))
        elif before is not None and now > before + most:  # an infinite one exceeds no other
            limit = f", by more than --max-regression {most:g}" if most else ""
            found.append(("VIOLATION", f"{name} rose from {before:.4g} to {now:.4g}{limit}"))
    return [*found, *(("VIOLATION", text) for text in _newly_failed(old, new))]


def _newly_failed(old: AuditReport, new: AuditReport) -> Iterator[str]:
    """Yield a sentence for each newly failed check; those that follow from it are counted."""
    names = failed(new) - failed(old)
    newly = [check for check in new.checks if (check.name, check.optimizer) in names]
    roots = {check.name for check in newly if not check.follows_from}
    for check in newly:
        if check.follows_from in roots:
            continue
        number = sum(other.follows_from == check.name for other in newly)
        follow = f", and {number} that follow{'s' * (number == 1)} from it" if number else ""
        yield f"newly failed: {' of '.join(filter(None, (check.name, check.optimizer)))}{follow}"


def failed(report: AuditReport) -> set[tuple[str, str]]:
    """Return the failed checks, each as (name, label of the optimizer)."""
    return {(c.name, c.optimizer) for c in report.checks if c.status in _FAILED}


def _labels(report: AuditReport) -> tuple[str, ...]:
    return tuple(sorted(one.label for one in report.optimizers))


def _adjacency(report: AuditReport) -> Any:
    claim = report.settings.get("claim")
    return (claim.get("adjacency") if isinstance(claim, Mapping) else None) or "add_remove"


def _pair(report: AuditReport) -> str:
    """Return how the data sets of many trainings differ; that there is one training, if not."""
    return "one training" if report.trainings is None else report.trainings.pair


def _tensors(report: AuditReport) -> tuple[str, ...]:
    """Return the names of the tensors whose noise was measured."""
    ratios = (check.evidence.get("ratio") for check in report.checks)
    return tuple(sorted({name for ratio in ratios if isinstance(ratio, Mapping) for name in ratio}))


def _shown(value: Any, beside: Any) -> str:
    """Return a value; of names, the first that the other value does not have."""
    if not isinstance(value, tuple):
        return f"{value:g}" if isinstance(value, float) else str(value)
    own = [name for name in value if name and name not in beside]
    return f"{len(value)}" + (f" ({own[0]}{', ...' if len(own) > 1 else ''})" if own else "")
