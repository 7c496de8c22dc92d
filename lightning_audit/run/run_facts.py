"""A run, as its results and its report read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lightning_audit.checks.accounting import Ledger
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.opacus import AccountantLink
from lightning_audit.lints.own_code import OwnCode
from lightning_audit.run.facts import RunCourse, RunLints, links_of, rate_of_all, steps_of
from lightning_audit.run.optimizers import AuditedOptimizers
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import AuditSession


class RunFacts:
    """A run, as its results and its report read it: the parts that make it up.

    Attributes:
        optimizers: its optimizers; their sessions hold the observations.
        lints: what loaders, loss and settings show.
        course: what happened so far.
        ranks: the processes that train together.
        book: the recorded batches, steps and accountant calls.
    """

    optimizers: AuditedOptimizers
    lints: RunLints
    course: RunCourse
    ranks: Ranks
    book: Ledger

    @property
    def sessions(self) -> Sequence[AuditSession]:
        """The sessions of the private optimizers."""
        return self.optimizers.sessions

    @property
    def config(self) -> AuditConfig:
        """The configuration; a resumed run keeps its first seed."""
        return self.optimizers.config

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
        return links_of(self.optimizers.facts)

    @property
    def sample_rate(self) -> float | None:
        """The rate to compare the loader with; see `rate_of_all`."""
        return rate_of_all(self.optimizers.facts, self.lints.loaders)
