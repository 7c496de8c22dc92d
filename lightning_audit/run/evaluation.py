"""Metrics of an epoch, verdict and report, from what the sessions observed.

**Results of all checks of a run at one moment, from its sessions and its facts.** They are computed
as soon as there may be a violation, at each epoch's end, and at the run's end.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import Any

from lightning_audit.accounting.composition import epsilon_of_passes
from lightning_audit.accounting.history import Phase, leaking, merge
from lightning_audit.accounting.spending import epsilon_claim
from lightning_audit.checks.accounting import (
    AS_LOSS_DISTRIBUTIONS,
    LEDGER_STEPS,
    NOT_COMPOSED,
    ONE_STEP_AN_EPOCH,
    accounting_result,
    claim_result,
)
from lightning_audit.checks.between import between_result
from lightning_audit.checks.check import REGISTRY, in_order, shared_log_e
from lightning_audit.checks.clipping import (
    clipping_norm_result,
    finite_result,
    loss_reduction_result,
)
from lightning_audit.checks.disclosure import numbers_of_data, shown
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise import NOISE_MEAN, equal_noise_result
from lightning_audit.checks.opacus import chance_of_empty, opacus_result
from lightning_audit.checks.randomness import noise_shared_result
from lightning_audit.checks.replay_findings import Reason, not_asked
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.checks.sampling import (
    Promise,
    batch_size_result,
    logical_batch_result,
    repeated_result,
    sampling_results,
    shuffled_result,
    what_holds,
)
from lightning_audit.checks.update import no_dp_result, unsynchronised_result
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.opacus import count_noise
from lightning_audit.lints.settings import mixing_attention
from lightning_audit.results.audit_report import (
    AT_END,
    AuditReport,
    CheckResult,
    EpsilonBound,
    OperatingPoint,
    OptimizerSeen,
    Power,
    Verdict,
)
from lightning_audit.results.report_details import PassBlocker
from lightning_audit.run.details import filled
from lightning_audit.run.epsilons import Epsilons, epsilon_result, run_history
from lightning_audit.run.facts import OptimizerFacts
from lightning_audit.run.run_facts import RunFacts
from lightning_audit.session.step import AuditSession
from lightning_audit.verdict.diagnosis import explained_by_processing, undecided
from lightning_audit.verdict.judge import (
    MECHANISM_ALONE,
    NOT_ENDED,
    Held,
    Judged,
    PowerModel,
    acknowledge,
    blockers_of_run,
    held,
    judge_all,
    mark_consequences,
    named,
    seen_of,
    with_allowed,
    worded,
)

# --- Results of all checks of a run at one moment, from its sessions and its facts.

#: What draws the batches if the loader only counts the steps.
_BY_THE_STEP = "the step, whose batches are not the loader's by their size,"
#: What draws the batches if the loader did not yield them.
_UNFETCHED = (
    "code that trains on batches which the followed loader did not yield (iterate it after attach, "
    "name another by audit.follow(loader=...), or show your own by audit.batches(...))"
)


@dataclass(frozen=True)
class Findings:
    """What a run shows at one moment: its epsilons, and all results, with the allowed ones marked.

    Args:
        run: the run.
        epsilons: its epsilons.
        all: results, violated ones first.
        by_optimizer: for each private optimizer, its own results and those of the run.
    """

    run: RunFacts
    epsilons: Epsilons
    all: tuple[CheckResult, ...]
    by_optimizer: tuple[tuple[CheckResult, ...], ...] = ()

    @functools.cached_property
    def held(self) -> Held:
        """Which epsilons hold, given the findings that are allowed."""
        claimed, stated = self.epsilons.claimed_epsilon, self.run.config.claimed_epsilon
        return held(self.all, self.epsilons.epsilon_spent, claimed, stated)

    @property
    def bounds(self) -> tuple[EpsilonBound, ...]:
        """The bounds; those on the run only if batches are as the accountant assumes."""
        bounds = self.epsilons.proved.bounds
        if self.held.lower_holds:
            return bounds
        return tuple(dataclasses.replace(bound, epsilon_lower=None) for bound in bounds)


def run_checks(run: RunFacts, epsilons: Epsilons) -> Findings:
    """Return the results of all checks now, as far as `disclosure` lets them leave the process.

    Each of n sessions tests at 1/n of the significance, and so does its `epsilon` check; the checks
    of the batches belong to the run. The shares add up to the significance.
    """
    steps = sum(session.monitor.steps for session in run.sessions)
    by_records = run.optimizers.plain.follow_records if run.config.adjacency == "add_remove" else ()
    exempt = (run.optimizers.plain.exempt, run.optimizers.plain.refused, by_records)
    bare, kind = run.optimizers.without_dp
    located = run.code.located if run.code else list
    common = located([no_dp_result(bare, steps, kind, *exempt)])
    if not run.sessions:
        return Findings(run, epsilons, acknowledge(common, run.config.allow))
    *seen, late = results_by_place(run, epsilons)
    count = len(run.sessions)
    each = run.config.significance / count
    own = [
        acknowledge(
            located(_optimizer_result(shown(c, each), optimizer, count) for c in checks),
            optimizer.allow,
        )
        for checks, optimizer in zip(seen, run.optimizers.facts, strict=True)
    ]
    late = located(shown(check, run.config.significance) for check in late)

    def results(*of_optimizers: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
        every = in_order([check for checks in (common, *of_optimizers, late) for check in checks])
        return acknowledge(every, run.config.allow)

    return Findings(run, epsilons, results(*own), tuple(map(results, own)))


def results_by_place(run: RunFacts, epsilons: Epsilons) -> list[list[CheckResult]]:
    """Return the results over all segments: each private optimizer's, and last the run's."""
    own = [_session_results(place, session, run) for place, session in enumerate(run.sessions)]
    return [*own, _run_results(run, epsilons)]


def unknown_epsilons(config: AuditConfig) -> Epsilons:
    """Return placeholders for the epsilons, for checks that need none."""
    return Epsilons(epsilon_claim(None, (), config.delta), None)


def violated(run: RunFacts) -> bool:
    """Return whether a check that needs no epsilon is violated now."""
    found = run_checks(run, unknown_epsilons(run.config)).all
    return any(check.status == "violated" for check in found)


#: Groups of checks that assume noise at every entry.
_OF_NOISE = ("noise", "reuse", "channel")


def _session_results(place: int, session: AuditSession, run: RunFacts) -> list[CheckResult]:
    leaks, processing = run.course.examined.leaks_into_weights, session.recorder.processing
    checks = [processing.if_of_records(check, leaks) for check in session.recorder.results]
    if run.course.comparison.noise_equal:  # the recorder knows the draws of its own process alone
        equal = equal_noise_result(run.ranks.count)
        checks = [equal if check.name == equal.name else check for check in checks]
    if (norms := session.step.norms) is not None:
        checks.append(clipping_norm_result(norms.checked, norms.largest_ratio, norms.clipped_at))
    checks.append(finite_result(session.lost.count, session.lost.first))
    if session.between.taken:
        checks.append(between_result(session.between.found, session.between.clipping))
    checks = run.course.earlier.joined(place, checks, session.monitor.significance)
    if run.course.examined.one_number:
        checks = [
            not_asked(REGISTRY[check.name], Reason.ONE_NUMBER)
            if check.status == "violated" and REGISTRY[check.name].group in _OF_NOISE
            else check
            for check in checks
        ]
    unsure = explained_by_processing(
        checks,
        session.monitor,
        at_cut=not session.releases.late,
        processed=session.releases.weights_move or not session.planner.shows_noise,
        raw=2 * session.releases.raw > session.monitor.steps,
        by_batch=session.recorder.shrinks_with_batch,
        shares=(session.recorder.released.canaries, session.recorder.released.tensors),
    )
    return [undecided(check) if check.name in unsure else check for check in checks]


def _optimizer_result(check: CheckResult, optimizer: OptimizerFacts, count: int) -> CheckResult:
    """Return an optimizer's check, with the optimizer's name if there are several."""
    if count == 1:
        return check
    return dataclasses.replace(
        check,
        message=optimizer.named(check.message),
        share=check.share / count,
        optimizer=optimizer.label,
    )


def _run_results(run: RunFacts, epsilons: Epsilons) -> list[CheckResult]:
    checks = []
    if run.course.comparison.synchronised is not None:
        checks.append(unsynchronised_result(run.course.comparison.synchronised, run.ranks.count))
    if len(run.sessions) > 1:
        begun = [s.noise_start for s in run.sessions if s.noise_start is not None]
        checks.append(noise_shared_result(len(set(begun)) < len(begun)))
    examined = run.course.examined.results(run.config.significance)
    if any("seeded" in session.between.found for session in run.sessions):
        void = not_asked(REPLAY_NOISE, Reason.SEEDED)
        examined = [void if c.name == void.name and c.status == "ok" else c for c in examined]
    checks += examined
    attention = mixing_attention(run.code.module) if run.code else ""
    checks.append(run.course.coupling.result(run.course.examined.off, run.config.items, attention))
    checks += run.course.fence.results()
    checks.append(epsilon_result(epsilons, run.config))
    if stated := [pair for one in run.optimizers.facts for pair in one.stated_twice]:
        checks.append(claim_result(stated))
    records = run.lints.records or 0
    checks.append(
        accounting_result(
            epsilons.epsilon_spent,
            epsilons.claimed_epsilon,
            run.config.delta,
            epsilons.claim.source,
            epsilons.epsilon_by_removal,
            NOT_COMPOSED if run.config.mechanism_alone else "",
            ONE_STEP_AN_EPOCH if run.config.shuffled else AS_LOSS_DISTRIBUTIONS,
            planned=run.lints.planned,
            continues=bool(epsilons.earlier),
            items=run.config.items,
            delta_above=bool(records) and run.config.delta > 1.0 / records,
        )
    )
    _hold_batches_to_steps(run, max(session.monitor.steps for session in run.sessions))
    checks += _sampling_results(run)
    if run.lints.split_epochs:
        checks.append(logical_batch_result(run.lints.carried_over, run.lints.split_epochs))
    if len(run.sessions) == 1:  # with several it is not known whose loss it is
        (optimizer,) = run.optimizers.facts
        checks += loss_reduction_result(run.lints.loss_reduction, optimizer.loss_reduction)
    checks.append(_opacus_result(run))
    checks += _divisor_results(run, epsilons.claimed_epsilon)
    return run.course.earlier.joined(-1, checks, run.config.significance)


def _sampling_results(run: RunFacts) -> list[CheckResult]:
    """Check whether batches and steps are as the accountant assumes and recorded."""
    found: list[CheckResult] = []
    loader, unfetched = run.lints.loader, run.book.unfetched
    holds, epsilon = _cost_of_passes(run)
    if loader is not None and run.config.shuffled:
        once = _reads_once(run) and not unfetched
        drawn_by = _UNFETCHED if unfetched else loader.description
        found.append(shuffled_result(loader.kind, drawn_by, once=once))
    elif loader is not None:
        unfetched &= loader.kind != "not_poisson"
        elsewhere = run.book.elsewhere or unfetched
        otherwise = _UNFETCHED if unfetched else _BY_THE_STEP
        found += sampling_results(
            "unknown" if elsewhere else loader.kind,
            otherwise if elsewhere else loader.description,
            loader.sample_rate,
            run.sample_rate,
            max((session.planner.batch_sizes for session in run.sessions), key=len),
            None if elsewhere else run.lints.batches,
            by_choice=any(optimizer.poisson is False for optimizer in run.optimizers.facts),
            holds=holds,
            epsilon_that_holds=epsilon,
            raised_in=loader.raised_in,
        )
    if run.lints.repeated and run.course.comparison.synchronised:
        found.append(repeated_result(run.ranks.count, run.sample_rate))
    recorded = [phase for link in run.accountants for phase in link.accountant.history]
    found += run.book.results(recorded, run_history(run.sessions))
    if run.config.mechanism_alone:  # the claim states no assumption on the batches
        return [REGISTRY[one.name].not_run(NOT_COMPOSED) for one in found]
    return found


def _opacus_result(run: RunFacts) -> CheckResult:
    """Check whether parts of Opacus are used that are known to lose privacy."""
    loader, chance = run.lints.loader, 0.0
    if loader is not None and loader.sample_rate is not None and loader.drawn_from is not None:
        planned = max(
            max(s.recorder.steps, s.recorder.header.planned_end or 0) for s in run.sessions
        )
        chance = chance_of_empty(loader.sample_rate, loader.drawn_from, planned)
    fixed = loader is not None and loader.kind == "not_poisson"
    return opacus_result(
        averaged=any(getattr(s.step, "averages", False) for s in run.sessions),
        another=any(getattr(s.step, "another", False) for s in run.sessions),
        alike=run.ranks.count if run.course.comparison.drawn_alike else 0,
        empty=loader.empty if loader is not None else "",
        chance=chance,
        delta=run.config.delta,
        count=(0.0, 0.0) if fixed else max(count_noise(s.step.optimizer) for s in run.sessions),
        gdp=run.config.claimed_epsilon is None
        and any(link.accountant.mechanism() == "gdp" for link in run.accountants),
    )


def _reads_once(run: RunFacts) -> bool:
    """Return whether the only loader gives each record once an epoch, and steps clip no more."""
    loader, epochs = run.lints.loader, max(run.lints.epochs, 1)
    if loader is None or not loader.once or not run.lints.loaders == run.ranks.count == 1:
        return False
    # Each input canary is one more row.
    return not loader.records or all(
        (session.planner.rows_taken or 0) <= epochs * loader.records + session.recorder.steps
        for session in run.sessions
    )


def _cost_of_passes(run: RunFacts) -> tuple[str, float | None]:
    """Return the epsilon that holds if each record enters one step an epoch: text and number."""
    book = run.book
    several = book.again or book.unknown or book.stale or book.repeated
    several = several or run.course.earlier.found(LEDGER_STEPS.name)
    if several or run.course.resumed or not _reads_once(run):
        return "", None
    stated = [session.planner.claim(1).noise_multiplier for session in run.sessions]
    least = min([*stated, *(phase.noise_multiplier for phase in run_history(run.sessions))])
    if not least > 0.0:
        return "", None
    passes, each = max(1, run.lints.epochs), len(run.sessions)
    planned = max(passes, run.course.planned_epochs or 0)
    least /= run.config.items  # all of a record's may be in one batch
    delta = run.config.delta
    epsilon = epsilon_of_passes(least, passes * each, delta, run.config.adjacency)
    return what_holds(least, passes * each, planned * each, delta), epsilon


def _hold_batches_to_steps(run: RunFacts, steps: int) -> None:
    """Disable the batch-size test if sampler batches do not map one-to-one to steps."""
    check = run.lints.batches
    if check is None:
        return
    check.twice_counts = any(found.accountant is not None for found in run.optimizers.facts)
    # Samplers prefetch batches, and a step may be skipped.
    batches = min(check.batches, run.course.trained_batches)
    if batches > 1.2 * run.lints.batches_per_step * steps + 2:
        check.obstacle = "several of its batches make up a step"


def _divisor_results(run: RunFacts, claimed_epsilon: float | None) -> Iterator[CheckResult]:
    """Yield what the divisors of the gradients reveal about the number of records."""
    records, config = run.lints.records, run.config
    stated = config.claim.expected_batch_size if config.claim else None
    about = config.delta, config.adjacency, config.private_size, config.items
    promise = Promise(claimed_epsilon, *about)
    for session, optimizer in zip(run.sessions, run.optimizers.facts, strict=True):
        rate, expected = optimizer.sample_rate, optimizer.expected_batch_size
        # A divisor that the claim states is a constant, even if it equals a number of the data.
        if not records or not rate or expected is None or expected == stated:
            continue
        history = session.monitor.history
        noisy = sum(phase.steps for phase in history if phase.noise_multiplier > 0)
        released = noisy * sum(slot.numel for slot in session.step.layout)
        found = batch_size_result(expected, records, rate, released, promise)
        if found is not None:
            own = [_optimizer_result(found, optimizer, len(run.sessions))]
            yield from acknowledge(own, optimizer.allow)


# --- Build the metrics of an epoch, the verdict and the report from what the sessions observed.

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


def epoch_metrics(found: Findings) -> dict[str, float]:
    """Return the metrics of an epoch's end, without epsilons that are not known to hold.

    Bounds for a single look are included only if the configuration requests some.
    """
    proved, now = found.epsilons.proved, found.held
    allowed = _count_allowed(found.all)
    metrics: dict[str, float | None] = {
        "epsilon_lower": proved.epsilon_lower if now.lower_holds else None,
        "epsilon_lower_at_end": proved.epsilon_lower_at_end if now.lower_holds else None,
        "epsilon_spent": now.spent,
        "claimed_epsilon": now.claimed if now.claim_holds else None,
        **({_ALLOWED: float(allowed)} if allowed else {}),
        "violated": float(any(check.status == "violated" for check in found.all)),
    }
    if found.run.sessions:
        metrics["mu_lower"] = proved.mu_lower
        # The claim is refuted once the metric reaches 1 / (the significance of the run).
        log_e = shared_log_e(check for check in found.all if REGISTRY[check.name].each)
        metrics["e_value"] = min(math.exp(min(log_e, 100.0)), _LARGEST_E_VALUE)
        metrics |= counts(found.run.sessions)
    for bound in found.bounds if found.run.config.bounds else ():
        if bound.looks == "single" and bound.name != AT_END:
            metrics[f"epsilon_lower/{bound.name}"] = bound.epsilon_lower
            metrics[f"epsilon_step_lower/{bound.name}"] = bound.epsilon_step_lower
    return {k: float(v) for k, v in metrics.items() if v is not None and math.isfinite(v)}


def counts(sessions: Sequence[AuditSession]) -> dict[str, float]:
    """Return the metrics that cost nothing: how much was observed, in how many steps."""
    monitors = [session.monitor for session in sessions]
    seen = sum(monitor.sensitivity.observations for monitor in monitors)
    return {"observations": float(seen), "step": float(sum(m.steps for m in monitors))}


def _count_allowed(checks: Iterable[CheckResult]) -> int:
    return sum(check.status == "allowed" for check in checks)


def _rows_that_hold(found: Findings) -> tuple[Mapping[str, float], ...]:
    """Return the logged rows; rows from before the latest allowed finding lose their epsilons."""
    allowed = _count_allowed(found.all)
    return tuple(
        row
        if row.get(_ALLOWED, 0.0) == allowed
        else {name: value for name, value in row.items() if not _is_of_run(name)}
        for row in found.run.course.epochs
    )


def _is_of_run(metric: str) -> bool:
    """Return whether a metric is an epsilon of the whole run."""
    return metric.startswith(("epsilon_lower", "epsilon_spent", "claimed_epsilon"))


def build_report(found: Findings, *, complete: bool) -> AuditReport:
    """Build the report; the power is computed only for a complete run."""
    run, epsilons, now, bounds = found.run, found.epsilons, found.held, found.bounds
    config, course = run.config, run.course
    models = [
        PowerModel(session.monitor, session.inserter.oversize)
        if complete and session.monitor.steps
        else None
        for session in run.sessions
    ]
    powers = [model.at(config.resolution) if model else {} for model in models]
    seen = tuple(
        seen_of(
            session.monitor,
            power,
            session.inserter.oversize,
            session.pass_blockers(course.examined.alone),
            own.label,
            float(session.recorder.released.canaries.mean()) if session.at_cut else 1.0,
            lost_explained=session.planner.lost_explained,
        )
        for session, power, own in zip(run.sessions, powers, run.optimizers.facts, strict=True)
    )
    others = _other_blockers(found, complete)
    of_run = blockers_of_run(
        config,
        found.all,
        epsilons.epsilon_spent,
        others,
        complete=complete,
        mechanism_alone=config.mechanism_alone,
    )
    by_optimizer = tuple(worded(own, now) for own in found.by_optimizer)
    found = dataclasses.replace(found, all=worded(found.all, now), by_optimizer=by_optimizer)
    verdict, blockers = _verdict(found, seen, of_run)
    names = named(found.all, config, course.unaudited)
    verdict = with_allowed(verdict, names, now, config.delta)
    monitors = [session.monitor for session in run.sessions]
    history, composed = run_history(run.sessions), merge([*epsilons.composed, *epsilons.earlier])
    records = [session.store.path.name for session in run.sessions if session.store]
    report = AuditReport(
        verdict=verdict,
        checks=mark_consequences(found.all, verdict.faults),
        bounds=bounds,
        operating_points=_operating_points(monitors),
        claimed_epsilon=now.claimed,
        epsilon_spent=now.spent,
        epsilon_refuted_by=now.refuted_by,
        epsilon_not_excluded=_not_excluded(models, run, verdict) if now.spent_holds else None,
        delta=config.delta,
        steps=sum(monitor.steps for monitor in monitors),
        observations=sum(monitor.sensitivity.observations for monitor in monitors),
        history=_as_tuples(history),
        composed=() if {*composed} == {*merge(history)} else _as_tuples(composed),
        power=_least_power(powers),
        epochs=_rows_that_hold(found),
        settings=config.settings(ended=complete),
        environment={name: _version(name) for name in _LIBRARIES},
        notes=_notes(found, verdict, complete),
        record=records[0] if records else None,
        other_records=tuple(records[1:]),
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        complete=complete,
        optimizers=seen,
        pass_blockers=tuple(others),
        blockers=blockers,
        audit_cost=course.time.cost(),
        examination_cost=course.examined.cost,
    )
    return filled(report, run)


def _as_tuples(phases: Iterable[Phase]) -> tuple[tuple[float, float | None, int], ...]:
    return tuple((phase.noise_multiplier, phase.sample_rate, phase.steps) for phase in phases)


def segment_state(run: RunFacts) -> dict[str, Any]:
    """Return the checkpoint state of the checks that restart after it."""
    if not run.sessions:
        return run.course.earlier.state([], [])
    seen = results_by_place(run, unknown_epsilons(run.config))
    levels = [*(session.monitor.significance for session in run.sessions), run.config.significance]
    return run.course.earlier.state(seen, levels)


def _least_power(powers: Sequence[Mapping[str, Power]]) -> dict[str, dict[str, Any]]:
    """Return the least power over the optimizers, for each part of the resolution."""
    parts = dict.fromkeys(part for power in powers for part in power)
    least = {
        part: min((power[part] for power in powers if part in power), key=lambda p: p.power)
        for part in parts
    }
    return {part: dataclasses.asdict(power) for part, power in least.items()}


def _verdict(
    found: Findings, seen: Sequence[OptimizerSeen], of_run: Sequence[PassBlocker]
) -> tuple[Verdict, tuple[PassBlocker, ...]]:
    """Return the worst verdict over the private optimizers, and what it lacks for a pass."""
    run = found.run
    own: list[Judged] = [
        (checks, session.monitor, shown)
        for session, checks, shown in zip(run.sessions, found.by_optimizer, seen, strict=True)
    ]
    verdict, blockers = judge_all(
        own or [(found.all, None, None)],
        run.config.resolution,
        of_run,
        run.ranks.count,
        mechanism_alone=run.config.mechanism_alone,
    )
    return verdict, blockers if verdict.pass_blockers else ()


def _notes(found: Findings, verdict: Verdict, complete: bool) -> tuple[str, ...]:
    run, course, composed = found.run, found.run.course, found.epsilons.composed
    notes = [
        *(course.fits.notes(composed, run.config) if complete else ()),
        *run.notes,
        *numbers_of_data(found.all),
        *(course.target.notes(composed, run.config.items) if complete else ()),
        # If the verdict is inconclusive, the unwritten files are among its pass_blockers.
        *(course.unwritten if verdict.outcome == "VIOLATION" else ()),
    ]
    if run.config.mechanism_alone:
        notes.append(MECHANISM_ALONE)
        read = all(c.status != "not_run" for c in found.all if c.name == NOISE_MEAN.name)
        notes += [] if read else [_NOT_ALONE]
    for session, optimizer in zip(run.sessions, run.optimizers.facts, strict=True):
        notes += [optimizer.named(note) for note in session.planner.notes]
        less = [str(pair) for pair in optimizer.stated_twice if pair.promised < 0]
        notes += [optimizer.named(f"the claim promises less privacy: {text}") for text in less]
        if optimizer.label and session.store:
            notes.append(optimizer.named(f"its record is {session.store.path.name}"))
    return tuple(notes)


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


def _other_blockers(found: Findings, complete: bool) -> list[str]:
    """Return the reasons against a pass that no check and no count covers."""
    config, course = found.run.config, found.run.course
    blockers = [*filter(None, [course.resumed]), *course.unwritten]
    if course.break_off:
        blockers.append(course.break_off)
    elif not complete:
        blockers.append(NOT_ENDED)
    if course.unaudited and "unaudited" not in config.allow:
        shown = ", ".join(f"`{parameter}`" for parameter in course.unaudited[:5])
        blockers.append(
            f"{shown} changed although the private optimizer does not train it: what it learned "
            "was not audited; if it does not depend on the data (an average of weights, say), "
            "set allow='unaudited'"
        )
    return blockers + (course.fits.blockers(found.epsilons.composed, config) if complete else [])


def _not_excluded(
    models: Sequence[PowerModel | None], run: RunFacts, verdict: Verdict
) -> float | None:
    """Return epsilon under the largest noise and clipping errors that this run cannot exclude."""
    if not any(models) or verdict.outcome == "VIOLATION" or run.config.mechanism_alone:
        return None
    scaled: list[Phase] = []
    for model, session in zip(models, run.sessions, strict=True):
        if model is None:
            continue
        noise, shift = model.not_excluded()
        history = session.monitor.history
        quietest = min(phase.noise_multiplier for phase in history)
        # Beyond this mu of a single step, epsilon is in the hundreds: nothing was excluded.
        if quietest == 0.0 or noise == 0.0 or shift / (noise * quietest) > 20.0:
            return math.inf
        scaled += leaking(history, shift / noise)
    return run.config.epsilon_of(scaled)


@functools.cache
def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed as a package"
