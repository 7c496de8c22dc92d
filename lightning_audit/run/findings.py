"""Results of all checks of a run at one moment, from its sessions and its facts.

They are computed as soon as there may be a violation, at each epoch's end, and at the run's end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lightning_audit.accounting.shuffled_passes import epsilon_of_passes
from lightning_audit.accounting.spending import epsilon_claim
from lightning_audit.checks.accounting.accounted_epsilon import (
    AS_LOSS_DISTRIBUTIONS,
    NOT_COMPOSED,
    ONE_STEP_AN_EPOCH,
    accounting_result,
)
from lightning_audit.checks.accounting.ledger import LEDGER_STEPS, Ledger
from lightning_audit.checks.base.disclosure import shown
from lightning_audit.checks.base.registry import REGISTRY, in_order
from lightning_audit.checks.clipping.finite_gradients import finite_result
from lightning_audit.checks.clipping.ghost_norms import clipping_norm_result
from lightning_audit.checks.clipping.loss_reductions import loss_reduction_result
from lightning_audit.checks.noise.noise_excess import equal_noise_result
from lightning_audit.checks.randomness.shared_noise import noise_shared_result
from lightning_audit.checks.sampling.dataset_size import Promise, batch_size_result
from lightning_audit.checks.sampling.loader_sampling import (
    repeated_result,
    sampling_results,
    shuffled_result,
    what_holds,
)
from lightning_audit.checks.sampling.logical_batch import logical_batch_result
from lightning_audit.checks.update.no_dp import no_dp_result
from lightning_audit.checks.update.unsynchronised import unsynchronised_result
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.run.audited_optimizers import AuditedOptimizers
from lightning_audit.run.run_epsilons import Epsilons, epsilon_result, run_history
from lightning_audit.run.run_facts import OptimizerFacts, RunFacts
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.ranks import Ranks
from lightning_audit.verdict.judge import acknowledge
from lightning_audit.verdict.post_processing import explained_by_processing, undecided

#: Largest part of the time since the last evaluated epoch end that an epoch end may take.
EPOCH_SHARE = 0.02
#: An uncertain finding is evaluated again once the number of steps grew by this factor.
_AGAIN = 1.5


@dataclass(frozen=True)
class Findings:
    """Results of all checks at one moment, with the allowed ones marked.

    Args:
        all: results, violated ones first.
        by_optimizer: for each private optimizer, its own results and those of the run.
    """

    all: tuple[CheckResult, ...]
    by_optimizer: tuple[tuple[CheckResult, ...], ...] = ()


def run_checks(
    sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig, epsilons: Epsilons
) -> Findings:
    """Return the results of all checks now, as far as `disclosure` lets them leave the process.

    Each of n sessions tests at 1/n of the significance, and so does its `epsilon` check; the checks
    of the batches belong to the run. The shares add up to the significance.
    """
    steps = sum(session.monitor.steps for session in sessions)
    by_records = facts.exempt_by_records if config.adjacency == "add_remove" else ()
    exempt = (facts.exempt_steps, facts.plain_refused, by_records)
    plain = no_dp_result(facts.plain_steps, steps, facts.plain_name, *exempt)
    located = facts.code.located if facts.code else list
    common = located([plain])
    if not sessions:
        return Findings(acknowledge(common, config.allow))
    *seen, late = results_by_place(sessions, facts, config, epsilons)
    each = config.significance / len(sessions)
    own = [
        acknowledge(
            located(_of_optimizer(shown(c, each), optimizer, len(sessions)) for c in checks),
            optimizer.allow,
        )
        for checks, optimizer in zip(seen, facts.optimizers, strict=True)
    ]
    late = located(shown(check, config.significance) for check in late)
    every = [*common, *(check for checks in own for check in checks), *late]
    return Findings(
        acknowledge(in_order(every), config.allow),
        tuple(acknowledge(in_order([*common, *checks, *late]), config.allow) for checks in own),
    )


def results_by_place(
    sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig, epsilons: Epsilons
) -> list[list[CheckResult]]:
    """Return the results over all segments: each private optimizer's, and last the run's."""
    own = [_own_results(place, session, facts) for place, session in enumerate(sessions)]
    return [*own, _results_of_run(sessions, facts, config, epsilons)]


def unknown_epsilons(config: AuditConfig) -> Epsilons:
    """Return placeholders for the epsilons, for checks that need none."""
    return Epsilons(epsilon_claim(None, (), config.delta), None)


def violated(sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig) -> bool:
    """Return whether a check that needs no epsilon is violated now."""
    found = run_checks(sessions, facts, config, unknown_epsilons(config)).all
    return any(check.status == "violated" for check in found)


def _own_results(place: int, session: AuditSession, facts: RunFacts) -> list[CheckResult]:
    checks = list(session.recorder.results)
    if facts.noise_equal:  # the recorder knows the draws of its own process alone
        equal = equal_noise_result(facts.processes)
        checks = [equal if check.name == equal.name else check for check in checks]
    if (norms := session.step.norms) is not None:
        checks.append(clipping_norm_result(norms.checked, norms.largest_ratio, norms.clipped_at))
    checks.append(finite_result(session.lost.count, session.lost.first))
    checks = facts.earlier.joined(place, checks, session.monitor.significance)
    unsure = explained_by_processing(
        checks,
        session.monitor,
        at_cut=not session.releases.late,
        weights_move=session.releases.weights_move,
        raw=2 * session.releases.raw > session.monitor.steps,
        by_batch=session.recorder.shrinks_with_batch,
        shares=(session.recorder.released.canaries, session.recorder.released.tensors),
    )
    return [undecided(check) if check.name in unsure else check for check in checks]


def _of_optimizer(check: CheckResult, optimizer: OptimizerFacts, count: int) -> CheckResult:
    """Return an optimizer's check, with the optimizer's name if there are several."""
    if count == 1:
        return check
    return dataclasses.replace(
        check,
        message=optimizer.named(check.message),
        share=check.share / count,
        optimizer=optimizer.label,
    )


def _results_of_run(
    sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig, epsilons: Epsilons
) -> list[CheckResult]:
    checks = []
    if facts.synchronised is not None:
        checks.append(unsynchronised_result(facts.synchronised, facts.processes))
    if len(sessions) > 1:
        begun = [s.noise_start for s in sessions if s.noise_start is not None]
        checks.append(noise_shared_result(len(set(begun)) < len(begun)))
    checks += facts.examined.results(config.significance)
    checks.append(facts.coupling.result(facts.examined.off))
    epsilon = epsilon_result(epsilons, config)
    # If noise is added to the weights, readings without it give no valid bound.
    moved = any(session.releases.weights_move for session in sessions)
    checks.append(undecided(epsilon) if moved and epsilon.status == "violated" else epsilon)
    checks.append(
        accounting_result(
            epsilons.epsilon_spent,
            epsilons.claimed_epsilon,
            config.delta,
            epsilons.claim.source,
            epsilons.epsilon_by_removal,
            NOT_COMPOSED if config.mechanism_alone else "",
            ONE_STEP_AN_EPOCH if config.shuffled else AS_LOSS_DISTRIBUTIONS,
            planned=facts.planned,
        )
    )
    _hold_batches_to_steps(facts, max(session.monitor.steps for session in sessions))
    checks += _sampling_results(sessions, facts, config)
    if facts.split_epochs:
        checks.append(logical_batch_result(facts.carried_over, facts.split_epochs))
    if len(sessions) == 1:  # with several it is not known whose loss it is
        (optimizer,) = facts.optimizers
        checks += loss_reduction_result(facts.loss_reduction, optimizer.loss_reduction)
    checks += _divisor_results(sessions, facts, config, epsilons.claimed_epsilon)
    return facts.earlier.joined(-1, checks, config.significance)


def _sampling_results(
    sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig
) -> list[CheckResult]:
    """Check whether batches and steps are as the accountant assumes and recorded."""
    found: list[CheckResult] = []
    holds, epsilon = _cost_of_passes(sessions, facts, config)
    if facts.loader is not None and config.shuffled:
        loader = facts.loader
        alone = facts.loaders == facts.processes == 1
        once = loader.once and alone and not _more_rows_than_records(sessions, facts)
        found.append(shuffled_result(loader.kind, loader.description, once=once))
    elif facts.loader is not None:
        found += sampling_results(
            facts.loader.kind,
            facts.loader.description,
            facts.loader.sample_rate,
            facts.sample_rate,
            max((session.planner.batch_sizes for session in sessions), key=len),
            facts.batches,
            by_choice=any(optimizer.poisson is False for optimizer in facts.optimizers),
            holds=holds,
            epsilon_that_holds=epsilon,
            raised_in=facts.loader.raised_in,
        )
    if facts.repeated and facts.synchronised:
        found.append(repeated_result(facts.processes, facts.sample_rate))
    told = [phase for link in facts.accountants for phase in link.accountant.history]
    found += facts.ledger.results(told, run_history(sessions))
    if config.mechanism_alone:  # the claim states no assumption on the batches
        return [REGISTRY[one.name].not_run(f"not compared: {NOT_COMPOSED}") for one in found]
    return found


def _more_rows_than_records(sessions: Sequence[AuditSession], facts: RunFacts) -> bool:
    """Return whether steps clip more gradients than the passes have records."""
    records = facts.loader.records if facts.loader else None
    for session in sessions:
        rows, steps = session.planner.rows_taken, session.recorder.steps
        # Each input canary is one more row.
        if records and rows is not None and rows > max(facts.begun, 1) * records + steps:
            return True
    return False


def _cost_of_passes(
    sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig
) -> tuple[str, float | None]:
    """Return the epsilon that holds if each record enters one step an epoch: text and number."""
    book, loader = facts.ledger, facts.loader
    several = book.again or book.unknown or book.stale or book.repeated
    several = several or facts.earlier.found(LEDGER_STEPS.name)
    alone = facts.loaders == facts.processes == 1
    if loader is None or not (loader.once and alone) or several or facts.resumed:
        return "", None
    if _more_rows_than_records(sessions, facts):
        return "", None
    stated = [session.planner.claim(1).noise_multiplier for session in sessions]
    least = min([*stated, *(phase.noise_multiplier for phase in run_history(sessions))])
    passes = max(1, facts.begun) * len(sessions)
    if not least > 0.0:
        return "", None
    epsilon = epsilon_of_passes(least, passes, config.delta, config.adjacency)
    return what_holds(least, passes, config.delta), epsilon


def _hold_batches_to_steps(facts: RunFacts, steps: int) -> None:
    """Disable the batch-size test if sampler batches do not map one-to-one to steps."""
    check = facts.batches
    if check is None:
        return
    check.twice_counts = any(found.accountant is not None for found in facts.optimizers)
    # Samplers prefetch batches, and a step may be skipped.
    batches = min(check.batches, facts.trained_batches)
    if batches > 1.2 * facts.batches_per_step * steps + 2:
        check.obstacle = "several of its batches make up a step"


def _divisor_results(
    sessions: Sequence[AuditSession],
    facts: RunFacts,
    config: AuditConfig,
    claimed_epsilon: float | None,
) -> Iterator[CheckResult]:
    """Yield what the divisors of the gradients reveal about the number of records."""
    records = facts.loader.records if facts.loader else None
    stated = config.claim.expected_batch_size if config.claim else None
    promise = Promise(claimed_epsilon, config.delta, config.adjacency, config.private_size)
    for session, optimizer in zip(sessions, facts.optimizers, strict=True):
        rate, expected = optimizer.sample_rate, optimizer.expected_batch_size
        # A divisor that the claim states is a constant, even if it equals a number of the data.
        if not records or not rate or expected is None or expected == stated:
            continue
        history = session.monitor.history
        noisy = sum(phase.steps for phase in history if phase.noise_multiplier > 0)
        released = noisy * sum(slot.numel for slot in session.step.layout)
        found = batch_size_result(expected, records, rate, released, promise)
        if found is not None:
            yield from acknowledge(
                [_of_optimizer(found, optimizer, len(sessions))], optimizer.allow
            )


class Looks:
    """Count of what the checks of a run have flagged, at almost no cost per step.

    Args:
        ranks: the processes that train together, which must decide alike.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._known = self._next = 0

    def is_due(self, optimizers: AuditedOptimizers, book: Ledger) -> bool:
        """Return whether a check has flagged since the last look, or an uncertain one is due again.

        Args:
            optimizers: of the run.
            book: the run's ledger; empty if there are several processes.
        """
        sessions, plain = optimizers.sessions, optimizers.plain.count
        steps = plain + optimizers.steps
        if self._ranks.several:
            found = sum(session.recorder.flagged_alike for session in sessions)
        else:
            found = sum(session.recorder.flagged for session in sessions) + book.again + book.stale
        began = found + (steps > 0) + (plain > 0)
        if began == self._known and not (found and steps >= self._next):
            return False
        self._known, self._next = began, int(_AGAIN * steps) + 1
        return True


class EpochEnds:
    """Choice of the epoch ends at which bounds are computed, by the time the last one took.

    Args:
        ranks: the processes that train together, which must decide alike.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._ended = self._took = 0.0

    def is_due(self, *, due: bool) -> bool:
        """Return whether to compute them now: if ``due``, at the first end, or if that is cheap."""
        allowed = EPOCH_SHARE * (time.perf_counter() - self._ended)
        return self._ranks.from_first(lambda: due or not self._ended or self._took <= allowed)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the time of one computation."""
        begun = time.perf_counter()
        yield
        self._ended = time.perf_counter()
        self._took = self._ended - begun
