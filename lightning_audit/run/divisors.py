"""What the divisors of a run's gradients tell of the number of records."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_audit.results.audit_report import CheckResult
from lightning_audit.run.run_facts import OptimizerFacts, RunFacts
from lightning_audit.run.terms import Terms
from lightning_audit.run_checks.dataset_size import Promise, batch_size_result
from lightning_audit.session.audit_session import AuditSession


def divisor_results(
    sessions: Sequence[AuditSession], facts: RunFacts, terms: Terms, claimed: float | None
) -> list[tuple[CheckResult, OptimizerFacts]]:
    """Results of `expected_batch_size`, and whose they are.

    Args:
        sessions: one for each private optimizer.
        facts: of the run.
        terms: what is claimed.
        claimed: epsilon of the whole training; None if nothing is claimed.
    """
    results = []
    records = facts.loader.records if facts.loader else None
    stated = terms.claim.expected_batch_size if terms.claim else None
    promise = Promise(claimed, terms.delta, terms.neighbouring, terms.private_size)
    for session, optimizer in zip(sessions, facts.optimizers, strict=True):
        rate, expected = optimizer.sample_rate, optimizer.expected_batch_size
        # A divisor that the claim states is a constant, whatever it happens to be equal to.
        if not records or not rate or expected is None or expected == stated:
            continue
        found = batch_size_result(expected, records, rate, _coordinates(session), promise)
        if found is not None:
            results.append((found, optimizer))
    return results


def _coordinates(session: AuditSession) -> int:
    """Number of noisy numbers that the steps released."""
    steps = sum(steps for sigma, _, steps in session.monitor.history if sigma > 0)
    return steps * sum(slot.numel for slot in session.step.layout)
