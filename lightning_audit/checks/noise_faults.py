"""Rules that name the likely fault if the noise is too small."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from lightning_audit.checks.check import (
    MISSING,
    Candidate,
    Case,
    Fault,
    Monitored,
    group,
    named_tensors,
)
from lightning_audit.checks.noise import NOISE, NOISE_CANARY, NOISE_STEP, NOISE_TENSOR, NOISE_WHOLE
from lightning_audit.stats.noise_tests import interval_in_words, rounded_up

_SCALE = (
    "the standard deviation of the noise that is drawn (Opacus: in add_noise), compared with "
    "noise_multiplier * max_grad_norm"
)
NO_NOISE = Fault(
    "no_noise",
    "No noise is added",
    "no noise: the gradients are released without noise, or with almost none",
    "whether noise is drawn at all (Opacus: in add_noise), and whether the gradient that it is "
    "added to is the one that the update uses",
)
DIVIDED_AGAIN = Fault(
    "noise_divided_by_batch",
    "The noise is divided by the batch size once too often",
    "noise divided by the batch size",
    "whether the noise is added to the sum of the gradients, before it is divided, or drawn for "
    "the mean and divided once more",
    "the noise is {size}, about one over the expected batch size of {expected_batch_size:g}",
)
AVERAGED = Fault(
    "noise_averaged_over_processes",
    "Averaging over processes shrinks the noise",
    "noise averaged over processes",
    "whether every process adds its own noise and the gradients are then averaged; the noise must "
    "be added to the sum, once",
    "the noise is {size}, about one over the square root of the number of processes, {processes}",
)
SQUARED_NORM = Fault(
    "noise_of_squared_norm",
    "The noise is scaled by the clipping norm twice",
    "noise scale too small",
    f"{_SCALE}, where the clipping norm appears once",
    "the noise is {size}, about max_grad_norm={max_grad_norm:g}, as if that were applied twice",
)
SQUARED_MULTIPLIER = Fault(
    "noise_of_squared_multiplier",
    "The noise is scaled by the noise multiplier twice",
    "noise scale too small",
    f"{_SCALE}; the variance must not be passed instead",
    "the noise is {size}, about noise_multiplier={noise_multiplier:g}, as if that were applied "
    "twice",
)
TOO_SMALL = Fault(
    "noise_too_small",
    "Too little noise is added",
    "noise scale too small: every tensor has less noise than claimed",
    _SCALE,
)
_SIZED = dataclasses.replace(
    TOO_SMALL, sentence="noise scale too small", measured="the noise is {size}"
)
MISSING_IN_TENSORS = Fault(
    "noise_missing_in_tensors",
    "Some tensors get no noise",
    "noise of some tensors",
    "whether noise is added to every trainable parameter, and whether another optimizer or a hook "
    "writes to the gradients of these parameters",
    "the noise of {shown} is missing",
)
TOO_SMALL_IN_TENSORS = Fault(
    "noise_too_small_in_tensors",
    "Some tensors get too little noise",
    "noise of some tensors",
    MISSING_IN_TENSORS.look_at,
    "the noise of {shown} is {size}",
)
MISSING_IN_STEPS = Fault(
    "noise_missing_in_steps",
    "Some steps get too little noise or none",
    "noise of some steps: single steps have too little noise, or none",
    "what those steps do differently: the last batch of an epoch, a step after validation, a "
    "branch that skips the noise; and what the noisy sum is divided by, which must be the expected "
    "batch size, regardless of the actual batch size",
)
FROM_A_STEP_ON = Fault(
    "noise_too_small_from_a_step_on",
    "The noise becomes too small at some step",
    "{whose} too small from step {step} on, at the latest",
    "what changes at that step: a scheduler of noise or learning rate, an epoch, a layer that is "
    "unfrozen, a flag of a warm-up",
    "since then it is {size}; before that it was as claimed",
)
#: Ratios of reading to claim at which a tensor's noise is assumed to be right.
_HEALTHY = (0.95, 1.08)
#: Ratio over all steps above which only a few steps lack noise; the same if `noise.step` is the
#: only check of the size that is violated, and the number of steps that rule needs.
_ABOUT, _MOST, _FEW_STEPS = 0.9, 0.85, 3
#: Readings of the other tensors that determine their noise to about five percent.
_ENOUGH = 200
#: From this ratio to the claim on, noise is called too small, even if it also counts as missing.
_SOME = 0.03
#: Ratios of what is read to what a rule expects, narrow and wide; data only increase them.
_BAND, _WIDE_BAND = (0.95, 1.12), (0.97, 1.4)


def noise_candidates(case: Case, monitor: Monitored) -> list[Candidate]:
    """Return the faults that make noise too small, the likeliest first.

    A fault of a few tensors comes before one of all tensors. A factor that a known mistake makes
    (the batch size, the number of processes, a square) comes before any other factor.
    """
    finding, explains = case.first_of(case.sizes), case.of_noise
    if since := _from_a_step_on(case, monitor):
        return [since]
    if finding and _in_few_steps(case, monitor, finding):
        return [case.candidate(MISSING_IN_STEPS, NOISE_STEP.name, evidence={}, explains=explains)]
    if finding:
        return [*_in_tensors(case, monitor), *_scale(case, monitor, finding)]
    return _scale(case, monitor, NOISE_WHOLE.name) if _most_tensors_are_small(case) else []


def _from_a_step_on(case: Case, monitor: Monitored) -> Candidate | None:
    """Return the fault if noise is as claimed up to a step, and too small at each later step."""
    names = monitor.header.tensors
    ratios = [names[j] for j in monitor.witness_noise.onset.ratios()]
    if not ratios or NOISE_STEP.name not in case.violated:
        return None
    step = (monitor.witness_noise.burst.violated_at or 0) + 1
    upper = monitor.witness_noise.upper_since_onset(ratios)
    few = tuple(ratios) if 2 * len(ratios) < len(names) else ()
    # A replay of an earlier step may have had the noise of a later one.
    whose = f"noise of {', '.join(f'`{name}`' for name in few[:5])}" if few else "noise"
    found = case.candidate(
        FROM_A_STEP_ON,
        NOISE_STEP.name,
        evidence={"noise_ratio_upper_since": rounded_up(upper)},
        parameters=few or None,
        explains=case.of_noise,
        whose=whose,
        step=step,
        size=interval_in_words(None, upper),
    )
    place = dataclasses.replace(found.fault.place, step=step - 1)
    return dataclasses.replace(found, fault=dataclasses.replace(found.fault, place=place))


def _in_few_steps(case: Case, monitor: Monitored, finding: str) -> bool:
    """Whether `noise.step` was violated first, and over all steps the noise is about as claimed.

    Within the first few steps of a training, single steps without noise cannot be distinguished
    from noise that is too small at every step.
    """
    if finding == NOISE_STEP.name:
        ratio = monitor.witness_noise.smallest_ratio
        return ratio >= 1.0 or (ratio > _MOST and monitor.steps > _FEW_STEPS)
    found = {name: check.evidence for name, check in case.violated.items() if name in case.sizes}
    at = {name: seen.get("violated_at_step", math.inf) for name, seen in found.items()}
    step = at.pop(NOISE_STEP.name, math.inf)
    about_right = bool(monitor.witness_noise.smallest_ratio > _ABOUT)
    return about_right and step < min(at.values(), default=math.inf)


# ------------------------------------------------------------------ noise that is too small


def _most_tensors_are_small(case: Case) -> bool:
    """Whether what was added to the sums is too small in most tensors, though data mask it.

    Tensors with too few entries to be flagged count if their ratio is close to that of the flagged
    ones.
    """
    seen = case.seen(NOISE_WHOLE)
    if not seen.get("tensors"):
        return False
    others = seen.get("ratio_of_the_others")
    alike = others is not None and others < 0.5 * (1.0 + seen["flagged_ratio"])
    most = 2 * len(seen["flagged"]) > seen["tensors"]
    return (most or alike) and added_ratio(case) < _ABOUT


def _in_tensors(case: Case, monitor: Monitored) -> list[Candidate]:
    """Return the fault if few tensors have too little noise and the others the claimed noise."""
    noise, names = monitor.witness_noise, monitor.header.tensors
    ratios = dict(zip(names, noise.ratios().tolist(), strict=True))
    flagged = noise.flagged_tensors()
    others = [ratio for name, ratio in ratios.items() if name not in flagged]
    read = zip(names, monitor.header.witnesses, strict=True)
    entries = monitor.steps * sum(count for name, count in read if name not in flagged)
    if whole := _in_whole_tensors(case):  # read without data, so one step is enough
        flagged, others, ratios = whole
        entries = _ENOUGH
    # The scale is right if the others are the majority and read the claimed noise. (A few tensors
    # may read about the claimed noise because of their data.)
    right = bool(others) and _HEALTHY[0] < float(np.median(others)) < _HEALTHY[1]
    if not (flagged and right and len(flagged) <= len(others)):
        return []
    missing = ratios[flagged[0]] < MISSING
    if not missing and entries < _ENOUGH:  # the others may read the claim by chance, or with data
        return []
    shown = ", ".join(f"`{name}`" for name in flagged[:5])
    limits = noise.upper_of_each(flagged)
    interval = (None, max(limits.values()))
    if whole:  # all entries of one step give a tighter interval
        interval = case.seen(NOISE_WHOLE)["flagged_noise_ratio"]
    finding = case.first_of((NOISE_TENSOR.name, *case.sizes)) or NOISE_TENSOR.name
    rest = (*group("reuse"), NOISE_CANARY.name, NOISE_STEP.name, *case.beyond)
    evidence = {
        "noise_ratio_upper": {name: rounded_up(limit) for name, limit in limits.items()},
        "median_of_the_others": float(np.median(others)),
    }
    evidence |= {"noise_ratio": interval} if whole else {}
    return [
        case.candidate(
            MISSING_IN_TENSORS if missing else TOO_SMALL_IN_TENSORS,
            finding,
            evidence=evidence,
            parameters=tuple(flagged),
            # Noise that is slightly too small in some tensors may be so in all, masked by data.
            explains=(NOISE.name, *rest) if missing else rest,
            shown=shown,
            size=interval_in_words(*interval),
        )
    ]


def _in_whole_tensors(case: Case) -> tuple[list[str], list[float], dict[str, float]] | None:
    """Return the flagged tensors, the others' ratios and the flagged ones'; None if unknown."""
    seen = case.seen(NOISE_WHOLE)
    if (ratio := seen.get("flagged_ratio")) is None:
        return None
    flagged = seen["flagged"]
    others = [seen["ratio_of_the_others"]] * (seen["tensors"] - len(flagged))
    return flagged, others, dict.fromkeys(flagged, ratio)


def _scale(case: Case, monitor: Monitored, finding: str) -> list[Candidate]:
    """Return the faults that scale all noise by one factor, known factors first."""
    ratio, added = _smallest(case, monitor, finding), added_ratio(case)
    canary = finding == NOISE_CANARY.name
    if finding == NOISE_WHOLE.name:
        ratio = added
    elif not canary:
        # After few steps a tensor's smallest ratio is low by chance; that of all entries is not.
        ratio = max(ratio, case.seen(NOISE_WHOLE).get("flagged_ratio", 0.0))
    sigma, norm = monitor.history[-1].noise_multiplier, monitor.last_norm
    batch, root = monitor.last_scale, math.sqrt(case.processes)
    size, limits = _size(case, monitor, finding, added)
    of_batch = batch > 1 and _WIDE_BAND[0] < ratio * batch < _WIDE_BAND[1]
    rows: list[tuple[bool, Fault, dict[str, float]]] = [
        (of_batch and added * batch > _WIDE_BAND[0], DIVIDED_AGAIN, {"expected_batch_size": batch}),
        (case.processes > 1 and _fits(ratio * root), AVERAGED, {"processes": case.processes}),
        (0.0 < norm < 1.0 and _fits(ratio / norm), SQUARED_NORM, {"max_grad_norm": norm}),
        (
            0.0 < sigma < 1.0 and _fits(ratio / sigma),
            SQUARED_MULTIPLIER,
            {"noise_multiplier": sigma},
        ),
        (ratio < MISSING, NO_NOISE, {}),
        (ratio >= _SOME, _SIZED, {}),
    ]
    explains = case.of_noise
    parameters = _quietest_canary(monitor) if canary else ()
    return [
        case.candidate(fault, finding, "", {**limits, **more}, parameters, explains, size=size)
        for applies, fault, more in rows
        if applies
    ]


def _size(case: Case, monitor: Monitored, finding: str, added: float) -> tuple[str, dict[str, Any]]:
    """Return what is known of the ratio of noise to claim, as text and as evidence.

    An interval if what was added to the clipped sums was read and is more than almost nothing
    (else noise may have been added elsewhere); otherwise an upper limit.
    """
    limit = case.violated[finding].evidence.get("noise_ratio_upper")
    if limit is None:
        limit = monitor.witness_noise.sums.noise_upper()
    evidence = {"noise_ratio_upper": limit}
    whole = case.seen(NOISE_WHOLE)
    interval = None if "least_noise" in whole else whole.get("noise_ratio")
    if interval and added > MISSING and finding != NOISE_CANARY.name:
        evidence["noise_ratio"] = interval
    else:
        interval = (None, limit)
    return interval_in_words(*interval), evidence


def _fits(quotient: float) -> bool:
    return _BAND[0] < quotient < _BAND[1]


def _smallest(case: Case, monitor: Monitored, finding: str) -> float:
    """Return the smallest ratio of noise to claim among what the finding tests."""
    if finding == NOISE_WHOLE.name:
        return float(case.violated[finding].evidence["smallest_ratio"])
    if finding == NOISE_CANARY.name:
        return float(monitor.canary_noise.ratios().min())
    return float(monitor.witness_noise.smallest_ratio)


def added_ratio(case: Case) -> float:
    """Return what was added to the clipped sums over the claimed noise; inf if not read."""
    return float(case.seen(NOISE_WHOLE).get("added_ratio", math.inf))


def _quietest_canary(monitor: Monitored) -> tuple[str, ...]:
    quietest = int(np.argmin(monitor.canary_noise.ratios()))
    return named_tensors(monitor, [monitor.header.canaries[quietest]])
