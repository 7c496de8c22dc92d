"""Which fault of the noise makes it too small, alike at several places, or of another shape."""

from __future__ import annotations

import math

import numpy as np

from lightning_audit.catalogue.noise_checks import NOISE_ENTRIES, NOISE_STEP
from lightning_audit.catalogue.registry import REGISTRY, group
from lightning_audit.catalogue.reuse_checks import (
    CORRELATED_OVER_STEPS,
    REUSE_ENTRIES,
    REUSE_FORECAST,
)
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.verdict.candidates import Candidate, Case, named_tensors
from lightning_audit.verdict.root import first_seen

#: A residual this much smaller than the plain one speaks for re-used noise, not for small noise.
#: Few steps come last: they are the finding where nothing else of the noise is.
NOISE = tuple(sorted(group("noise"), key=lambda name: name == NOISE_STEP.name))
REUSE, CHANNEL, LEAKAGE = group("reuse"), group("channel"), group("leakage")

_REUSE_GAIN = 0.7
#: Readings of at most this size, over the claim, have no data beside the noise; and the part of
#: earlier noise, in such readings, from which on it is the same noise.
_ALONE, _WHOLE = 1.05, 0.85
#: Ratios of reading to claim at which the noise of a tensor is taken to be right.
_HEALTHY = (0.95, 1.08)
#: Noise below this part of the claim counts as missing; from the second on as too small as well.
_MISSING, _SOME = 0.1, 0.03
#: Ratio of what is read to what a rule expects; the data only add to it.
_BAND, _WIDE_BAND = (0.95, 1.12), (0.97, 1.4)

_SCALE = (
    "compare the standard deviation of the noise that is drawn (Opacus: in add_noise) with "
    "noise_multiplier * max_grad_norm"
)


def reuse_candidates(case: Case) -> list[Candidate]:
    """Faults by which the same noise is added at several places, the likeliest first.

    Noise that is shared within a step comes first, then noise that comes back after some steps,
    then noise that comes back at no fixed distance.
    """
    monitor = case.monitor
    if monitor is None:
        return []
    shared = [name for name in ("reuse.broadcast", "reuse.pair") if name in case.violated]
    clear = [name for name in shared if reuse_is_seen(case, monitor, name)]
    correlated = _correlated(case) or _dependent(case)
    found = (correlated,) if correlated else (_repeated(case, monitor), _recurring(case, monitor))
    others = [c for c in found if c is not None]
    # Where nothing else explains them, differences that are a little small are re-used noise, too.
    alone = not (clear or others or case.first_of(NOISE))
    return [*(_shared(case, monitor, name) for name in (shared if alone else clear)), *others]


def noise_candidates(case: Case) -> list[Candidate]:
    """Faults by which noise is too small or of another shape, the likeliest first.

    Few tensors come before all of them, and a factor that a known mistake makes (the batch size,
    the number of processes, a square) before any other factor.
    """
    monitor = case.monitor
    if monitor is None:
        return []
    finding = case.first_of(NOISE)
    found = []
    if finding == "noise.step":
        found.append(
            case.candidate(
                "noise_missing_in_steps",
                finding,
                "noise of some steps: a few steps have too little noise, or none",
                "what those steps do otherwise: the last batch of an epoch, a step after "
                "validation, a branch that skips the noise; and what the noisy sum is divided by, "
                "which must be the expected batch size, whatever the batch's own",
                {},
                explains=(*REUSE, *CHANNEL, *LEAKAGE),
            )
        )
    elif finding:
        found += [*_in_tensors(case, monitor), *_scale(case, monitor, finding)]
    if "noise.shape" in case.violated and not _of_few_entries(case):
        found.append(
            case.candidate(
                "noise_of_another_shape",
                "noise.shape",
                "noise of another shape: its standard deviation is right and its distribution is "
                "not the normal one that the accountant supposes",
                "which distribution the noise is drawn from, and whether it is rounded, clipped or "
                "cast to a type of low precision afterwards",
            )
        )
    return found


def _of_few_entries(case: Case) -> bool:
    """Whether ties come from entries without noise, or from those that share it."""
    checks = [NOISE_ENTRIES, REUSE_ENTRIES]
    return any(
        rule.applies(case.violated[check.name].evidence)
        for check in checks
        if check.name in case.violated
        for rule in check.faults
    )


