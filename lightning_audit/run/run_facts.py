"""A run at one moment, as its results and its report read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_audit.checks.accounting import Ledger
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.opacus import AccountantLink
from lightning_audit.lints.own_code import OwnCode
from lightning_audit.run.facts import RunCourse, RunLints, links_of, rate_of_all, steps_of
from lightning_audit.run.optimizers import AuditedOptimizers
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import AuditSession


@dataclass(frozen=True)
class RunFacts:
    """A run at one moment, as its results and its report read it: the parts that make it up.

    Args:
        audits: its optimizers; their sessions hold the observations.
        lints: what loaders, loss and settings show.
        course: what happened so far.
        ranks: the processes that train together.
        ledger: the recorded batches, steps and accountant calls.
    """

    audits: AuditedOptimizers
    lints: RunLints
    course: RunCourse
    ranks: Ranks
    ledger: Ledger

    @property
    def sessions(self) -> Sequence[AuditSession]:
        """The sessions of the private optimizers."""
        return self.audits.sessions

    @property
    def config(self) -> AuditConfig:
        """The configuration."""
        return self.audits.config

    @property
    def passes(self) -> int:
        """Number of steps that a record may have entered, if shuffled batches are claimed."""
        passes = self.course.passes
        return passes.passes(steps_of(self.sessions)) if passes else 0

    @property
    def notes(self) -> list[str]:
        """Notes on the run."""
        return [*self.course.notes.sentences, *filter(None, [self.course.earlier.note])]

    @property
    def code(self) -> OwnCode | None:
        """Locates the user's code; None before the training begins."""
        return self.lints.code and replace(self.lints.code, met=self.course.coupling.where)

    @property
    def accountants(self) -> tuple[AccountantLink, ...]:
        """The links to the run's accountants, each once."""
        return links_of(self.audits.facts)

    @property
    def sample_rate(self) -> float | None:
        """The rate to compare the loader with; see `rate_of_all`."""
        return rate_of_all(self.audits.facts, self.lints.loaders)
