"""Divides violated checks into findings and their consequences, for the run and the gate.

Every violated check is the finding of a fault, or a consequence of exactly one fault. Everything is
computed from what the report contains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lightning_audit.checks.base.candidates import first_seen
from lightning_audit.checks.base.registry import REGISTRY, entailed, group
from lightning_audit.results.audit_report import AuditReport, CheckResult, LikelyFault

_NOISE, _REUSE, _LEAKAGE = group("noise"), group("reuse"), group("leakage")
_OF_NOISE = (*_NOISE, *_REUSE, *group("channel"), *_LEAKAGE)
#: What a fault may entail, by its finding; the rules of `diagnosis` select from it.
MAY_ENTAIL: Mapping[str, tuple[str, ...]] = {
    **{
        check.name: tuple(dict.fromkeys(name for rule in check.faults for name in entailed(rule)))
        for check in REGISTRY.values()
        if check.faults
    },
    "sensitivity": (*group("replay"), *_LEAKAGE),
    "epsilon": group("replay"),
    **dict.fromkeys(
        ("batch_normalised", "replay.release"), ("sensitivity", *group("replay"), *_OF_NOISE)
    ),
    **dict.fromkeys((*_NOISE, *_REUSE), _OF_NOISE),
}

#: Evidence keys of a fault that have another name in its check, or None if absent there.
_NAMES: Mapping[str, str | None] = {"shift": None}


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


def contradictions_of_root(report: AuditReport) -> Iterator[str]:
    """Yield contradictions in the root, the further findings and the consequences of a report.

    Args:
        report: the report as read from its file.
    """
    verdict, faults = report.verdict, report.verdict.faults
    violated = [check for check in report.checks if check.status == "violated"]
    shown = {i: c for i, f in enumerate(faults) for c in violated if _shows(c, f)}
    if len(shown) < len(faults):
        yield "verdict: a fault rests on a check that is not violated"
    if root := shown.get(0):
        if root.kind != verdict.kind:
            yield f"verdict: kind is {verdict.kind}, the first fault's finding is of {root.kind}"
        if not verdict.summary.startswith(f"{root.name}: {root.message}"):
            yield f"verdict: summary does not begin with the first fault's finding, {root.name}"
    for number, check in shown.items():
        yield from (f"verdict: {sentence}" for sentence in _of_fault(faults[number], check))
    for marked, check in zip(mark_consequences(report.checks, faults), report.checks, strict=True):
        if marked.follows_from != check.follows_from:
            yield (
                f"checks: {check.name} follows from {check.follows_from or 'nothing'}, the "
                f"verdict's faults give {marked.follows_from or 'nothing'}"
            )
    yield from _of_consequences(faults, violated)


def _of_fault(fault: LikelyFault, check: CheckResult) -> Iterator[str]:
    step = first_seen(check.evidence)
    if fault.place.step != step:
        yield f"{fault.name} was first seen at step {fault.place.step}, {check.name} at {step}"
    for key, value in fault.evidence.items():
        name = _NAMES.get(key, key)
        found = check.evidence.get(name, value) if name else value
        if found != value and not isinstance(value, Mapping):
            yield f"{fault.name} has {key} {value}, {check.name} {found}"


def _of_consequences(
    faults: Sequence[LikelyFault], violated: Sequence[CheckResult]
) -> Iterator[str]:
    for fault in faults:
        possible = MAY_ENTAIL.get(fault.finding, ())
        yield from (
            f"verdict: {name} cannot follow from {fault.finding}"
            for name in fault.consequences
            if name not in possible
        )
    if settled(faults) != tuple(faults):
        yield "verdict: a consequence is a finding, or follows from two faults"
    named = {name for fault in faults for name in fault.consequences}
    yield from (
        f"verdict: {name} is a consequence, and is not violated"
        for name in named.difference(check.name for check in violated)
    )
    yield from (
        f"verdict: {check.name} is violated, and is neither a finding nor follows from one"
        for check in violated
        if not (any(_shows(check, fault) for fault in faults) or _behind(check, faults))
    )
