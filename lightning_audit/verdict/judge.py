"""Computes the verdict PASS, VIOLATION or INCONCLUSIVE from checks and power."""

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
from lightning_audit.results.verdict import SAME_FACTOR
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
    """Mark violated checks whose names the user allows, and sort violated ones first."""
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
    """Return what the verdict uses of one private optimizer in addition to its checks.

    Args:
        monitor: the checks by e-process after the last step.
        power: power of the steps by part of the resolution; empty during the training.
        oversize: norm of the canaries over the clipping norm.
        pass_blockers: other reasons that block a pass, as text.
        label: name of the optimizer if there are several.
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
    """Return the verdict on one private optimizer.

    Args:
        checks: results of all checks; acknowledged ones have the status "allowed".
        monitor: the checks by e-process after the last step; None if no step was observed.
        seen: see `seen_of`; None if no step was observed.
        resolution: violations that the run must be able to detect to pass.
        pass_blockers: other reasons that block a pass, as text.
        processes: number of processes that train together.
        mechanism_alone: whether no epsilon is computed, by the claim's `noise_coefficients`.

    Returns:
        The verdict, with the likely faults and what to do.
    """
    blockers = [*pass_blockers, *blockers_of_optimizer(seen, resolution)]
    if not blockers:  # a pass requires these checks
        needed = [c for c in checks if c.status == "not_run" and REGISTRY[c.name].must_run]
        blockers = [f"{check.name}: {check.message}" for check in needed]
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
    """Return the verdict of a run with several private optimizers: the worst of theirs.

    Args:
        verdicts: one for each optimizer, at least one.
        labels: their names, as their checks give them.
        of_all: reasons that block a pass of all of them, as text.
        broken: labels of optimizers with a violated check of that optimizer.
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
    """Return the fault with its optimizer as the place, unless it is a fault of the whole run."""
    if fault.finding in REGISTRY and not REGISTRY[fault.finding].each:
        return fault
    return dataclasses.replace(fault, place=dataclasses.replace(fault.place, optimizer=optimizer))


def _together(faults: Iterable[LikelyFault]) -> tuple[LikelyFault, ...]:
    """Merge faults of several optimizers; keep a fault of the run once, if no other explains it."""
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
    # The first fault gives the verdict its message and kind; faults are sorted by kind.
    faults = settled(sorted(faults, key=lambda fault: KINDS.index(by_name[fault.finding].kind)))
    root = faults[0]
    check = by_name[root.finding]
    verdict = Verdict(
        "VIOLATION",
        check.kind,
        f"{check.name}: {check.message}",
        # A deterministic check has its own advice; an e-process uses that of its likely fault.
        advice=check.advice if check.log_e_value is None or not root.look_at else "",
        faults=faults,
    )
    summary = verdict.summary
    if verdict.further:
        summary += f" (also: {', '.join(fault.finding for fault in verdict.further)})"
    if monitor and loses_no_privacy(violated, monitor):
        summary += f"; {SAME_FACTOR}"
    return dataclasses.replace(verdict, summary=summary)
