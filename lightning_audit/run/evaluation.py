"""Puts together what the sessions saw: the metrics of an epoch, the verdict, the report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import Any

from lightning_audit.accounting.spending import epsilon_at_ratio
from lightning_audit.checks.family import shared_log_e
from lightning_audit.checks.integrity import (
    clipping_norm_result,
    equal_noise_result,
    finite_result,
    logical_batch_result,
    loss_reduction_result,
    no_dp_result,
    noise_restarted_result,
    noise_shared_result,
    unsynchronised_result,
)
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.post_processing import explained_by_processing, undecided
from lightning_audit.results.audit_report import (
    AuditReport,
    CheckResult,
    OperatingPoint,
    OptimizerSeen,
    Power,
    Verdict,
)
from lightning_audit.run.divisors import divisor_results
from lightning_audit.run.run_epsilons import Epsilons, epsilon_result, run_history
from lightning_audit.run.run_facts import OptimizerFacts, RunFacts
from lightning_audit.run.terms import Terms
from lightning_audit.run_checks.accounted_epsilon import accounting_result
from lightning_audit.run_checks.loader_sampling import repeated_result, sampling_results
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.verdict.judge import (
    acknowledge,
    judge,
    mark_consequences,
    seen_of,
    worst,
)
from lightning_audit.verdict.pass_blockers import NOT_ENDED, lacks_of_run
from lightning_audit.verdict.resolution import PowerModel

#: Dashboards draw in single precision; a larger e-value tells nothing more.
_LARGEST_E_VALUE = 1e30
_LIBRARIES = (
    "lightning-audit",
    "torch",
    "pytorch-lightning",
    "lightning",
    "opacus",
    "dp-accounting",
    "numpy",
)


@dataclass(frozen=True)
class Findings:
    """Results of every check at one moment, those that the user allows marked.

    Args:
        all: violated ones first.
        by_optimizer: for each private optimizer, its own and those of the run.
    """

    all: tuple[CheckResult, ...]
    by_optimizer: tuple[tuple[CheckResult, ...], ...] = ()


def run_checks(
    sessions: Sequence[AuditSession], facts: RunFacts, terms: Terms, epsilons: Epsilons
) -> Findings:
    """Results of every check now.

    Each of n sessions tests at an n-th of the significance, and so does the check on epsilon for
    each; the checks of the batches are the run's. What is handed out adds up to the whole.
    """
    steps = sum(session.monitor.steps for session in sessions)
    common = [no_dp_result(facts.plain_steps, steps, facts.plain_name)]
    if not sessions:
        return Findings(acknowledge(common, terms.allow))
    own = [
        [
            _of_optimizer(check, optimizer, len(sessions))
            for check in _results_of_session(session, facts)
        ]
        for session, optimizer in zip(sessions, facts.optimizers, strict=True)
    ]
    late = _results_of_run(sessions, facts, terms, epsilons)
    return Findings(
        acknowledge([*common, *(check for checks in own for check in checks), *late], terms.allow),
        tuple(acknowledge([*common, *checks, *late], terms.allow) for checks in own),
    )


def _results_of_session(session: AuditSession, facts: RunFacts) -> list[CheckResult]:
    checks = list(session.recorder.results)
    if facts.noise_equal:  # which of several processes is to tell is not known to the recorder
        equal = equal_noise_result(facts.processes)
        checks = [equal if check.name == equal.name else check for check in checks]
    unsure = explained_by_processing(
        checks,
        session.monitor,
        at_cut=not session.late_readings,
        weights_move=session.weights.like_noise,
        raw=2 * session.raw_readings > session.monitor.steps,
        shares=(session.recorder.released.canaries, session.recorder.released.tensors),
    )
    checks = [undecided(check) if check.name in unsure else check for check in checks]
    if (norms := session.step.norms) is not None:
        checks.append(clipping_norm_result(norms.checked, norms.largest_ratio))
    return [*checks, finite_result(session.lost.count, session.lost.first)]


def _of_optimizer(check: CheckResult, optimizer: OptimizerFacts, count: int) -> CheckResult:
    """A check that is one of several optimizers': it names the optimizer."""
    if count == 1:
        return check
    message = optimizer.named(check.message)
    return dataclasses.replace(check, message=message, share=check.share / count)


