"""Fills the details of a report, from which its views are rendered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning_audit.checks.base.evidence import Evidence, evidence_in
from lightning_audit.checks.base.registry import REGISTRY, headlines
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.results.audit_report import AuditReport, Verdict
from lightning_audit.run.details.check_growth import growth_of, with_threshold
from lightning_audit.run.details.claim_read import assumptions_of, claim_of, claimed_mu
from lightning_audit.run.details.operating_limits import with_limits
from lightning_audit.run.details.tensor_rows import capped, rows_of
from lightning_audit.run.details.told_blockers import told
from lightning_audit.session.audit_session import AuditSession

if TYPE_CHECKING:
    from lightning_audit.run.run_facts import RunFacts


def filled(
    report: AuditReport, sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig
) -> AuditReport:
    """Return the report with its details.

    Args:
        report: with verdict, checks and epsilons.
        sessions: of the private optimizers.
        facts: of the run.
        config: of the audit.
    """
    checks = tuple(with_threshold(check, config.significance) for check in report.checks)
    tensors, left_out = capped(
        row
        for session, own in zip(sessions, facts.optimizers, strict=False)
        for row in rows_of(
            session.monitor, {slot.name: slot.numel for slot in session.step.layout}, own.label
        )
    )
    mu, about = claimed_mu(report.history), facts.about
    return replace(
        report,
        verdict=_placed(report.verdict, facts, config),
        checks=checks,
        operating_points=with_limits(report.operating_points, mu, config.bound_significance),
        tests=growth_of(checks, _tests(sessions, facts)),
        tensors=tensors,
        tensors_left_out=left_out,
        course=tuple(about.rows),
        claimed_mu=mu,
        claim=claim_of(sessions, facts, config),
        ended=about.ended(report.steps, facts.break_off),
        planned_steps=about.planned_steps,
        blockers=told(
            report.verdict.pass_blockers,
            report.optimizers,
            config.resolution,
            report.pass_blockers,
        ),
        run=about.now,
        settings_given=config.given,
        assumptions=assumptions_of(report, config),
        examinations=tuple(about.examinations),
    )


def _placed(verdict: Verdict, facts: RunFacts, config: AuditConfig) -> Verdict:
    """Return the verdict with headlines of its faults and places in the user's code."""
    known = headlines() if verdict.faults else {}
    faults = tuple(
        replace(
            fault,
            headline=known.get(fault.name) or REGISTRY[fault.finding].heading(failed=True),
        )
        for fault in verdict.faults
    )
    verdict = replace(verdict, faults=faults)
    return facts.code.in_verdict(verdict, source=config.source_in_report) if facts.code else verdict


def _tests(sessions: Sequence[AuditSession], facts: RunFacts) -> Iterator[tuple[str, Evidence]]:
    """Yield every test of the run, with the label of its optimizer if there are several."""
    for session, own in zip(sessions, facts.optimizers, strict=False):
        yield from ((own.label, test) for test in session.recorder.tests)
    yield from (("", test) for test in evidence_in([facts.batches, facts.ledger, facts.examined]))
