"""From checks and power to PASS, VIOLATION or INCONCLUSIVE."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.registry import CHANNEL, REUSE
from lightning_audit.results.audit_report import (
    KINDS,
    CheckResult,
    LikelyFault,
    OptimizerSeen,
    Power,
    Verdict,
)
from lightning_audit.verdict.diagnosis import likely_faults, loses_no_privacy
from lightning_audit.verdict.pass_blockers import TARGET, Resolution, lacks_of_optimizer, outcome_of

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
    lacks: Sequence[str] = (),
    label: str = "",
) -> OptimizerSeen:
    """What the verdict rests on of one private optimizer, beside its checks.

    Args:
        monitor: the checks by e-process after the last step.
        power: what the steps could have shown, by part of the resolution; empty while they go on.
        oversize: norm of the canaries over the clipping norm.
        lacks: what else stands in the way of a pass, in sentences.
        label: names it where there are others.
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
        lacks=tuple(lacks),
    )


def judge(
    checks: Sequence[CheckResult],
    monitor: AuditMonitor | None,
    seen: OptimizerSeen | None,
    resolution: Resolution,
    missing: Sequence[str] = (),
    processes: int = 1,
) -> Verdict:
    """Give the verdict on one private optimizer.

    Args:
        checks: results of all checks, acknowledged ones marked.
        monitor: the checks by e-process after the last step; None if no step was observed.
        seen: what else the verdict rests on; None if no step was observed.
        resolution: what the run must be able to see to pass.
        missing: what else stands in the way of a pass, in sentences.
        processes: number of processes that train together.

    Returns:
        The verdict, with the likely faults and what to do.
    """
    lacks = [*missing, *lacks_of_optimizer(seen, resolution)]
    outcome = outcome_of(checks, lacks)
    if outcome == "VIOLATION":
        violated = [check for check in checks if check.status == "violated"]
        return _violation(violated, monitor, seen.oversize if seen else math.inf, processes)
    if outcome == "INCONCLUSIVE":
        return Verdict(
            "INCONCLUSIVE",
            None,
            "nothing contradicts the claim, but this run could not have shown enough",
            advice="mend what is missing; on_inconclusive='raise' makes such a run fail",
            missing=tuple(lacks),
        )
    return Verdict(
        "PASS",
        None,
        "nothing contradicts the claim, and in every step noise of "
        f"{resolution.noise:g} times the claim or a clipping norm {resolution.sensitivity:g} "
        f"times too large would have been seen with probability {TARGET:g} or more, beside data "
        "as loud as they look if the noise is right",
    )


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
        own = [pair for pair in violated if pair[0] in broken]
        label, chosen = min(own or violated, key=lambda pair: _severity(pair[1]))
        others = [other for other, _ in own if other != label]
        also = f"; also violated: {'; '.join(others)}" if others else ""
        summary = chosen.summary + also
        return dataclasses.replace(chosen, summary=summary, faults=_placed(chosen.faults, label))
    doubtful = [verdict for verdict in verdicts if verdict.outcome == "INCONCLUSIVE"]
    if not doubtful:
        return verdicts[0]
    lacks = [
        item if item in of_all else f"{label}: {item}"
        for label, verdict in named
        for item in verdict.missing
    ]
    return dataclasses.replace(doubtful[0], missing=tuple(dict.fromkeys(lacks)))


def _placed(faults: Sequence[LikelyFault], optimizer: str) -> tuple[LikelyFault, ...]:
    """The faults, seen in one of several optimizers."""
    return tuple(
        dataclasses.replace(fault, place=dataclasses.replace(fault.place, optimizer=optimizer))
        for fault in faults
    )


def _severity(verdict: Verdict) -> int:
    return KINDS.index(verdict.kind) if verdict.kind else len(KINDS)


def _violation(
    violated: Sequence[CheckResult], monitor: AuditMonitor | None, oversize: float, processes: int
) -> Verdict:
    kind = next(k for k in KINDS if any(check.kind == k for check in violated))
    faults = likely_faults(violated, monitor, oversize, processes)
    named = next(check for check in violated if check.name == faults[0].finding)
    entailed = _entailed(faults)
    others = [c.name for c in violated if c is not named and c.name not in entailed]
    summary = f"{named.name}: {named.message}"
    if others:
        summary += f" (also violated: {', '.join(others)})"
    if monitor and loses_no_privacy(violated, monitor):
        summary += (
            "; noise and clipping err together, so this loses no privacy by itself, but the "
            "mechanism is not the stated one"
        )
    return Verdict("VIOLATION", kind, summary, advice=named.advice, faults=faults)


def _entailed(faults: Sequence[LikelyFault]) -> set[str]:
    """Checks that the first fault makes fail, and that no other fault rests on."""
    if faults[0].finding.split(".")[0] != "noise":
        return set()
    # Too small a noise makes all differences small.
    return {*REUSE, *CHANNEL} - {fault.finding for fault in faults}


def mark_consequences(checks: Sequence[CheckResult], verdict: Verdict) -> tuple[CheckResult, ...]:
    """Say in the message of a violated check where it follows from the likeliest fault.

    Args:
        checks: results of one optimizer's checks.
        verdict: the verdict on them.
    """
    entailed = _entailed(verdict.faults) if verdict.faults else set()
    cause = f"follows from `{verdict.faults[0].finding}`" if entailed else ""
    return tuple(
        dataclasses.replace(check, message=f"{cause}: {check.message}")
        if check.status == "violated" and check.name in entailed
        else check
        for check in checks
    )
