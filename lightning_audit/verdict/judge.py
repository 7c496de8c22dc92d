"""From checks and power to PASS, VIOLATION or INCONCLUSIVE."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.results.audit_report import (
    KINDS,
    CheckResult,
    LikelyFault,
    OptimizerSeen,
    Power,
    Verdict,
)
from lightning_audit.verdict.diagnosis import likely_faults, loses_no_privacy
from lightning_audit.verdict.examined import describe_examined
from lightning_audit.verdict.pass_blockers import (
    MECHANISM_ALONE,
    TARGET,
    Resolution,
    blockers_of_optimizer,
    outcome_of,
)
from lightning_audit.verdict.root import settled

_ORDER = {"violated": 0, "undecided": 1, "allowed": 2, "warned": 3, "ok": 4, "not_run": 5}


def acknowledge(checks: Iterable[CheckResult], allow: Collection[str]) -> tuple[CheckResult, ...]:
    """Mark violated checks whose names the user allows, and put violated ones first."""
    marked = [
        dataclasses.replace(check, status="allowed")
        if check.status in ("violated", "undecided") and check.name in allow
        else check
        for check in checks
    ]
    return tuple(sorted(marked, key=lambda check: _ORDER[check.status]))


def seen_of(
    monitor: AuditMonitor,
    power: Mapping[str, Power],
    oversize: float,
    pass_blockers: Sequence[str] = (),
    label: str = "",
    released: float = 1.0,
) -> OptimizerSeen:
    """What the verdict rests on of one private optimizer, beside its checks.

    Args:
        monitor: the checks by e-process after the last step.
        power: what the steps could have shown, by part of the resolution; empty while they go on.
        oversize: norm of the canaries over the clipping norm.
        pass_blockers: what else stands in the way of a pass, in sentences.
        label: names it where there are others.
        released: see `OptimizerSeen`.
    """
    return OptimizerSeen(
        label=label,
        steps=monitor.steps,
        canaries=len(monitor.header.canaries),
        canary_steps=monitor.canary_steps,
        lost_steps=monitor.lost_steps,
        noiseless_steps=monitor.noiseless_steps,
        oversize=oversize,
        shift_lower=monitor.sensitivity.shift_lower,
        power=power,
        pass_blockers=tuple(pass_blockers),
        released=released,
    )


def judge(
    checks: Sequence[CheckResult],
    monitor: AuditMonitor | None,
    seen: OptimizerSeen | None,
    resolution: Resolution,
    pass_blockers: Sequence[str] = (),
    processes: int = 1,
    *,
    mechanism_alone: bool = False,
) -> Verdict:
    """Give the verdict on one private optimizer.

    Args:
        checks: results of all checks, acknowledged ones marked.
        monitor: the checks by e-process after the last step; None if no step was observed.
        seen: what else the verdict rests on; None if no step was observed.
        resolution: what the run must be able to see to pass.
        pass_blockers: what else stands in the way of a pass, in sentences.
        processes: number of processes that train together.
        mechanism_alone: whether no epsilon is computed, by the claim's `noise_coefficients`.

    Returns:
        The verdict, with the likely faults and what to do.
    """
    blockers = [*pass_blockers, *blockers_of_optimizer(seen, resolution)]
    outcome = outcome_of(checks, blockers)
    if outcome == "VIOLATION":
        violated = [check for check in checks if check.status == "violated"]
        return _violation(violated, monitor, seen.oversize if seen else math.inf, processes)
    if outcome == "INCONCLUSIVE":
        return Verdict(
            "INCONCLUSIVE",
            None,
            "no check failed, but a PASS needs more than this run has shown",
            advice="resolve the items under Missing; on_inconclusive='raise' makes such a run fail",
            pass_blockers=tuple(blockers),
        )
    said = (
        describe_examined(checks),
        f"no check failed; {TARGET:.0%} power against {resolution.noise:g}x noise or "
        f"{resolution.sensitivity:g}x clipping, at the observed gradient variance",
        MECHANISM_ALONE if mechanism_alone else "",
    )
    return Verdict("PASS", None, "; ".join(filter(None, said)))


def worst(
    verdicts: Sequence[Verdict],
    labels: Sequence[str],
    of_all: Sequence[str],
    broken: Collection[str] = (),
) -> Verdict:
    """The verdict of a run with several private optimizers: the worst of theirs.

    Args:
        verdicts: one for each optimizer, at least one.
        labels: their names, as their checks give them.
        of_all: what all of them lack, in sentences.
        broken: labels of those that violate a check of their own.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    named = list(zip(labels, verdicts, strict=True))
    violated = [pair for pair in named if pair[1].outcome == "VIOLATION"]
    if violated:
        own = [pair for pair in violated if pair[0] in broken] or violated[:1]
        own.sort(key=lambda pair: _severity(pair[1]))
        chosen, others = own[0][1], [label for label, _ in own[1:]]
        also = f"; also: {'; '.join(others)}" if others else ""
        faults = _together(_placed(fault, label) for label, one in own for fault in one.faults)
        return dataclasses.replace(chosen, summary=chosen.summary + also, faults=faults)
    doubtful = [verdict for verdict in verdicts if verdict.outcome == "INCONCLUSIVE"]
    if not doubtful:
        return verdicts[0]
    blockers = [
        item if item in of_all else f"{label}: {item}"
        for label, verdict in named
        for item in verdict.pass_blockers
    ]
    return dataclasses.replace(doubtful[0], pass_blockers=tuple(dict.fromkeys(blockers)))