# ------------------------------------------------------------------ re-used noise


def reuse_is_seen(case: Case, monitor: AuditMonitor, name: str) -> bool:
    """Whether readings agree by more than small noise alone makes them."""
    if name not in case.violated:
        return False
    if rules := REGISTRY[name].faults:
        return any(rule.applies(case.violated[name].evidence) for rule in rules)
    quiet = monitor.witness_noise.smallest_ratio
    if name != "reuse.lag":
        ratio = monitor.reuse.residual_ratio(name)
        return ratio is not None and ratio < _REUSE_GAIN * quiet
    # Fresh noise differs from earlier noise by sqrt(2) times its size, whatever the size. Where
    # the noise is constant the centre learns it, and the plain residual is small as well; but
    # then the re-use is seen first.
    noise_at = monitor.witness_noise.pooled.violated_at
    lag_at = monitor.reuse.evidence[name].violated_at
    first = noise_at is None or (lag_at is not None and lag_at < noise_at)
    return first or _comes_back_regularly(monitor)


def _shared(case: Case, monitor: AuditMonitor, finding: str) -> Candidate:
    name, sentence, look_at = {
        "reuse.broadcast": (
            "one_value_for_all_coordinates",
            "one noise value is shared by all coordinates of a step",
            "the shape that the noise is drawn with: it must be that of the gradient",
        ),
        "reuse.pair": (
            "one_key_for_all_tensors",
            "one noise key is used for several tensors",
            "whether one seed or key serves all tensors of a step, or two processes' shards",
        ),
    }[finding]
    evidence = {"residual_ratio": monitor.reuse.residual_ratio(finding)}
    sentence = f"noise re-used: {sentence}"
    # One draw a step may be small for many steps; with one key, pairs of coordinates cancel.
    entailed = NOISE if finding == "reuse.broadcast" else ("noise.canary",)
    explains = (*REUSE, *entailed, *CHANNEL, *LEAKAGE)
    return case.candidate(name, finding, sentence, look_at, evidence, explains=explains)


def _repeated(case: Case, monitor: AuditMonitor) -> Candidate | None:
    finding, reuse = "reuse.lag", monitor.reuse
    if not reuse_is_seen(case, monitor, finding) or _in_part(case):
        return None
    if "reuse.recurrence" in case.violated and not _comes_back_regularly(monitor):
        return None
    in_epochs = reuse.lag > reuse.lags
    if in_epochs:
        name, look_at = "same_noise_in_every_epoch", "whether an epoch's start seeds the generator"
    elif reuse.lag == 1:
        name, look_at = "same_noise_at_every_step", "whether a generator is seeded in each step"
    else:
        name, look_at = "noise_in_a_cycle", "what seeds or restores a generator after so many steps"
    # The centre of a coordinate learns the mean of a cycle's noise, and leaves so much of it.
    left = math.sqrt(1.0 - 1.0 / reuse.lag)
    quiet = monitor.witness_noise.smallest_ratio
    entailed = NOISE if not in_epochs and quiet >= 0.9 * left else ()
    evidence = {"difference_ratio": reuse.lag_ratio() / math.sqrt(2.0)}
    return case.candidate(
        name,
        finding,
        f"noise re-used: the same noise is added {reuse.period}",
        look_at,
        evidence if in_epochs else {"lag": reuse.lag, **evidence},
        explains=(*REUSE, *entailed, *CHANNEL, *LEAKAGE),
    )


def _in_part(case: Case) -> bool:
    """Whether noise is told by that of earlier steps in part, where no data are beside it."""
    if REUSE_FORECAST.name not in case.violated:
        return False
    if "reuse.recurrence" in case.violated:
        alike = case.violated["reuse.recurrence"].evidence.get("difference_ratio")
        if float(alike or 0.0) < _MISSING:  # the whole noise of a step came back
            return False
    seen = case.violated[REUSE_FORECAST.name].evidence
    (rule,) = REUSE_FORECAST.faults
    return rule.applies(seen) and seen["ratio"] < _ALONE and abs(seen["coefficient"]) < _WHOLE


