"""Names the clipping fault by which a canary adds more than the clipping norm."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_audit.checks.accounting.leakage import EPSILON
from lightning_audit.checks.base.candidates import Candidate, Case, named_tensors
from lightning_audit.checks.base.registry import group
from lightning_audit.checks.clipping.sensitivity import SENSITIVITY
from lightning_audit.checks.replay.replay_checks import (
    CLIPPING_ADVICE,
    REPLAY_CLIPPING,
    REPLAY_SENSITIVITY,
)

if TYPE_CHECKING:
    from lightning_audit.checks.monitor import AuditMonitor

#: Headlines of the faults that no check names alone.
HEADLINES = {
    "clipping_missing_at_times": "Some steps are not clipped",
    "clipping_missing_from_a_step_on": "Clipping stops at some step",
}
#: Canaries of at least this norm show whether they were clipped, for any noise.
_OVERSIZE = 20.0
#: Kinds of faults that canaries confuse with others, and the checks that distinguish them.
_BY_REPLAY = {"sum", "batch", "parts", "rows"}
_REPLAYED = {REPLAY_CLIPPING.name, REPLAY_SENSITIVITY.name}
#: End of the label of an input canary; labels of gradient canaries end with a tensor.
_INPUT = re.compile(r"\(input(, sampling_rate=[^)]*)?\)$")


def clipping_candidates(case: Case) -> list[Candidate]:
    """Return the clipping faults that fit the readings, the likeliest first.

    Patterns that only one fault makes come first: the norm of the readings, unclipped tensors, an
    unclipped gradient, parts of a batch that count differently, canaries over several tensors that
    add more than the others. A clipping norm that is too large comes last, because it explains any
    shift.
    """
    monitor, finding = case.monitor, _finding(case)
    if monitor is None or finding is None:
        return []
    shift = monitor.sensitivity.largest_shift
    evidence = {"shift": shift, "shift_lower": monitor.sensitivity.shift_lower}
    at_times, missed = _at_times(monitor), _missed(monitor, case.oversize)
    found = [at_times] if at_times else [_after_average(monitor), missed]
    loose = at_times is not None or missed is not None
    if _BY_REPLAY & {case.violated[n].evidence.get("kind") for n in _REPLAYED & set(case.violated)}:
        return []  # the replay names the fault
    replayed = case.violated.get(REPLAY_CLIPPING.name)
    if loose and replayed is not None and replayed.evidence.get("passes_whole"):
        return []  # unclipped gradients occur at times, in any tensor
    if shift > 0.5 * case.oversize and not at_times:
        found.append(
            _Named(
                "no_clipping",
                "no clipping: a canary passes with its full norm",
                CLIPPING_ADVICE["no_clipping"],
            )
        )
    elif not loose:
        by_part = _by_part(monitor)
        found += [by_part] if by_part else _of_norm(case, monitor)
    return [
        case.candidate(
            named.name,
            finding,
            named.sentence,
            named.look_at,
            {**evidence, **named.evidence},
            named.parameters,
            (SENSITIVITY.name, *group("replay"), *group("leakage")),
        )
        for named in found
        if named is not None
    ]


def _of_norm(case: Case, monitor: AuditMonitor) -> list[_Named | None]:
    """Return the faults that clip gradients at a norm other than the claimed one.

    Replays with crafted gradients show more than canaries. If a crafted gradient in one tensor
    adds too much, the fault is not clipping per tensor. If the norm after clipping differs between
    crafted gradients, there is no single wrong norm. In both cases the replay names the fault.
    """
    replayed = case.violated.get(REPLAY_CLIPPING.name)
    seen = {} if replayed is None else replayed.evidence
    found = [] if seen.get("in_one_tensor") else [_per_tensor(monitor)]
    if seen.get("alike", True):
        found += [_counts_twice(monitor), _too_large(monitor)]
    return found


@dataclass(frozen=True)
class _Named:
    """A clipping fault, without the fields that all of them share."""

    name: str
    sentence: str
    look_at: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()


def _finding(case: Case) -> str | None:
    if SENSITIVITY.name in case.violated:
        return SENSITIVITY.name
    large = case.monitor is not None and case.monitor.sensitivity.shift_lower > 2
    leaks = EPSILON.name in case.violated and not case.first_of(group("noise"))
    return EPSILON.name if large and leaks else None


def _at_times(monitor: AuditMonitor) -> _Named | None:
    """Name missing clipping in some steps, or from a step on, if canaries show it."""
    loud, parts = monitor.sensitivity.loud, monitor.sensitivity.parts
    if not loud.rare or (parts is not None and parts.differ):
        return None
    if loud.from_then_on:
        return _Named(
            "clipping_missing_from_a_step_on",
            f"clipping is missing from step {loud.numbers[0] + 1} on: since then canaries pass "
            f"with {loud.shift:.3g} times max_grad_norm; before, they were clipped",
            "what changes at that step: a scheduler of max_grad_norm, an epoch, a layer that is "
            "unfrozen, a flag of a warm-up",
            {"loud_steps": loud.numbers},
        )
    return _Named(
        "clipping_missing_at_times",
        f"clipping is missing at times: canaries pass with {loud.shift:.3g} times max_grad_norm "
        f"{loud.part:.0%} of the times they enter, and are clipped the others",
        "what differs in those steps: values, losses or norms of a batch that decide whether its "
        "gradients are clipped, the last batch of an epoch, rows that are left out",
        {"loud_steps": loud.numbers},
    )


def _after_average(monitor: AuditMonitor) -> _Named | None:
    if not monitor.sensitivity.sum_is_clipped:
        return None
    return _Named(
        "clip_after_average",
        "clipping after averaging: the batch's mean gradient is clipped, not each sample's "
        "gradient before the sum",
        CLIPPING_ADVICE["clip_after_average"],
        {"expected_batch_size": monitor.last_scale},
    )


def _missed(monitor: AuditMonitor, oversize: float) -> _Named | None:
    """Name the tensors that were not clipped, if most were."""
    shifts = monitor.sensitivity.shifts()
    loose = shifts > 0.5 * oversize
    clipped = shifts < 0.1 * oversize
    if oversize < _OVERSIZE or not loose.any() or clipped.sum() <= loose.sum():
        return None
    labels = list(dict.fromkeys(np.array(monitor.header.canaries)[loose].tolist()))
    return _Named(
        "clipping_misses_tensors",
        "clipping misses some tensors: "
        f"{', '.join(f'`{label}`' for label in labels)} passed with the full norm, and the other "
        "canaries were clipped",
        CLIPPING_ADVICE["clipping_misses_tensors"],
        {"unclipped_canaries": labels},
        named_tensors(monitor, labels),
    )


def _by_part(monitor: AuditMonitor) -> _Named | None:
    """Name parts that count differently, if a canary's shift depends on the part it enters."""
    parts = monitor.sensitivity.parts
    if parts is None or not parts.differ:
        return None
    earlier, last = parts.earlier.shift, parts.last.shift
    return _Named(
        "parts_count_differently",
        "parts of a split batch count differently: a record in its last part adds "
        f"{max(last, 0.0):.2g} times max_grad_norm, one in an earlier part "
        f"{max(earlier, 0.0):.2g} times",
        CLIPPING_ADVICE["parts_count_differently"],
        {"shift_of_earlier_parts": earlier, "shift_of_last_parts": last},
    )


