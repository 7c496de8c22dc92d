"""Build the metrics of an epoch, the verdict and the report from what the sessions observed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import metadata
from typing import Any

from lightning_audit.accounting.phases import Phase, leaking, merge
from lightning_audit.accounting.spending import epsilon_at_ratio
from lightning_audit.checks.base.disclosure import numbers_of_data
from lightning_audit.checks.base.registry import REGISTRY, shared_log_e
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise.noise_mean import NOISE_MEAN
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.results.audit_report import (
    AuditReport,
    CheckResult,
    EpsilonBound,
    OperatingPoint,
    OptimizerSeen,
    Power,
    Verdict,
)
from lightning_audit.run.details.filled import filled
from lightning_audit.run.findings import Findings, results_by_place, unknown_epsilons
from lightning_audit.run.run_epsilons import Epsilons, run_history
from lightning_audit.run.run_facts import RunFacts
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.verdict.allowed import Held, held, named, with_allowed, worded
from lightning_audit.verdict.judge import judge, seen_of, worst
from lightning_audit.verdict.pass_blockers import MECHANISM_ALONE, NOT_ENDED, blockers_of_run
from lightning_audit.verdict.power_model import PowerModel
from lightning_audit.verdict.root import mark_consequences

#: Dashboards plot in single precision; a larger e-value adds no information.
_LARGEST_E_VALUE = 1e30
#: Note for correlated noise that was not read without the data.
_NOT_ALONE = (
    "the noise was not read without the data: the size of its draws was tested, but not whether it "
    "contains earlier draws with other weights than noise_coefficients"
)
#: The metric that counts the allowed findings, if there are any.
_ALLOWED = "allowed"
_LIBRARIES = (
    "lightning-audit",
    "torch",
    "pytorch-lightning",
    "lightning",
    "opacus",
    "dp-accounting",
    "numpy",
)


def epoch_metrics(
    sessions: Sequence[AuditSession],
    epsilons: Epsilons,
    checks: Sequence[CheckResult],
    config: AuditConfig,
) -> dict[str, float]:
    """Return the metrics of an epoch's end, without epsilons that are not known to hold.

    Bounds for a single look are included only if ``config.bounds`` requests some.
    """
    proved, bounds = epsilons.proved, config.bounds
    now = _held(checks, epsilons, config)
    allowed = sum(check.status == "allowed" for check in checks)
    metrics: dict[str, float | None] = {
        "epsilon_lower": proved.epsilon_lower if now.lower_holds else None,
        "epsilon_spent": now.spent,
        "claimed_epsilon": now.claimed if now.claim_holds else None,
        **({_ALLOWED: float(allowed)} if allowed else {}),
        "violated": float(any(check.status == "violated" for check in checks)),
    }
    if sessions:
        monitors = [session.monitor for session in sessions]
        metrics["mu_lower"] = proved.mu_lower
        # The claim is refuted once the metric reaches 1 / (the significance of the run).
        log_e = shared_log_e(check for check in checks if REGISTRY[check.name].each)
        metrics["e_value"] = min(math.exp(min(log_e, 100.0)), _LARGEST_E_VALUE)
        metrics["observations"] = float(sum(m.sensitivity.observations for m in monitors))
        metrics["step"] = float(sum(monitor.steps for monitor in monitors))
    for bound in _bounds_that_hold(proved.bounds, now):
        if bounds and bound.looks == "single":
            metrics[f"epsilon_lower/{bound.name}"] = bound.epsilon_lower
            metrics[f"epsilon_step_lower/{bound.name}"] = bound.epsilon_step_lower
    return {k: float(v) for k, v in metrics.items() if v is not None and math.isfinite(v)}


def _held(checks: Sequence[CheckResult], epsilons: Epsilons, config: AuditConfig) -> Held:
    """Return which epsilons hold, given the findings that are allowed."""
    claimed, stated = epsilons.claimed_epsilon, config.claimed_epsilon
    return held(checks, epsilons.epsilon_spent, claimed, stated)


def _bounds_that_hold(bounds: Sequence[EpsilonBound], now: Held) -> tuple[EpsilonBound, ...]:
    """Return the bounds; those on the run only if batches are as the accountant assumes."""
    if now.lower_holds:
        return tuple(bounds)
    return tuple(dataclasses.replace(bound, epsilon_lower=None) for bound in bounds)


def _rows_that_hold(
    rows: Sequence[Mapping[str, float]], checks: Sequence[CheckResult]
) -> tuple[Mapping[str, float], ...]:
    """Return the logged rows; rows from before the latest allowed finding lose their epsilons."""
    allowed = sum(check.status == "allowed" for check in checks)
    return tuple(
        row
        if row.get(_ALLOWED, 0.0) == allowed
        else {name: value for name, value in row.items() if not _is_of_run(name)}
        for row in rows
    )


def _is_of_run(metric: str) -> bool:
    """Return whether a metric is an epsilon of the whole run."""
    return metric.startswith(("epsilon_lower", "epsilon_spent", "claimed_epsilon"))


def build_report(
    sessions: Sequence[AuditSession],
    facts: RunFacts,
    config: AuditConfig,
    epsilons: Epsilons,
    findings: Findings,
    *,
    complete: bool,
) -> AuditReport:
    """Build the report; the power is computed only for a complete run."""
    models = [
        PowerModel(session.monitor, session.source.oversize)
        if complete and session.monitor.steps
        else None
        for session in sessions
    ]
    powers = [model.at(config.resolution) if model else {} for model in models]
    seen = tuple(
        seen_of(
            session.monitor,
            power,
            session.source.oversize,
            session.pass_blockers(facts.examined.alone),
            optimizer.label,
            float(session.recorder.released.canaries.mean()) if session.at_cut else 1.0,
        )
        for session, power, optimizer in zip(sessions, powers, facts.optimizers, strict=True)
    )
    blockers = _other_blockers(facts, config, complete)
    pass_blockers = blockers_of_run(
        config,
        findings.all,
        epsilons.epsilon_spent,
        blockers,
        complete=complete,
        mechanism_alone=config.mechanism_alone,
    )
    now = _held(findings.all, epsilons, config)
    findings = Findings(
        worded(findings.all, now), tuple(worded(own, now) for own in findings.by_optimizer)
    )
    verdict = _verdict(sessions, facts, config, findings, seen, pass_blockers)
    names = named(findings.all, config, facts.unaudited)
    verdict = with_allowed(verdict, names, now, config.delta)
    monitors = [session.monitor for session in sessions]
    history, composed = run_history(sessions), merge(epsilons.composed)
    not_run = {check.name for check in findings.all if check.status == "not_run"}
    records = [session.store.path.name for session in sessions if session.store]
    report = AuditReport(
        verdict=verdict,
        checks=mark_consequences(findings.all, verdict.faults),
        bounds=_bounds_that_hold(epsilons.proved.bounds, now),
        operating_points=_operating_points(monitors),
        claimed_epsilon=now.claimed,
        epsilon_spent=now.spent,
        epsilon_refuted_by=now.refuted_by,
        epsilon_not_excluded=_not_excluded(models, monitors, config, verdict)
        if now.spent_holds
        else None,
        delta=config.delta,
        steps=sum(monitor.steps for monitor in monitors),
        observations=sum(monitor.sensitivity.observations for monitor in monitors),
        history=_as_tuples(history),
        composed=() if {*composed} == {*merge(history)} else _as_tuples(composed),
        power=_least_power(powers),
        epochs=_rows_that_hold(facts.epochs, findings.all),
        settings=config.settings(ended=complete),
        environment={name: _version(name) for name in _LIBRARIES},
        notes=(
            *facts.notes,
            *numbers_of_data(findings.all),
            *_notes(sessions, facts, config, verdict, not_run),
        ),
        record=records[0] if records else None,
        other_records=tuple(records[1:]),
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        complete=complete,
        optimizers=seen,
        pass_blockers=tuple(blockers),
        audit_cost=facts.cost,
        examination_cost=facts.examined.cost,
    )
    return filled(report, sessions, facts, config)


def _as_tuples(phases: Iterable[Phase]) -> tuple[tuple[float, float | None, int], ...]:
    return tuple((phase.noise_multiplier, phase.sample_rate, phase.steps) for phase in phases)


def segment_state(
    sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig
) -> dict[str, Any]:
    """Return the checkpoint state of the checks that restart after it."""
    if not sessions:
        return facts.earlier.state([], [])
    seen = results_by_place(sessions, facts, config, unknown_epsilons(config))
    levels = [*(session.monitor.significance for session in sessions), config.significance]
    return facts.earlier.state(seen, levels)


def _least_power(powers: Sequence[Mapping[str, Power]]) -> dict[str, dict[str, Any]]:
    """Return the least power over the optimizers, for each part of the resolution."""
    parts = dict.fromkeys(part for power in powers for part in power)
    least = {
        part: min((power[part] for power in powers if part in power), key=lambda p: p.power)
        for part in parts
    }
    return {part: dataclasses.asdict(power) for part, power in least.items()}


def _verdict(
    sessions: Sequence[AuditSession],
    facts: RunFacts,
    config: AuditConfig,
    findings: Findings,
    seen: Sequence[OptimizerSeen],
    pass_blockers: Sequence[str],
) -> Verdict:
    """Return the worst verdict over the private optimizers."""
    if not sessions:
        return judge(findings.all, None, None, config.resolution, pass_blockers)
    verdicts = [
        judge(
            checks,
            session.monitor,
            shown,
            config.resolution,
            pass_blockers,
            facts.processes,
            mechanism_alone=config.mechanism_alone,
        )
        for session, checks, shown in zip(sessions, findings.by_optimizer, seen, strict=True)
    ]
    labels = [optimizer.label for optimizer in facts.optimizers]
    broken = {check.optimizer for check in findings.all if check.status == "violated"}
    return worst(verdicts, labels, pass_blockers, broken)


def _notes(
    sessions: Sequence[AuditSession],
    facts: RunFacts,
    config: AuditConfig,
    verdict: Verdict,
    not_run: Collection[str],
) -> list[str]:
    # If the verdict is inconclusive, the unwritten files are among its pass_blockers.
    notes = list(facts.unwritten) if verdict.outcome == "VIOLATION" else []
    if config.mechanism_alone:
        notes.append(MECHANISM_ALONE)
        notes += [_NOT_ALONE] if NOISE_MEAN.name in not_run else []
    for session, optimizer in zip(sessions, facts.optimizers, strict=True):
        notes += [optimizer.named(note) for note in session.planner.notes]
        if optimizer.label and session.store:
            notes.append(optimizer.named(f"its record is {session.store.path.name}"))
    return notes


def _operating_points(monitors: Sequence[AuditMonitor]) -> tuple[OperatingPoint, ...]:
    """Sum the optimizers' counts, at the thresholds of the first one that has any."""
    tables = [points for points in (m.guesses.points for m in monitors) if points]
    return tuple(
        OperatingPoint(
            row[0].threshold,
            *(sum(getattr(point, name) for point in row) for name in ("fn", "tp", "fp", "tn")),
        )
        for row in zip(*tables, strict=True)
    )