def _dependent(case: Case) -> Candidate | None:
    """Noise of the right size that is told in part: what is left of it is small, and is read so."""
    finding = REUSE_FORECAST.name
    if not _in_part(case) or case.violated[finding].evidence["ratio"] < 1.0 / _ALONE:
        return None
    (rule,) = REUSE_FORECAST.faults
    explains = (*REUSE, *NOISE, *CHANNEL, *LEAKAGE)
    return case.candidate(rule.name, finding, rule.sentence, rule.look_at, explains=explains)


def _comes_back_regularly(monitor: AuditMonitor) -> bool:
    """Whether steps at one lag agree over the whole run; of few seeds a few pairs do."""
    quiet = monitor.witness_noise.smallest_ratio
    return monitor.reuse.lag_ratio() / math.sqrt(2.0) < _REUSE_GAIN * quiet


def _correlated(case: Case) -> Candidate | None:
    """Noise that follows that of earlier steps and does not come back as it was."""
    finding = "reuse.recurrence"
    seen = case.violated[finding].evidence if finding in case.violated else {}
    # Where noise is missing, what is left there follows itself; of noise that follows itself, the
    # past foretells a part, and the rest is small.
    found = first_seen(seen)
    small = [first_seen(case.violated[name].evidence) for name in NOISE if name in case.violated]
    again = float(seen.get("difference_ratio") or 1.0) < _MISSING  # the noise itself comes back
    if again or "agreement" not in seen or any(at is None or at <= found for at in small):
        return None
    return case.candidate(
        CORRELATED_OVER_STEPS,
        finding,
        REUSE_FORECAST.faults[0].sentence,
        "how the noise of a step is made of draws of earlier steps, and whether "
        "PrivacyClaim(noise_coefficients=...) states the weights of these draws",
        {"lag": seen["lag"], "agreement": seen["agreement"]},
        explains=(*REUSE, *NOISE, *CHANNEL, *LEAKAGE),
    )


def _recurring(case: Case, monitor: AuditMonitor) -> Candidate | None:
    finding = "reuse.recurrence"
    if finding not in case.violated or not _recurs(case, monitor, finding):
        return None
    if _in_part(case):
        return None
    return case.candidate(
        "few_seeds",
        finding,
        "noise re-used: the noise comes back at irregular steps, as from few seeds",
        "how the noise is seeded: whether seeds are drawn from a small range, or from the clock",
        explains=(*REUSE, *CHANNEL, *LEAKAGE),
    )


def _recurs(case: Case, monitor: AuditMonitor, finding: str) -> bool:
    """Whether steps agree by more than noise does that is too small, or missing."""
    if not case.first_of(NOISE):
        return True
    if case.first_of(NOISE) == "noise.step":
        # Steps without noise agree, and are seen as such before two of them are.
        quiet_at = case.violated["noise.step"].evidence.get("violated_at_step")
        alike_at = case.violated[finding].evidence.get("violated_at_step")
        return quiet_at is not None and alike_at is not None and alike_at < quiet_at
    quiet = monitor.witness_noise.smallest_ratio
    difference = float(case.violated[finding].evidence.get("difference_ratio") or 0.0)
    # Noise that becomes small in the middle of a run is small in the steps compared, and less so in
    # the mean of all.
    return quiet >= _MISSING and difference < _MISSING


# ------------------------------------------------------------------ noise that is too small


