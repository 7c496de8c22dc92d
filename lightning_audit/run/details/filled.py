"""Fills the details of a report, from which its views are rendered."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from lightning_audit.taps.boundary import where

if TYPE_CHECKING:
    from lightning_audit.run.run_facts import RunFacts

_log = logging.getLogger(__name__)
_LACKS = "the report lacks its {}, which failed ({}); the verdict does not depend on that"


@dataclass(frozen=True)
class _Run:
    """What the details are of."""

    sessions: Sequence[AuditSession]
    facts: RunFacts
    config: AuditConfig


def filled(
    report: AuditReport, sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig
) -> AuditReport:
    """Return the report with its details.

    A detail that fails adds a note, and the verdict stays.

    Args:
        report: with verdict, checks and epsilons.
        sessions: of the private optimizers.
        facts: of the run.
        config: of the audit.
    """
    run = _Run(sessions, facts, config)
    for part in (_faults, _thresholds, _growth, _tensors, _limits, _claim, _blockers, _course):
        try:
            report = part(report, run)
        except Exception as error:
            failed, line = where(error)
            name = part.__name__.removeprefix("_")
            _log.warning("privacy audit: details failed: %s (%s:%d)", name, failed, line)
            report = replace(report, notes=(*report.notes, _LACKS.format(name, failed)))
    return report


def _thresholds(report: AuditReport, run: _Run) -> AuditReport:
    significance = run.config.significance
    return replace(
        report, checks=tuple(with_threshold(check, significance) for check in report.checks)
    )


def _growth(report: AuditReport, run: _Run) -> AuditReport:
    return replace(report, tests=growth_of(report.checks, _tests(run.sessions, run.facts)))


def _tensors(report: AuditReport, run: _Run) -> AuditReport:
    rows, left_out = capped(
        row
        for session, own in zip(run.sessions, run.facts.optimizers, strict=False)
        for row in rows_of(
            session.monitor, {slot.name: slot.numel for slot in session.step.layout}, own.label
        )
    )
    return replace(report, tensors=rows, tensors_left_out=left_out)


def _limits(report: AuditReport, run: _Run) -> AuditReport:
    mu, level = claimed_mu(report.history), run.config.bound_significance
    points = with_limits(report.operating_points, mu, level)
    return replace(report, claimed_mu=mu, operating_points=points)


def _claim(report: AuditReport, run: _Run) -> AuditReport:
    return replace(
        report,
        claim=claim_of(run.sessions, run.facts, run.config),
        settings_given=run.config.given,
        assumptions=assumptions_of(report, run.config),
    )


def _blockers(report: AuditReport, run: _Run) -> AuditReport:
    blockers = told(
        report.verdict.pass_blockers,
        report.optimizers,
        run.config.resolution,
        report.pass_blockers,
    )
    return replace(report, blockers=blockers)


def _course(report: AuditReport, run: _Run) -> AuditReport:
    about = run.facts.about
    return replace(
        report,
        course=tuple(about.rows),
        ended=about.ended(report.steps, run.facts.break_off),
        planned_steps=about.planned_steps,
        run=about.now,
        examinations=tuple(about.examinations),
    )


def _faults(report: AuditReport, run: _Run) -> AuditReport:
    return replace(report, verdict=_placed(report.verdict, run.facts, run.config))


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