def _per_tensor(monitor: AuditMonitor) -> _Named | None:
    spread, single = _shifts_by_width(monitor)
    if not (spread > 1.5 and single - 1.0 < (spread - 1.0) / 3.0):
        return None
    return _Named(
        "clip_per_tensor",
        "clipping per tensor: each tensor is clipped to max_grad_norm on its own, so a whole "
        f"gradient passes with {spread:.3g} times that norm",
        CLIPPING_ADVICE["clip_per_tensor"],
        {"shift_of_spread_canaries": spread, "shift_of_single_tensors": single},
    )


def _shifts_by_width(monitor: AuditMonitor) -> tuple[float, float]:
    """Return the mean shift of canaries over many tensors, and of those in one; NaN if unseen."""
    shifts = monitor.sensitivity.shifts()
    kinds = np.array(monitor.header.canary_kinds)
    wide, pair = kinds == "Spread", kinds == "BlockPair"
    seen = ~np.isnan(shifts)
    groups = (shifts[wide & seen], shifts[~wide & ~pair & seen])
    spread, single = (float(np.mean(g)) if len(g) else math.nan for g in groups)
    return spread, single


def _counts_twice(monitor: AuditMonitor) -> _Named | None:
    """Name a record that counts several times, if an input canary adds a multiple of the norm."""
    sensitivity = monitor.sensitivity
    times = round(sensitivity.shift)
    # The lower limit lies 1.64 standard errors down.
    error = (sensitivity.shift - sensitivity.shift_lower) / 1.64
    whole = times >= 2 and abs(sensitivity.shift - times) <= max(2.0 * error, 0.1)
    if not (_is_input(monitor) and whole):
        return None
    return _Named(
        "record_counts_twice",
        "a record counts more than once: it adds about "
        f"{times} times max_grad_norm, as if {times} samples were made of it",
        CLIPPING_ADVICE["record_counts_twice"],
        {"times": times},
    )


def _too_large(monitor: AuditMonitor) -> _Named:
    shift = monitor.sensitivity.shift
    what = "a record adds" if _is_input(monitor) else "gradients are clipped at"
    return _Named(
        "clipping_norm_too_large",
        f"clipping norm too large: {what} {shift:.3g} times max_grad_norm",
        CLIPPING_ADVICE["clipping_norm_too_large"],
    )


def _is_input(monitor: AuditMonitor) -> bool:
    return bool(_INPUT.search(monitor.header.canaries[0]))