def _other_blockers(facts: RunFacts, config: AuditConfig, complete: bool) -> list[str]:
    """Return the reasons against a pass that no check and no count covers."""
    blockers = [*([facts.resumed] if facts.resumed else []), *facts.unwritten]
    if facts.break_off:
        blockers.append(facts.break_off)
    elif not complete:
        blockers.append(NOT_ENDED)
    if facts.unaudited and "unaudited" not in config.allow:
        shown = ", ".join(f"`{parameter}`" for parameter in facts.unaudited[:5])
        blockers.append(
            f"{shown} changed although the private optimizer does not train it: what it learned "
            "was not audited; if it does not depend on the data (an average of weights, say), "
            "set allow='unaudited'"
        )
    return blockers


def _not_excluded(
    models: Sequence[PowerModel | None],
    monitors: Sequence[AuditMonitor],
    config: AuditConfig,
    verdict: Verdict,
) -> float | None:
    """Return epsilon under the largest noise and clipping errors that this run cannot exclude."""
    seen = [(model, monitor) for model, monitor in zip(models, monitors, strict=True) if model]
    if not seen or verdict.outcome == "VIOLATION" or config.mechanism_alone:
        return None
    scaled: list[Phase] = []
    for model, monitor in seen:
        noise, shift = model.not_excluded()
        history = monitor.history
        quietest = min(phase.noise_multiplier for phase in history)
        # Beyond this mu of a single step, epsilon is in the hundreds: nothing was excluded.
        if quietest == 0.0 or noise == 0.0 or shift / (noise * quietest) > 20.0:
            return math.inf
        scaled += leaking(history, shift / noise)
    return epsilon_at_ratio(scaled, 1.0, config.delta, config.adjacency, lower=False)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed as a package"
