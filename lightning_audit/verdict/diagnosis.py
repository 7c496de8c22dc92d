"""Names the likely faults from violated checks, as text that an engineer can act on.

A rule names a fault, by numbers that the checks report as evidence. Rules are applied in the order
of their rank: what is certain, then the clipping, re-used noise, the scale and shape of the noise,
leaks, the sampling and the accounting. If a fault entails another finding, later rules do not name
a fault for that finding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_audit.checks.base.candidates import Candidate, Case
from lightning_audit.checks.base.check import FaultRule
from lightning_audit.checks.base.registry import REGISTRY, entailed, group
from lightning_audit.checks.clipping.clipping_faults import clipping_candidates
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise.noise_faults import noise_candidates
from lightning_audit.checks.noise.noise_size import NOISE_TENSOR
from lightning_audit.checks.noise.stated_divisor import BATCH_NORMALISED
from lightning_audit.checks.randomness.noise_recurrence import RECURRENCE
from lightning_audit.checks.randomness.noise_reuse import REUSE_BROADCAST, REUSE_LAG
from lightning_audit.checks.randomness.repeated_values import (
    noise_of_another_shape,
    repeated_in_step,
)
from lightning_audit.checks.randomness.reuse_faults import reuse_candidates, reuse_is_seen
from lightning_audit.checks.replay.replay_checks import REPLAY_RELEASE
from lightning_audit.results.audit_report import CheckResult, LikelyFault

#: Noise below this ratio to the claim is not explained by a batch that is large by chance.
_LARGE_BATCH = 0.5


def likely_faults(
    violated: Sequence[CheckResult],
    monitor: AuditMonitor | None,
    oversize: float,
    processes: int = 1,
) -> tuple[LikelyFault, ...]:
    """Return the faults that may have caused the violated checks.

    Args:
        violated: the checks that count as violated, at least one.
        monitor: all checks by e-process after the last step; None if no step was observed.
        oversize: norm of the canaries over the clipping norm.
        processes: number of processes that train together.

    Returns:
        The faults, the likeliest first, at least one.
    """
    case = Case({check.name: check for check in violated}, monitor, oversize, processes)
    alone = _by_finding(case)
    candidates = [
        *(candidate for rule, candidate in alone if rule.rank < 0),
        *_divisor_candidates(case),
        *clipping_candidates(case),
        *reuse_candidates(case),
        *repeated_in_step(case),
        *noise_candidates(case),
        *noise_of_another_shape(case),
        *(by_itself := [candidate for rule, candidate in alone if rule.rank > 0]),
    ]
    kept: list[LikelyFault] = []
    explained: set[str] = set()
    for candidate in candidates:
        finding = candidate.fault.finding
        # An earlier rule may have named the fault of this check, by rank or more precisely.
        told = [f.name for f in kept if f.finding == finding]
        again = candidate.fault.name in told or (bool(told) and candidate in by_itself)
        if finding not in explained and not again:
            kept.append(candidate.fault)
            explained.update(name for name in candidate.explains if name != finding)
    explained.update(fault.finding for fault in kept)
    kept += [_unexplained(case, name) for name in case.violated if name not in explained]
    return tuple(kept)


def loses_no_privacy(violated: Sequence[CheckResult], monitor: AuditMonitor) -> bool:
    """Whether the shift is as small as the noise, so that the leakage stays within the claim.

    Args:
        violated: the checks that count as violated.
        monitor: all checks after the last step.
    """
    case = Case({check.name: check for check in violated}, monitor, 1.0)
    reuse = [name for name in case.violated if name.startswith("reuse.")]
    # Noise that is too small also makes the differences small that the re-use checks test.
    of_both = (*group("clipping"), *group("replay"), *group("noise"), *group("reuse"))
    if not set(case.violated) <= set(of_both):
        return False
    if any(name == RECURRENCE.name or reuse_is_seen(case, monitor, name) for name in reuse):
        return False
    if not {"noise", NOISE_TENSOR.name} & set(case.violated):  # over all steps the noise is right
        return False
    if monitor.signal_over_noise(monitor.significance).ratio_lower > 1.0:
        return False
    # Assume the largest shift within its error, and the smallest noise of any tensor.
    if REPLAY_RELEASE.name in case.violated:
        return False
    replayed = [
        case.violated[n].evidence.get("size") for n in group("replay") if n in case.violated
    ]
    shifts = [monitor.sensitivity.shift_upper, *(s if s else math.inf for s in replayed)]
    return max(shifts) < 1.05 * monitor.witness_noise.smallest_ratio


def _by_finding(case: Case) -> list[tuple[FaultRule, Candidate]]:
    """Return the faults that single violated checks identify, the likeliest first."""
    found = []
    for name, violated in case.violated.items():
        rules = REGISTRY[name].faults if name in REGISTRY else ()
        rule = next((rule for rule in rules if rule.applies(violated.evidence)), None)
        if rule is not None:
            found.append((rule, _candidate(case, name, rule, entailed(rule))))
    return sorted(found, key=lambda pair: pair[0].rank)


def _candidate(case: Case, finding: str, rule: FaultRule, explains: tuple[str, ...]) -> Candidate:
    return case.candidate(rule.name, finding, rule.sentence, rule.look_at, explains=explains)


def _divisor_candidates(case: Case) -> list[Candidate]:
    """Return division by the realised batch size, unless re-used noise explains the finding."""
    rules = {
        c.name: c.faults[0] for c in (BATCH_NORMALISED, REPLAY_RELEASE) if c.name in case.violated
    }
    finding, *also = [n for n, r in rules.items() if r.applies(case.violated[n].evidence)] or [""]
    if not finding:
        return []
    monitor = case.monitor
    if monitor is not None and monitor.witness_noise.onset.ratios():
        return []  # since some step all have too little noise, for any number of drawn records
    shared = (REUSE_BROADCAST.name, REUSE_LAG.name)
    if monitor is not None and any(reuse_is_seen(case, monitor, name) for name in shared):
        return []
    quiet = 1.0 if monitor is None else monitor.witness_noise.smallest_ratio
    small = group("noise") if quiet > _LARGE_BATCH else ()
    rule = rules[finding]
    return [_candidate(case, finding, rule, (*entailed(rule), *small, *also))]


def _unexplained(case: Case, finding: str) -> LikelyFault:
    """Return the fault of a violated check without a rule, with the check's own message."""
    check = case.violated[finding]
    return case.candidate(
        finding.replace(".", "_"), finding, check.message or finding, check.advice
    ).fault