def _results_of_run(
    sessions: Sequence[AuditSession], facts: RunFacts, terms: Terms, epsilons: Epsilons
) -> list[CheckResult]:
    checks = []
    if facts.synchronised is not None:
        checks.append(unsynchronised_result(facts.synchronised, facts.processes))
    if facts.noise_restarted is not None:
        checks.append(noise_restarted_result(facts.noise_restarted))
    if len(sessions) > 1:
        checks.append(noise_shared_result(facts.noise_shared))
    if terms.replay_neighbours or facts.coupling.replays:
        checks.append(facts.coupling.result())
    checks.append(epsilon_result(epsilons, terms))
    checks.append(
        accounting_result(
            epsilons.spent,
            epsilons.claimed,
            terms.delta,
            epsilons.source,
            epsilons.spent_by_removal,
        )
    )
    _hold_batches_to_steps(facts, max(session.monitor.steps for session in sessions))
    if facts.loader is not None:
        checks += sampling_results(
            facts.loader.kind,
            facts.loader.description,
            facts.loader.sample_rate,
            facts.sample_rate,
            max((session.batch_sizes for session in sessions), key=len),
            facts.batches,
        )
    checks += _lint_results(facts)
    checks += [
        _of_optimizer(found, optimizer, len(sessions))
        for found, optimizer in divisor_results(sessions, facts, terms, epsilons.claimed)
    ]
    if facts.repeated and facts.synchronised:
        checks.append(repeated_result(facts.processes, facts.sample_rate))
    return checks


def _hold_batches_to_steps(facts: RunFacts, steps: int) -> None:
    """Test a sampler's batches as those of the steps only where they are."""
    check = facts.batches
    if check is None:
        return
    check.twice_counts = any(found.accountant is not None for found in facts.optimizers)
    # Samplers run ahead of the training, and a step may be left out.
    batches = min(check.batches, facts.trained_batches)
    if batches > 1.2 * facts.batches_per_step * steps + 2:
        check.obstacle = "several of its batches make up a step"


def _lint_results(facts: RunFacts) -> list[CheckResult]:
    results = []
    if facts.split_epochs:
        results.append(logical_batch_result(facts.carried_over, facts.split_epochs))
    if len(facts.optimizers) == 1:  # of several it is not known whose loss it is
        results += loss_reduction_result(facts.loss_reduction, facts.optimizers[0].loss_reduction)
    return results


def epoch_metrics(
    sessions: Sequence[AuditSession], epsilons: Epsilons, checks: Sequence[CheckResult]
) -> dict[str, float]:
    """What is logged at an epoch's end; epsilons that are unknown are left out."""
    proved = epsilons.proved
    metrics: dict[str, float | None] = {
        "epsilon_lower": proved.lower,
        "epsilon_spent": epsilons.spent,
        "epsilon_claimed": epsilons.claimed,
        "violated": float(any(check.status == "violated" for check in checks)),
    }
    if sessions:
        monitors = [session.monitor for session in sessions]
        metrics["mu_lower"] = proved.mu_lower
        # The claim is refuted when the metric reaches one over the significance of the run.
        shared = [shared_log_e(session.recorder.results) for session in sessions]
        log_e = max(shared) - math.log(len(sessions))
        metrics["e_value"] = min(math.exp(min(log_e, 100.0)), _LARGEST_E_VALUE)
        metrics["observations"] = float(sum(m.sensitivity.observations for m in monitors))
        metrics["step"] = float(sum(monitor.steps for monitor in monitors))
    for bound in proved.bounds:
        if bound.looks == "single":
            metrics[f"epsilon_lower/{bound.name}"] = bound.epsilon_lower
            metrics[f"epsilon_step_lower/{bound.name}"] = bound.epsilon_step_lower
    return {k: float(v) for k, v in metrics.items() if v is not None and math.isfinite(v)}


def build_report(
    sessions: Sequence[AuditSession],
    facts: RunFacts,
    terms: Terms,
    epsilons: Epsilons,
    findings: Findings,
    *,
    complete: bool,
) -> AuditReport:
    """The report now; the power is computed for a complete run only."""
    models = [
        PowerModel(session.monitor, session.oversize)
        if complete and session.monitor.steps
        else None
        for session in sessions
    ]
    powers = [model.at(terms.resolution) if model else {} for model in models]
    seen = tuple(
        seen_of(session.monitor, power, session.oversize, session.lacks(), optimizer.label)
        for session, power, optimizer in zip(sessions, powers, facts.optimizers, strict=True)
    )
    lacks = _lacks(facts, terms, complete)
    missing = lacks_of_run(terms.asked, findings.all, epsilons.spent, lacks, complete=complete)
    verdict = _verdict(sessions, facts, terms, findings, seen, missing)
    monitors = [session.monitor for session in sessions]
    records = [session.store.path.name for session in sessions if session.store]
    return AuditReport(
        verdict=verdict,
        # Of several optimizers one's fault says nothing of another's checks.
        checks=findings.all if len(sessions) > 1 else mark_consequences(findings.all, verdict),
        bounds=epsilons.proved.bounds,
        operating_points=_operating_points(monitors),
        epsilon_claimed=epsilons.claimed,
        epsilon_spent=epsilons.spent,
        epsilon_not_excluded=_not_excluded(models, monitors, terms, verdict),
        delta=terms.delta,
        steps=sum(monitor.steps for monitor in monitors),
        observations=sum(monitor.sensitivity.observations for monitor in monitors),
        history=tuple(run_history(sessions)),
        power=_least_power(powers),
        epochs=tuple(facts.epochs),
        settings=terms.settings(),
        environment={name: _version(name) for name in _LIBRARIES},
        notes=(*facts.notes, *_notes(sessions, facts, verdict)),
        record=records[0] if records else None,
        other_records=tuple(records[1:]),
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        complete=complete,
        optimizers=seen,
        lacks=tuple(lacks),
    )


