"""Divides violated checks into findings and their consequences.

Every violated check is the finding of a fault, or a consequence of exactly one fault. Everything is
computed from what the report contains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.results.audit_report import CheckResult, LikelyFault


def settled(faults: Iterable[LikelyFault]) -> tuple[LikelyFault, ...]:
    """Keep each consequence only for the first fault that explains it, and drop findings."""
    kept = tuple(faults)
    taken = {(fault.finding, fault.place.optimizer) for fault in kept}
    told = []
    for fault in kept:
        own = {name: (name, _owner(name, fault.place.optimizer)) for name in fault.consequences}
        names = tuple(name for name, key in own.items() if key not in taken)
        taken.update(own.values())
        told.append(dataclasses.replace(fault, consequences=names))
    return tuple(told)


def _owner(name: str, optimizer: str) -> str:
    """Return the optimizer of a check that follows from its fault; empty for a check of the run."""
    return optimizer if name in REGISTRY and REGISTRY[name].each else ""


def mark_consequences(
    checks: Sequence[CheckResult], faults: Sequence[LikelyFault]
) -> tuple[CheckResult, ...]:
    """Return the checks, each violated one with the finding that it follows from.

    Args:
        checks: results of all checks.
        faults: faults of the verdict on these checks.
    """
    return tuple(
        dataclasses.replace(check, follows_from=behind.finding if behind else "")
        for check in checks
        for behind in [_behind(check, faults)]
    )


def _behind(check: CheckResult, faults: Sequence[LikelyFault]) -> LikelyFault | None:
    """Return the fault that a violated check follows from; None for a finding or no violation."""
    if check.status != "violated" or any(_shows(check, fault) for fault in faults):
        return None
    return next((f for f in faults if check.name in f.consequences and _meets(f, check)), None)


def _meets(fault: LikelyFault, check: CheckResult) -> bool:
    """Whether both are of the same optimizer, or one of them is of the whole run."""
    whose = {fault.place.optimizer, check.optimizer}
    return len(whose) == 1 or "" in whose


def _shows(check: CheckResult, fault: LikelyFault) -> bool:
    return (check.name, check.optimizer) == (fault.finding, fault.place.optimizer)
