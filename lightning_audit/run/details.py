"""The details of a report, which its views render: thresholds, growth, claim, limits, tensors."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lightning_audit.checks.check import REGISTRY, Evidence, evidence_in, headlines
from lightning_audit.checks.disclosure import coarse
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.config import AuditConfig
from lightning_audit.hooks.boundary import where
from lightning_audit.results.audit_report import (
    AuditReport,
    CheckResult,
    LikelyFault,
    OperatingPoint,
    items_words,
)
from lightning_audit.results.report_details import (
    PLAIN_LOOP,
    Assumption,
    CheckGrowth,
    ClaimedValue,
    TensorNoise,
    for_plain_loop,
)
from lightning_audit.run.measured import measured_epsilon
from lightning_audit.run.run_facts import RunFacts
from lightning_audit.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from lightning_audit.stats.noise_tests import ONE_SIDED, interval_in_words, limits_of_each
from lightning_audit.stats.tradeoff import GaussianTradeoff

_log = logging.getLogger(__name__)

# --- How the e-values of the checks grew, as far as it may leave the process.

#: Most points of a check.
MOST_POINTS = 12
_Points = list[tuple[int, float]]


def with_threshold(check: CheckResult, significance: float) -> CheckResult:
    """Return the check with the log e-value at which it flags.

    Args:
        check: its result; its share is that of one of several optimizers, if it is of one.
        significance: of the whole run.
    """
    if check.log_e_value is None or not check.share:
        return check
    return dataclasses.replace(check, log_e_threshold=-math.log(check.share * significance))


def growth_of(
    checks: Sequence[CheckResult], tests: Iterable[tuple[str, Evidence]]
) -> dict[str, CheckGrowth]:
    """Return how the e-value of each check grew that has one and observed something.

    Args:
        checks: results as the report shows them, with their thresholds.
        tests: label of the optimizer, or empty, and test, of all checks by e-process.

    Returns:
        By name of the check; if several optimizers have it, of the one closest to its threshold.
    """
    shown = {(c.name, c.optimizer): c for c in checks if c.status != "not_run"}
    found: dict[str, CheckGrowth] = {}
    for label, test in tests:
        check = shown.get((test.name, label))
        if check is None or check.log_e_threshold is None or not test.observed:
            continue
        private = REGISTRY[check.name].private
        points = _coarse(test.growth, check.log_e_threshold) if private else [*test.growth]
        thinned = _thinned(points, check.log_e_threshold)
        growth = CheckGrowth(check.log_e_threshold, tuple(thinned), label)
        if check.name not in found or _height(growth) > _height(found[check.name]):
            found[check.name] = growth
    return found


def _height(growth: CheckGrowth) -> float:
    return max((log_e / growth.threshold for _, log_e in growth.growth), default=0.0)


def _coarse(points: Iterable[tuple[int, float]], threshold: float) -> _Points:
    """Return the points at which the e-value reached a power of ten, for numbers of the data."""
    reached: _Points = []
    for step, log_e in points:
        if (rounded := coarse(log_e, threshold)) > (reached[-1][1] if reached else 0.0):
            reached.append((step, rounded))
    return reached


def _thinned(points: _Points, threshold: float) -> _Points:
    """Return the first and the last point, the first above the threshold, and some between."""
    if len(points) <= MOST_POINTS:
        return points
    crossed = next((i for i, (_, log_e) in enumerate(points) if log_e >= threshold), 0)
    between = MOST_POINTS - 2
    kept = {round(i * (len(points) - 1) / between) for i in range(between + 1)} | {crossed}
    return [points[i] for i in sorted(kept)]


# --- The claim that was audited, each part with its source, and what the epsilons rest on.

#: Parts that `PrivacyClaim` states, if the user does.
_STATED = (
    "noise_multiplier",
    "max_grad_norm",
    "expected_batch_size",
    "sample_rate",
    "sampling",
    "adjacency",
)
_SPENT = {
    "noise": "each step adds Gaussian noise of the stated size, independent of all other steps",
    "clipping": "clipping bounds what one record adds to a step by max_grad_norm",
    "release": "the update uses the noisy gradients alone, and nothing else is released",
}
_BATCHES = {
    "poisson": "each record joins each batch independently, with the stated sample rate",
    "shuffled": "each record enters one step an epoch at most",
}
_NEIGHBORS = {
    "add_remove": "neighboring data sets differ by one record, added or removed",
    "replace_one": "neighboring data sets differ by one replaced record",
}
_NOT_EXCLUDED = {
    "constant": "a fault has the same size, relative to the claim, in all steps",
    "power": "what this run would have flagged with a power of 95 % is excluded, at the observed "
    "gradient variance",
    "kinds": "noise that is too small and clipping at too large a norm, and no other fault",
}


def claim_of(run: RunFacts) -> dict[str, ClaimedValue]:
    """Return each part of the claim, with its source; parts that are unknown are None.

    The number of records is included only if batches are shuffled: with Poisson sampling it is
    private. The same for a divisor that is computed from it, if the user states it as private.
    """
    own, claims = run.optimizers.facts, [session.planner.known_claim() for session in run.sessions]
    histories = [session.monitor.history for session in run.sessions]
    noise = [  # the least of the steps, or that of the coming one
        min((phase.noise_multiplier for phase in history), default=claim and claim.noise_multiplier)
        for history, claim in zip(histories, claims, strict=True)
    ]
    public = not run.config.private_size
    divisors = [one.expected_batch_size for one in own] if public else []
    names = [str(link.accountant.mechanism()) for link in run.accountants]
    records = run.lints.records if public and run.config.shuffled else None
    read = {
        "noise_multiplier": (_one(noise), "optimizer"),
        "max_grad_norm": (_one([claim and claim.max_grad_norm for claim in claims]), "optimizer"),
        "expected_batch_size": (_one(divisors), "optimizer"),
        "sample_rate": (_one([one.sample_rate for one in own]), "accountant"),
        "records": (records, "loader"),
        "sampling": ("poisson", "accountant" if run.accountants else "default"),
        "adjacency": (run.config.adjacency, "default"),
        "accountant": (_one(names), "optimizer"),
    }
    stated = run.config.claim.to_dict() if run.config.claim else {}
    user = {name: stated[name] for name in _STATED if stated.get(name) is not None}
    return {
        name: ClaimedValue(user[name], "user") if name in user else ClaimedValue(value, source)
        for name, (value, source) in read.items()
    }


def claimed_mu(history: Sequence[tuple[float, float | None, int]]) -> float | None:
    """Return the claimed mu of the step with the least noise; None without steps or noise."""
    least = min((phase[0] for phase in history), default=0.0)
    return 1.0 / least if least > 0.0 else None


def assumptions_of(report: AuditReport, config: AuditConfig) -> dict[str, tuple[Assumption, ...]]:
    """Return what ``epsilon_spent`` and ``epsilon_not_excluded`` rest on, if they are known."""
    # The epsilon that holds with an allowed finding is that of one step an epoch.
    allowed = any("spent" in REGISTRY[name].refutes for name in report.epsilon_refuted_by)
    of_both = {
        "batches": _BATCHES["shuffled" if config.shuffled or allowed else "poisson"],
        "neighbors": _NEIGHBORS[config.adjacency] + items_words(config.items),
    }
    known = {
        "epsilon_spent": (report.epsilon_spent, {**_SPENT, **of_both}),
        "epsilon_not_excluded": (report.epsilon_not_excluded, {**_NOT_EXCLUDED, **of_both}),
    }
    return {
        name: tuple(Assumption(*item) for item in sentences.items())
        for name, (value, sentences) in known.items()
        if value is not None
    }


def _one(values: Sequence[Any]) -> Any:
    """Return the value if all optimizers have the same, else all; None if none is known."""
    if not values or all(value is None for value in values):
        return None
    return values[0] if all(value == values[0] for value in values) else list(values)


# --- Limits of the error rates at each operating point, and whether they fit the claim.


def with_limits(
    points: Iterable[OperatingPoint], claimed_mu: float | None, significance: float
) -> tuple[OperatingPoint, ...]:
    """Return the points with the limits of their rates.

    Args:
        points: counts at each threshold.
        claimed_mu: of the step with the least noise; None if no noise is claimed.
        significance: probability that the four limits of a point miss its rates.
    """
    curve = None if claimed_mu is None else GaussianTradeoff(claimed_mu)
    return tuple(_limited(point, curve, significance / 4.0) for point in points)


def _limited(point: OperatingPoint, curve: GaussianTradeoff | None, share: float) -> OperatingPoint:
    fpr = _limits(point.fp, point.fp + point.tn, share)
    fnr = _limits(point.fn, point.fn + point.tp, share)
    outside = False
    if curve is not None and fpr is not None and fnr is not None:
        inverted = 1.0 - curve(1.0 - fpr[0])
        outside = bool(fnr[1] < curve(fpr[1]) or fnr[0] > inverted)
    return dataclasses.replace(point, fpr=fpr, fnr=fnr, outside=outside)


def _limits(errors: int, trials: int, share: float) -> tuple[float, float] | None:
    """Return the limits of a rate, each wrong with probability ``share``; None without a trial."""
    if not trials:
        return None
    sides = (clopper_pearson_lower, clopper_pearson_upper)
    lower, upper = (float(side(errors, trials, share)) for side in sides)
    return lower, upper


# --- What was read of each tensor's noise, as rows of the report.

#: Most rows of tensors that are not flagged.
MOST_UNFLAGGED = 50


def rows_of(
    monitor: AuditMonitor, sizes: Mapping[str, int], optimizer: str = ""
) -> list[TensorNoise]:
    """Return a row for each tensor of a private optimizer.

    Args:
        monitor: the current checks.
        sizes: number of entries by name of the tensor.
        optimizer: its label, if there are several.
    """
    noise, header = monitor.witness_noise, monitor.header
    flagged = {*noise.flagged_tensors()}
    lower, upper = limits_of_each(noise.sums.count, noise.sums.squares)
    return [
        TensorNoise(
            name=name,
            size=sizes[name],
            entries=header.witnesses[j],
            reads=int(noise.sums.count[j]),
            ratio=float(np.sqrt(noise.sums.mean_square[j])) if noise.sums.count[j] else None,
            lower=float(lower[j]) if lower[j] > 0.0 else None,
            upper=float(upper[j]) if np.isfinite(upper[j]) else None,
            flagged=name in flagged,
            optimizer=optimizer,
        )
        for j, name in enumerate(header.tensors)
    ]


def capped(rows: Iterable[TensorNoise]) -> tuple[tuple[TensorNoise, ...], int]:
    """Return the flagged tensors and those with the least noise, and how many are left out."""
    every = sorted(rows, key=lambda row: (not row.flagged, row.ratio is None, row.ratio or 0.0))
    flagged = sum(row.flagged for row in every)
    kept = every[: flagged + MOST_UNFLAGGED]
    return tuple(kept), len(every) - len(kept)


# --- Fills the details of a report, from which its views are rendered.

_LACKS = "the report lacks its {}, which failed ({}); the verdict does not depend on that"


def filled(report: AuditReport, run: RunFacts) -> AuditReport:
    """Return the report with its details.

    A detail that fails adds a note, and the verdict stays.

    Args:
        report: with verdict, checks and epsilons.
        run: the run.
    """
    parts = (_faults, _thresholds, _growth, _tensors, _operating_points, _claim, _course)
    for part in (*parts, _as_measured):
        try:
            report = replace(report, **part(report, run))
        except Exception as error:
            failed, line = where(error)
            name = part.__name__.removeprefix("_")
            _log.warning("privacy audit: details failed: %s (%s:%d)", name, failed, line)
            report = replace(report, notes=(*report.notes, _LACKS.format(name, failed)))
    in_loop = report.run is not None and report.run.strategy == PLAIN_LOOP
    return for_plain_loop(report) if in_loop else report


def _faults(report: AuditReport, run: RunFacts) -> dict[str, Any]:
    """Return the verdict with headlines of its faults and places in the user's code.

    Where the size of a fault is known as an interval, headline, summary and check say that one.
    """
    verdict, faults = report.verdict, list[LikelyFault]()
    known = headlines() if verdict.faults else {}
    sizes = dict[tuple[str, str], str]()
    for fault in verdict.faults:
        words = known.get(fault.name) or REGISTRY[fault.finding].heading(failed=True)
        if interval := fault.evidence.get("noise_ratio"):
            size = sizes[fault.finding, fault.place.optimizer] = interval_in_words(*interval)
            words += f", {size.partition(' (')[0]}"
        faults.append(replace(fault, headline=words))
    verdict, checks = replace(verdict, faults=tuple(faults)), [*report.checks]
    for i, check in enumerate(checks):
        if size := sizes.get((check.name, check.optimizer), ""):
            said, replaced = ONE_SIDED.subn(size, check.message)
            said += "" if replaced else f": the noise is {size}"
            checks[i] = replace(check, message=said)
            if verdict.root and verdict.root.finding == check.name:
                verdict = replace(verdict, summary=verdict.summary.replace(check.message, said))
    if run.code:
        verdict = run.code.in_verdict(verdict, source=run.config.source_in_report)
    return {"verdict": verdict, "checks": tuple(checks)}


def _thresholds(report: AuditReport, run: RunFacts) -> dict[str, Any]:
    significance = run.config.significance
    return {"checks": tuple(with_threshold(check, significance) for check in report.checks)}


def _growth(report: AuditReport, run: RunFacts) -> dict[str, Any]:
    # Every test of the run, with the label of its optimizer if there are several.
    of_run = evidence_in([run.lints.batches, run.book, run.course.examined])
    tests = [
        (own.label, test)
        for session, own in zip(run.sessions, run.optimizers.facts, strict=False)
        for test in session.recorder.tests
    ] + [("", test) for test in of_run]
    return {"tests": growth_of(report.checks, tests)}


def _tensors(report: AuditReport, run: RunFacts) -> dict[str, Any]:
    rows, left_out = capped(
        row
        for session, own in zip(run.sessions, run.optimizers.facts, strict=False)
        for row in rows_of(
            session.monitor, {slot.name: slot.numel for slot in session.step.layout}, own.label
        )
    )
    return {"tensors": rows, "tensors_left_out": left_out}


def _operating_points(report: AuditReport, run: RunFacts) -> dict[str, Any]:
    mu, level = claimed_mu(report.history), run.config.bound_significance
    points = with_limits(report.operating_points, mu, level)
    return {"claimed_mu": mu, "operating_points": points}


def _claim(report: AuditReport, run: RunFacts) -> dict[str, Any]:
    return {
        "claim": claim_of(run),
        "settings_given": run.config.given,
        "assumptions": assumptions_of(report, run.config),
    }


def _course(report: AuditReport, run: RunFacts) -> dict[str, Any]:
    course, loader = run.course, run.lints.loader
    training = course.training
    return {
        "course": tuple(course.rows),
        "ended": course.ended(report.steps),
        "planned_steps": course.planned_steps,
        "run": replace(training, data=loader.data) if training and loader else training,
        "examinations": tuple(course.examinations),
        "published": tuple(course.fence.published),
    }


def _as_measured(report: AuditReport, run: RunFacts) -> dict[str, Any]:
    if run.config.mechanism_alone:
        return {}
    about = run.config.adjacency, run.course.fits.counted(run.config), run.config.items
    return {"epsilon_measured": measured_epsilon(report, *about)}