def _in_tensors(case: Case, monitor: AuditMonitor) -> list[Candidate]:
    """Few tensors with too little noise, where the others read the claimed noise."""
    noise = monitor.witness_noise
    ratios = dict(zip(monitor.header.tensors, noise.ratios().tolist(), strict=True))
    flagged = noise.flagged_tensors()
    others = [ratio for name, ratio in ratios.items() if name not in flagged]
    # The others read the claimed noise, and they are the majority: the scale is right there. (A
    # few tensors that read about the claim may do so by their data alone.)
    right = bool(others) and _HEALTHY[0] < float(np.median(others)) < _HEALTHY[1]
    if not (flagged and right and len(flagged) <= len(others)):
        return []
    smallest = ratios[flagged[0]]
    missing = smallest < _MISSING
    shown = ", ".join(f"`{name}`" for name in flagged[:5])
    what = "is missing" if missing else f"is {smallest:.3g} times the claim or less"
    finding = case.first_of(("noise.tensor", *NOISE)) or "noise.tensor"
    rest = (*REUSE, "noise.canary", "noise.step", *CHANNEL, *LEAKAGE)
    evidence = {
        "sd_ratio": {name: ratios[name] for name in flagged},
        "median_of_the_others": float(np.median(others)),
    }
    return [
        case.candidate(
            "noise_missing_in_tensors" if missing else "noise_too_small_in_tensors",
            finding,
            f"noise of some tensors: the noise of {shown} {what}",
            "whether noise is added to every trainable parameter, and whether another optimizer "
            "or a hook writes to these ones' gradients",
            evidence,
            tuple(flagged),
            # Noise that is a little small in some tensors may be so in all, and hidden by data.
            ("noise", *rest) if missing else rest,
        )
    ]


def _scale(case: Case, monitor: AuditMonitor, finding: str) -> list[Candidate]:
    """The factor by which noise is too small, known ones first."""
    ratio = _smallest(monitor, finding)
    sigma, norm = monitor.history[-1].noise_multiplier, monitor.last_norm
    batch, root = monitor.last_scale, math.sqrt(case.processes)
    read = f"noise and data are {ratio:.3g} times the claimed noise"
    small = f"noise scale too small: the noise is {ratio:.3g} times the claim or less"
    rows: list[tuple[bool, str, str, str, dict[str, float]]] = [
        (
            batch > 1 and _WIDE_BAND[0] < ratio * batch < _WIDE_BAND[1],
            "noise_divided_by_batch",
            f"noise divided by the batch size: {read}, about one over the expected batch size of "
            f"{batch:g}",
            "whether the noise is added to the sum of the gradients, before it is divided, or "
            "drawn for the mean and divided once more",
            {"expected_batch_size": batch},
        ),
        (
            case.processes > 1 and _fits(ratio * root),
            "noise_averaged_over_processes",
            f"noise averaged over processes: {read}, about one over the square root of the number "
            f"of processes, {case.processes}",
            "whether every process adds its own noise and the gradients are then averaged; the "
            "noise is to be added to the sum, once",
            {"processes": case.processes},
        ),
        (
            0.0 < norm < 1.0 and _fits(ratio / norm),
            "noise_of_squared_norm",
            f"{small}, about max_grad_norm={norm:g}, as if that came in twice",
            f"{_SCALE}, with the clipping norm in it once",
            {"max_grad_norm": norm},
        ),
        (
            0.0 < sigma < 1.0 and _fits(ratio / sigma),
            "noise_of_squared_multiplier",
            f"{small}, about noise_multiplier={sigma:g}, as if that came in twice",
            f"{_SCALE}, and not the variance",
            {"noise_multiplier": sigma},
        ),
        (
            ratio < _MISSING,
            "no_noise",
            "no noise: the gradients are released without noise, or with next to none",
            "whether noise is drawn at all (Opacus: in add_noise), and whether the gradient that "
            "it is added to is the one that the update uses",
            {},
        ),
        (ratio >= _SOME, "noise_too_small", small, _SCALE, {}),
    ]
    explains = (*NOISE, *REUSE, *CHANNEL, *LEAKAGE)
    parameters = _quietest_canary(monitor) if finding == "noise.canary" else ()
    return [
        case.candidate(
            name, finding, text, look_at, {"sd_ratio": ratio, **more}, parameters, explains
        )
        for applies, name, text, look_at, more in rows
        if applies
    ]


def _fits(quotient: float) -> bool:
    return _BAND[0] < quotient < _BAND[1]


def _smallest(monitor: AuditMonitor, finding: str) -> float:
    """The smallest noise over the claim, where the finding looks."""
    if finding == "noise.canary":
        return float(monitor.canary_noise.ratios().min())
    return monitor.witness_noise.smallest_ratio


def _quietest_canary(monitor: AuditMonitor) -> tuple[str, ...]:
    quietest = int(np.argmin(monitor.canary_noise.ratios()))
    return named_tensors(monitor, [monitor.header.canaries[quietest]])
