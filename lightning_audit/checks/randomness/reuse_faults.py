"""Rules that name the likely fault if noise is re-used within a step or over steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lightning_audit.checks.base.candidates import (
    MISSING,
    Candidate,
    Case,
    first_seen,
)
from lightning_audit.checks.base.registry import REGISTRY, group
from lightning_audit.checks.noise.noise_at_entries import NOISE_WHOLE
from lightning_audit.checks.noise.noise_size import NOISE_CANARY, NOISE_STEP
from lightning_audit.checks.randomness.noise_forecast import REUSE_FORECAST
from lightning_audit.checks.randomness.noise_recurrence import CORRELATED_OVER_STEPS, RECURRENCE
from lightning_audit.checks.randomness.noise_reuse import REUSE_BROADCAST, REUSE_LAG, REUSE_PAIR

if TYPE_CHECKING:
    from lightning_audit.checks.monitor import AuditMonitor

#: Headlines of the faults that no check names alone.
HEADLINES = {
    "same_noise_at_every_step": "The same noise is added at every step",
    "same_noise_in_every_epoch": "The same noise is added in every epoch",
    "noise_in_a_cycle": "The noise repeats in a cycle",
}
#: A residual below this multiple of the plain one is evidence for re-used noise, not small noise.
_REUSE_GAIN = 0.7
#: The same for noise whose size is known without the data.
_FRESH = 0.9
#: Largest ratio of readings to the claim at which they contain no data; coefficient of earlier
#: noise in such readings from which on it is the same noise.
_ALONE, _WHOLE = 1.05, 0.85
_SEEDED_AFTER = "what seeds or restores a generator after that number of steps"
#: Number of recurrences at one distance from which on the noise recurs in a cycle.
_IN_A_ROW = 3


def reuse_candidates(case: Case) -> list[Candidate]:
    """Return the faults that add the same noise several times, the likeliest first.

    Noise that is shared within a step comes first, then noise that recurs after a fixed number of
    steps, then noise that recurs at irregular steps.
    """
    monitor = case.monitor
    if monitor is None:
        return []
    shared = [name for name in (REUSE_BROADCAST.name, REUSE_PAIR.name) if name in case.violated]
    clear = [name for name in shared if reuse_is_seen(case, monitor, name)]
    correlated = _correlated(case) or _dependent(case)
    found = (correlated,) if correlated else (_repeated(case, monitor), _recurring(case, monitor))
    others = [c for c in found if c is not None]
    # If nothing else explains slightly small differences, they are re-used noise as well.
    alone = not (clear or others or case.first_of(case.sizes))
    return [*(_shared(case, monitor, name) for name in (shared if alone else clear)), *others]


def reuse_is_seen(case: Case, monitor: AuditMonitor, name: str) -> bool:
    """Whether readings agree more closely than noise that is too small explains."""
    if name not in case.violated:
        return False
    if rules := REGISTRY[name].faults:
        return any(rule.applies(case.violated[name].evidence) for rule in rules)
    quiet = monitor.witness_noise.smallest_ratio
    if name != REUSE_LAG.name:
        ratio = monitor.reuse.residual_ratio(name)
        return ratio is not None and ratio < _REUSE_GAIN * quiet
    # Independent noise differs from earlier noise by sqrt(2) times its size, for any size. If the
    # noise is constant, the centre learns it and the plain residual is small as well; but then
    # `reuse.lag` is violated first.
    whole = case.violated.get(NOISE_WHOLE.name)
    added = math.inf if whole is None else whole.evidence.get("added_ratio", math.inf)
    if monitor.reuse.lag_ratio() / math.sqrt(2.0) >= _FRESH * added:
        return False  # independent noise of the added size explains it
    noise_at = monitor.witness_noise.pooled.violated_at
    lag_at = monitor.reuse.evidence[name].violated_at
    first = noise_at is None or (lag_at is not None and lag_at < noise_at)
    return first or _comes_back_regularly(monitor)


def _shared(case: Case, monitor: AuditMonitor, finding: str) -> Candidate:
    name, sentence, look_at = {
        REUSE_BROADCAST.name: (
            "one_value_for_all_coordinates",
            "one noise value is shared by all coordinates of a step",
            "the shape that the noise is drawn with: it must be that of the gradient",
        ),
        REUSE_PAIR.name: (
            "one_key_for_all_tensors",
            "one noise key is used for several tensors",
            "whether one seed or key serves all tensors of a step, or two processes' shards",
        ),
    }[finding]
    evidence = {"residual_ratio": monitor.reuse.residual_ratio(finding)}
    sentence = f"noise re-used: {sentence}"
    # One draw per step may be small for many steps; with one key, pairs of coordinates cancel.
    entailed = case.sizes if finding == REUSE_BROADCAST.name else (NOISE_CANARY.name,)
    explains = (*group("reuse"), *entailed, *case.beyond)
    return case.candidate(name, finding, sentence, look_at, evidence, explains=explains)


def _repeated(case: Case, monitor: AuditMonitor) -> Candidate | None:
    finding, reuse = REUSE_LAG.name, monitor.reuse
    if not reuse_is_seen(case, monitor, finding) or _in_part(case):
        return None
    if RECURRENCE.name in case.violated and not _comes_back_regularly(monitor):
        return None
    in_epochs = reuse.lag > reuse.lags
    if in_epochs:
        name, look_at = "same_noise_in_every_epoch", "whether an epoch's start seeds the generator"
    elif reuse.lag == 1:
        name, look_at = "same_noise_at_every_step", "whether a generator is seeded in each step"
    else:
        name, look_at = "noise_in_a_cycle", _SEEDED_AFTER
    # The centre of a coordinate learns the mean of a cycle's noise; this is the ratio that is left.
    left = math.sqrt(1.0 - 1.0 / reuse.lag)
    quiet = monitor.witness_noise.smallest_ratio
    entailed = case.sizes if not in_epochs and quiet >= 0.9 * left else ()
    evidence = {"difference_ratio": reuse.lag_ratio() / math.sqrt(2.0)}
    return case.candidate(
        name,
        finding,
        f"noise re-used: the same noise is added {reuse.period}",
        look_at,
        evidence if in_epochs else {"lag": reuse.lag, **evidence},
        explains=(*group("reuse"), *entailed, *case.beyond),
    )


def _in_part(case: Case) -> bool:
    """Whether earlier noise predicts a part of the noise, in readings without data."""
    if REUSE_FORECAST.name not in case.violated:
        return False
    if RECURRENCE.name in case.violated:
        alike = case.violated[RECURRENCE.name].evidence.get("difference_ratio")
        if float(alike or 0.0) < MISSING:  # the whole noise of a step recurred
            return False
    seen = case.violated[REUSE_FORECAST.name].evidence
    (rule,) = REUSE_FORECAST.faults
    return rule.applies(seen) and seen["ratio"] < _ALONE and abs(seen["coefficient"]) < _WHOLE


def _dependent(case: Case) -> Candidate | None:
    """Return the fault if noise of the right size is predicted in part: what is left is small."""
    finding = REUSE_FORECAST.name
    if not _in_part(case) or case.violated[finding].evidence["ratio"] < 1.0 / _ALONE:
        return None
    (rule,) = REUSE_FORECAST.faults
    explains = case.of_noise
    return case.candidate(rule.name, finding, rule.sentence, rule.look_at, explains=explains)


def _comes_back_regularly(monitor: AuditMonitor) -> bool:
    """Whether steps at one lag agree over the whole run; with few seeds only a few pairs do."""
    quiet = monitor.witness_noise.smallest_ratio
    return monitor.reuse.lag_ratio() / math.sqrt(2.0) < _REUSE_GAIN * quiet


def _correlated(case: Case) -> Candidate | None:
    """Return the fault if noise depends on earlier noise without repeating it."""
    finding = RECURRENCE.name
    seen = case.violated[finding].evidence if finding in case.violated else {}
    # Entries without noise also depend on their past. If noise depends on earlier noise, the past
    # predicts a part of it, and the rest is small: so compare which check was violated first.
    found = first_seen(seen)
    small = [
        first_seen(case.violated[name].evidence) for name in case.sizes if name in case.violated
    ]
    again = float(seen.get("difference_ratio") or 1.0) < MISSING  # the noise itself recurs
    if again or "agreement" not in seen or any(at is None or at <= found for at in small):
        return None
    return case.candidate(
        CORRELATED_OVER_STEPS,
        finding,
        REUSE_FORECAST.faults[0].sentence,
        "how the noise of a step is computed from draws of earlier steps, and whether "
        "PrivacyClaim(noise_coefficients=...) states the weights of these draws",
        {"lag": seen["lag"], "agreement": seen["agreement"]},
        explains=case.of_noise,
    )


def _recurring(case: Case, monitor: AuditMonitor) -> Candidate | None:
    finding = RECURRENCE.name
    if finding not in case.violated or not _recurs(case, monitor, finding):
        return None
    if _in_part(case):
        return None
    distances = case.violated[finding].evidence.get("distances", [])
    explains = (*group("reuse"), *case.beyond)
    if len(distances) >= _IN_A_ROW and len(set(distances)) == 1:
        return case.candidate(
            "noise_in_a_cycle",
            finding,
            f"noise re-used: the same noise is added again after {distances[0]} steps",
            _SEEDED_AFTER,
            {"lag": distances[0]},
            explains=explains,
        )
    return case.candidate(
        "few_seeds",
        finding,
        "noise re-used: the noise comes back at irregular steps, as from few seeds"
        if len(distances) != 1
        else "noise re-used: the noise of an earlier step comes back, as from few seeds or a "
        "generator that starts again",
        "how the noise is seeded: whether seeds are drawn from a small range, or from the clock",
        explains=explains,
    )


def _recurs(case: Case, monitor: AuditMonitor, finding: str) -> bool:
    """Whether steps agree more closely than noise that is too small or missing explains."""
    if not case.first_of(case.sizes):
        return True
    since = monitor.witness_noise.onset.ratios() and NOISE_STEP.name in case.violated
    if case.first_of(case.sizes) == NOISE_STEP.name or since:
        # Steps without noise agree; `noise.step` flags one before two of them can be compared.
        quiet_at = case.violated[NOISE_STEP.name].evidence.get("violated_at_step")
        alike_at = case.violated[finding].evidence.get("violated_at_step")
        return quiet_at is not None and alike_at is not None and alike_at < quiet_at
    quiet = monitor.witness_noise.smallest_ratio
    difference = float(case.violated[finding].evidence.get("difference_ratio") or 0.0)
    # If noise becomes small during a run, it is small in the steps compared, and less small in the
    # mean of all steps.
    return quiet >= MISSING and difference < MISSING
