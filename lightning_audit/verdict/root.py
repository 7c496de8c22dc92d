"""Which violated check is a finding, and which only follows from one.

Every violated check is the finding of a fault, or a consequence of exactly one fault. Nothing here
needs more than what stands in the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.results.audit_report import CheckResult, LikelyFault


def settled(faults: Iterable[LikelyFault]) -> tuple[LikelyFault, ...]:
    """Leave each consequence to the first fault that explains it, and none that is a finding."""
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
    """Which optimizer a check is of that follows from a fault of this one; empty for the run's."""
    return optimizer if name in REGISTRY and REGISTRY[name].each else ""


def mark_consequences(
    checks: Sequence[CheckResult], faults: Sequence[LikelyFault]
) -> tuple[CheckResult, ...]:
    """The checks, with the finding that each violated one follows from.

    Args:
        checks: results of all checks.
        faults: of the verdict on them.
    """
    return tuple(
        dataclasses.replace(check, follows_from=behind.finding if behind else "")
        for check in checks
        for behind in [_behind(check, faults)]
    )


def _behind(check: CheckResult, faults: Sequence[LikelyFault]) -> LikelyFault | None:
    """The fault that a violated check follows from; None where it is a finding, or not violated."""
    if check.status != "violated" or any(_shows(check, fault) for fault in faults):
        return None
    return next((f for f in faults if check.name in f.consequences and _meets(f, check)), None)


def _meets(fault: LikelyFault, check: CheckResult) -> bool:
    """Whether they are of one optimizer, or one of them is of the run."""
    whose = {fault.place.optimizer, check.optimizer}
    return len(whose) == 1 or "" in whose


def _shows(check: CheckResult, fault: LikelyFault) -> bool:
    return (check.name, check.optimizer) == (fault.finding, fault.place.optimizer)