def _placed(fault: LikelyFault, optimizer: str) -> LikelyFault:
    """The fault, seen in one of several optimizers unless it is one of the run."""
    if fault.finding in REGISTRY and not REGISTRY[fault.finding].each:
        return fault
    return dataclasses.replace(fault, place=dataclasses.replace(fault.place, optimizer=optimizer))


def _together(faults: Iterable[LikelyFault]) -> tuple[LikelyFault, ...]:
    """Faults of several optimizers; one of the run stands once, or not if another explains it."""
    kept: list[LikelyFault] = []
    for fault in faults:
        of_run = not fault.place.optimizer
        twin = next((i for i, k in enumerate(kept) if of_run and k.name == fault.name), None)
        if twin is not None:
            both = dict.fromkeys([*kept[twin].consequences, *fault.consequences])
            kept[twin] = dataclasses.replace(kept[twin], consequences=tuple(both))
        elif not (of_run and any(fault.finding in other.consequences for other in kept)):
            kept.append(fault)
    return settled(kept)


def _severity(verdict: Verdict) -> int:
    return KINDS.index(verdict.kind) if verdict.kind else len(KINDS)


def _violation(
    violated: Sequence[CheckResult], monitor: AuditMonitor | None, oversize: float, processes: int
) -> Verdict:
    by_name = {check.name: check for check in violated}
    faults = likely_faults(violated, monitor, oversize, processes)
    # The verdict leads with the claim that is false first of all, and its kind is the root's.
    faults = settled(sorted(faults, key=lambda fault: KINDS.index(by_name[fault.finding].kind)))
    root = faults[0]
    check = by_name[root.finding]
    verdict = Verdict(
        "VIOLATION",
        check.kind,
        f"{check.name}: {check.message}",
        # What was seen for certain says what to do; an e-process leaves that to its likely fault.
        advice=check.advice if check.log_e_value is None or not root.look_at else "",
        faults=faults,
    )
    summary = verdict.summary
    if verdict.further:
        summary += f" (also: {', '.join(fault.finding for fault in verdict.further)})"
    if monitor and loses_no_privacy(violated, monitor):
        summary += (
            "; noise and clipping are off by the same factor, so this loses no privacy by itself, "
            "but the mechanism is not the stated one"
        )
    return dataclasses.replace(verdict, summary=summary)