def _least_power(powers: Sequence[Mapping[str, Power]]) -> dict[str, dict[str, Any]]:
    """For each part of the resolution, the power of the optimizer that shows it least."""
    parts = dict.fromkeys(part for power in powers for part in power)
    least = {
        part: min((power[part] for power in powers if part in power), key=lambda p: p.power)
        for part in parts
    }
    return {part: dataclasses.asdict(power) for part, power in least.items()}


def _verdict(
    sessions: Sequence[AuditSession],
    facts: RunFacts,
    terms: Terms,
    findings: Findings,
    seen: Sequence[OptimizerSeen],
    missing: Sequence[str],
) -> Verdict:
    """The worst verdict over the private optimizers."""
    if not sessions:
        return judge(findings.all, None, None, terms.resolution, missing)
    verdicts = [
        judge(checks, session.monitor, shown, terms.resolution, missing, facts.processes)
        for session, checks, shown in zip(sessions, findings.by_optimizer, seen, strict=True)
    ]
    labels = [optimizer.label for optimizer in facts.optimizers]
    wrong = [check.message for check in findings.all if check.status == "violated"]
    broken = [name for name in labels if any(text.startswith(f"{name}: ") for text in wrong)]
    return worst(verdicts, labels, missing, broken)


def _notes(sessions: Sequence[AuditSession], facts: RunFacts, verdict: Verdict) -> list[str]:
    # Where the verdict is inconclusive they stand under what is missing.
    notes = list(facts.unwritten) if verdict.outcome == "VIOLATION" else []
    for session, optimizer in zip(sessions, facts.optimizers, strict=True):
        notes += [optimizer.named(note) for note in session.notes]
        if optimizer.label and session.store:
            notes.append(optimizer.named(f"its record is {session.store.path.name}"))
    return notes


def _operating_points(monitors: Sequence[AuditMonitor]) -> tuple[OperatingPoint, ...]:
    """Counts of all optimizers together, at the thresholds of the first that has some."""
    tables = [points for points in (m.guesses.points for m in monitors) if points]
    return tuple(
        OperatingPoint(
            row[0].threshold,
            *(sum(getattr(point, name) for point in row) for name in ("fn", "tp", "fp", "tn")),
        )
        for row in zip(*tables, strict=True)
    )


def _lacks(facts: RunFacts, terms: Terms, complete: bool) -> list[str]:
    """What stands in the way of a pass that no check and no count shows."""
    lacks = [*([facts.resumed] if facts.resumed else []), *facts.unwritten]
    if facts.break_off:
        lacks.append(facts.break_off)
    elif not complete:
        lacks.append(NOT_ENDED)
    if facts.unaudited and "unaudited" not in terms.allow:
        shown = ", ".join(f"`{parameter}`" for parameter in facts.unaudited[:5])
        lacks.append(
            f"{shown} changed although the private optimizer does not train it: what it learned "
            "was not audited; if that is nothing of the data (an average of weights, say), "
            "allow='unaudited' says so"
        )
    return lacks


def _not_excluded(
    models: Sequence[PowerModel | None],
    monitors: Sequence[AuditMonitor],
    terms: Terms,
    verdict: Verdict,
) -> float | None:
    """Epsilon if noise and clipping were as wrong as this run could just not have seen."""
    seen = [(model, monitor) for model, monitor in zip(models, monitors, strict=True) if model]
    if not seen or verdict.outcome == "VIOLATION":
        return None
    scaled: list[tuple[float, float | None, int]] = []
    for model, monitor in seen:
        noise, shift = model.not_excluded()
        quietest = min(sigma for sigma, *_ in monitor.history)
        # Beyond this mu of a single step epsilon runs into the hundreds: nothing was excluded.
        if quietest == 0.0 or noise == 0.0 or shift / (noise * quietest) > 20.0:
            return math.inf
        ratio = shift / noise
        scaled += [(sigma / ratio, rate, steps) for sigma, rate, steps in monitor.history]
    return epsilon_at_ratio(scaled, 1.0, terms.delta, terms.neighbouring, lower=False)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed as a package"
