"""Epsilon as measured: an estimate from the noise and the clipping that were found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_audit.accounting.composition import Adjacency
from lightning_audit.accounting.history import Phase, leaking, rates_known
from lightning_audit.accounting.spending import composed_epsilon
from lightning_audit.checks.clipping import SENSITIVITY
from lightning_audit.checks.noise import NOISE_WHOLE
from lightning_audit.checks.replay import REPLAY_CLIPPING, REPLAY_SENSITIVITY
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.results.audit_report import SAME_FACTOR, AuditReport, LikelyFault
from lightning_audit.results.report_details import MeasuredEpsilon

#: Mu of a step from which epsilon is in the hundreds: it is called infinite.
_LARGEST_MU = 20.0
#: Checks whose evidence is how much one record adds, in units of what clipping allows.
_OF_ONE_RECORD = (REPLAY_SENSITIVITY.name, REPLAY_CLIPPING.name)
#: A fault of single steps, which no total follows from.
_AT_TIMES = "clipping_missing_at_times"
#: Faults without noise, as far as can be seen.
_MISSING = ("no_noise", "noise_missing_in_tensors")


@dataclass(frozen=True)
class _Leakage:
    """Limits of the leakage of a step over its claim, as a fault shows them.

    Args:
        lower: least ratio.
        about: the ratio that was measured; None if only its limit is known.
        upper: largest ratio; infinite without noise, None if not limited.
        measured: what was measured, in words.
        of: whose gradients, in words.
        since: step, from 0, before which the mechanism was as stated.
        least_noise: leakage of the tensor with the least noise, by its name, if tensors differ.
    """

    lower: float
    about: float | None
    upper: float | None
    measured: str
    of: str = ""
    since: int = 0
    least_noise: Mapping[str, float] = field(default_factory=dict)


def measured_epsilon(
    report: AuditReport, adjacency: Adjacency, earlier: Sequence[Phase] = (), items: int = 1
) -> MeasuredEpsilon | None:
    """Return the epsilon of the measured noise and clipping, if everything else is as stated.

    The limits of the measured ratio, 99 % at any stop for Gaussian noise, are composed as an
    accountant composes the stated noise: over the planned steps, since a violation stops the
    training long before them. It is an estimate: the least sensitivity that explains the finding
    is taken for the true one, and no other fault is counted.

    Args:
        report: with verdict, history and planned steps.
        adjacency: of the claim.
        earlier: phases of earlier fits that the claim covers too, which are taken as stated.
        items: of a record.

    Returns:
        The estimate; None if no fault is of known size, or a sample rate is unknown.
    """
    if report.verdict.root is None or SAME_FACTOR in report.verdict.summary:
        return None
    if len(report.optimizers) > 1:  # whose steps are which is not in the history
        return None
    faults = (report.verdict.root, *report.verdict.further)
    seen = {check.name: check.evidence for check in report.checks if check.status == "violated"}

    def largest(leakage: Callable[..., _Leakage | None]) -> _Leakage | None:
        each = (leakage(fault, seen) for fault in faults)
        return max(filter(None, each), key=lambda one: one.lower, default=None)

    noise, record = largest(_noise_leakage), largest(_record_leakage)
    found = [one for one in (noise, record) if one is not None]
    if not found:
        return None
    since = max(one.since for one in found)
    phases, planned = _planned_phases(report)
    lower = math.prod(one.lower for one in found)
    alone = noise if record is None else None
    upper = None if alone is None else alone.upper

    def epsilon(ratio: float) -> float | None:
        before, after = _divided(phases, since)
        least = min((phase.noise_multiplier for phase in phases), default=0.0)
        if ratio > _LARGEST_MU * least:
            return math.inf if rates_known(phases) else None
        ran = [*earlier, *before, *leaking(after, ratio)]
        return composed_epsilon(ran, report.delta, adjacency, items=items)

    least = epsilon(lower)
    if least is None:
        return None
    name, ratio = next(iter({} if alone is None else alone.least_noise.items()), ("", None))
    return MeasuredEpsilon(
        least,
        None if upper is None else epsilon(upper),
        None if alone is None or alone.about is None else epsilon(alone.about),
        sum(phase.steps for phase in (*earlier, *phases)),
        planned,
        " and ".join(one.measured for one in found),
        next((one.of for one in found if one.of), ""),
        name,
        None if ratio is None else epsilon(ratio),
    )


def _noise_leakage(fault: LikelyFault, checks: Mapping[str, Mapping[str, Any]]) -> _Leakage | None:
    """Return the leakage of noise that is too small by a known ratio; None if it is not."""
    whole = checks.get(NOISE_WHOLE.name, {})
    behind = whole if fault.finding == REPLAY_NOISE.name else checks.get(fault.finding, {})
    seen, names = {**behind, **fault.evidence}, fault.place.parameters
    since = seen.get("noise_ratio_upper_since")
    limits = seen.get("noise_ratio_upper", since)
    interval = seen.get("flagged_noise_ratio" if names else "noise_ratio", seen.get("noise_ratio"))
    least_noise = {} if names else whole.get("least_noise", {})
    if least_noise:  # the others may have the stated noise
        interval = whole["noise_ratio"][0], min(whole["noise_ratio"][1], 1.0)
    if isinstance(limits, Mapping):
        limits = max(limits.values(), default=None)
    low, high = interval or (None, limits)
    if fault.name in _MISSING and not whole.get("least_noise"):
        # All entries limit it more than a few probes.
        high = (whole.get("noise_ratio") or (None, high))[1]
    if not isinstance(high, int | float) or (high >= 1.0 and not least_noise):
        return None
    of = ", ".join(f"`{name}`" for name in names[:3])
    of += f" and {len(names) - 3} more" if len(names) > 3 else ""
    found = whole.get("flagged_ratio" if names else "added_ratio")
    return _Leakage(
        _over(high),
        None if low is None or not found else _over(found),
        None if low is None else _over(low),
        f"the noise is {'at most ' if low is None else f'{low:g} to '}{high:g} times the stated"
        if high > 0.0
        else "no noise is added",
        f"records whose gradient lies in {of}" if names else "",
        fault.place.step or 0 if since is not None else 0,
        {name: _over(ratio) for name, ratio in least_noise.items()},
    )


def _over(ratio: float) -> float:
    """Return the leakage over its claim at a ratio of noise to its claim."""
    return 1.0 / ratio if ratio > 0.0 else math.inf


def _record_leakage(fault: LikelyFault, checks: Mapping[str, Mapping[str, Any]]) -> _Leakage | None:
    """Return the leakage of a record that adds more than clipping allows; None if it is not."""
    names = {fault.finding, *fault.consequences}
    if fault.name == _AT_TIMES or fault.finding not in (SENSITIVITY.name, *_OF_ONE_RECORD):
        return None
    ratios = [
        seen["size"] / seen["allowed"]
        for name in names & {*_OF_ONE_RECORD}
        if (seen := checks.get(name, {})).get("size") and seen.get("allowed")
    ]
    if SENSITIVITY.name in names:
        ratios.append(checks.get(SENSITIVITY.name, {}).get("shift_lower") or 0.0)
    ratio = max(ratios, default=0.0)
    if not ratio > 1.0:
        return None
    since = min(fault.evidence.get("loud_steps") or [0])
    words = f"one record adds {ratio:.3g} times what clipping allows"
    return _Leakage(ratio, None, None, words, since=since)


def _planned_phases(report: AuditReport) -> tuple[list[Phase], bool]:
    """Return the stated phases of all planned steps, at the noise and the rate of the last one.

    Of shuffled batches, those of the passes so far.
    """
    shuffled = (report.settings.get("claim") or {}).get("sampling") == "shuffled"
    phases = [Phase(*phase) for phase in (report.composed if shuffled else report.history)]
    more = (report.planned_steps or 0) - report.steps
    if more < 0 or shuffled or not phases:
        return phases, False
    return [*phases[:-1], dataclasses.replace(phases[-1], steps=phases[-1].steps + more)], True


def _divided(phases: Sequence[Phase], since: int) -> tuple[list[Phase], list[Phase]]:
    """Return the phases of the first ``since`` steps, and those of the others."""
    before, after = list[Phase](), list[Phase]()
    for phase in phases:
        first = min(max(since, 0), phase.steps)
        since -= phase.steps
        for part, steps in ((before, first), (after, phase.steps - first)):
            if steps:
                part.append(dataclasses.replace(phase, steps=steps))
    return before, after
