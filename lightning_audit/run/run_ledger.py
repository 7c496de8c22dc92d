"""The ledger of a run: the drawn batches, their steps, and what the accountant recorded."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.phases import rates_known
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.canaries.sample_batches import rows
from lightning_audit.checks.accounting.ledger import Ledger
from lightning_audit.checks.replay.replay_checks import REPLAY_RELEASE
from lightning_audit.checks.sampling.drawn_batches import DrawnBatches
from lightning_audit.lints.noise_schedule import changes_of_noise, follows_a_scheduler
from lightning_audit.lints.record_contents import repeated_contents, repeated_indices
from lightning_audit.run.audited_optimizers import AuditedOptimizers
from lightning_audit.run.run_facts import Notes, OptimizerFacts, RunCourse, rate_of_all
from lightning_audit.run.run_lints import RunLints
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.taps.batch_use import BatchUse
from lightning_audit.taps.boundary import raised_in_audit
from lightning_audit.taps.sampler_tap import can_be_watched

_log = logging.getLogger(__name__)
#: Records per record of the batch from which on two steps are known to share some.
_SAME = 1.5
_MORE = (
    "some steps clipped more gradients than their batch has records: a record with several of them "
    "adds several times the clipping norm (replay.sensitivity tests single records)"
)
_FEWER = (
    "some steps clipped fewer gradients than their batch has records: records were left out, or "
    "several were summed before they were clipped"
)
#: Ratio of gradients to expected records, and standard errors above it, that are not chance.
_MANY, _ERRORS = 1.05, 5.0
#: Batches whose use by steps is watched: the first ``_FIRST``, then the first ``_IN_A_ROW`` of
#: every ``_OF``.
_FIRST, _IN_A_ROW, _OF = 100, 25, 250


class RunLedger:
    """Recorder of what happens to a run's batches.

    Args:
        notes: remarks on the run.
        significance: probability of a false alarm over the run.
        lints: how the loaders sample.
    """

    def __init__(self, notes: Notes, significance: float, lints: RunLints) -> None:
        self._notes, self._significance, self._lints = notes, significance, lints
        #: The ledger.
        self.book = Ledger()
        #: Records of all steps of the only private optimizer before the present batch.
        self.rows_before: int | None = None
        #: Number of the next batch for which `start_batch` is called, and whether `end_batch` is
        #: called.
        self.due, self.looks = 0, False
        # Whether the previous batch ended with a step, so that the next step has a single batch.
        self._stepped = False
        # Whether more gradients than records were reported.
        self._too_many = False
        self._use = BatchUse()
        #: The module whose layers are given batches in training.
        self.module: torch.nn.Module | None = None

    def watch(self, loader: Any) -> None:
        """Read the batches of a loader's sampler, if possible.

        Args:
            loader: a training loader, before it is iterated for the first time.
        """
        if not can_be_watched(loader):
            return
        data = loader.dataset
        book, count = self.book, len(data)
        if book.draws is None:
            book.draws = DrawnBatches(count, self._significance)
            try:
                book.repeated, same = repeated_indices(data), repeated_contents(data)
            except Exception as error:  # an unusual data set
                if raised_in_audit(error):
                    raise
                _log.warning("it is unknown whether the data set holds records twice")
                same = None
            if same:
                self._notes.add(
                    "the data set holds records with equal contents: duplicated records get weaker "
                    "privacy than claimed"
                )
        elif book.draws.records != count:
            book.draws.obstacle = "the loader's data set changes"
        self._lints.watch(loader, book.draws.take)

    # ------------------------------------------------------------------ each batch

    def start_batch(self, batch: Any, number: int, optimizers: AuditedOptimizers) -> None:
        """Watch a batch that is about to be trained.

        Args:
            batch: as the loader yielded it.
            number: of the batch, from 1.
            optimizers: of the run.
        """
        if not optimizers.sessions:
            return
        if not self.book.begun:
            self._begin(optimizers)
        self.looks = number < _FIRST or number % _OF < _IN_A_ROW
        if not self.looks:
            self.detach()
            self.due = number + _OF - number % _OF
            return
        if not self._use.watches and self.module is not None:
            inner = (session.step.inner for session in optimizers.sessions)
            modules = _private_modules(self.module)
            self._use.attach(modules, inner, lambda: optimizers.looks)
        self._use.start_batch(batch, number)

    def detach(self) -> None:
        """Remove all hooks."""
        self._use.detach()

    def _write_down(self) -> None:
        book, use = self.book, self._use
        book.recognised, book.stale = book.recognised + use.recognised, book.stale + use.stale
        book.regiven += use.regiven
        use.recognised = use.stale = use.regiven = 0

    def _begin(self, optimizers: AuditedOptimizers) -> None:
        """Record the accountant's steps and the steps taken before the first batch."""
        sessions = optimizers.sessions
        self.book.begun = True
        held = [own.accountant.accountant for own in optimizers.facts if own.accountant]
        once = {id(accountant): accountant for accountant in held}.values()
        told = (int(steps) for accountant in once for *_, steps in accountant.history)
        self.book.told_before, self.book.accountants = sum(told), len(once)
        self.book.taken_before = sum(session.recorder.steps for session in sessions)

    def end_batch(self, taken: int, sessions: Sequence[AuditSession], batch: Any) -> None:
        """Compare the records of a trained batch with those of its steps.

        Args:
            taken: number of steps within it.
            sessions: of the private optimizers; with several it is unknown whose steps these were.
            batch: as it was trained.
        """
        alone, self._stepped = self._stepped and taken == 1, taken > 0
        if len(sessions) != 1 or not taken:
            return
        now, before, records = sessions[0].planner.rows_taken, self.rows_before, count_rows(batch)
        if now is None or before is None or records is None:
            self.book.unknown += taken > 1
            return
        had = now - before
        if taken > 1 and had >= _SAME * records > 0:
            self.book.again += taken - 1
        elif alone and had > records:
            self._notes.add(_MORE)
        elif alone and 0 < had < records:
            self._notes.add(_FEWER)

    # ------------------------------------------------------------------ evaluation

    def settle(self, optimizers: Sequence[OptimizerFacts], claim: PrivacyClaim | None) -> Ledger:
        """Return the current ledger.

        Args:
            optimizers: facts of the private optimizers.
            claim: the user's.
        """
        stated = claim is not None and claim.sample_rate is not None
        self._write_down()
        lints = self._lints
        rates = (rate_of_all(optimizers, lints.loaders), lints.loader_rate)
        hooks = {optimizer.hook for optimizer in optimizers}
        self.book.hook = "read" if hooks == {"read"} else "none"
        if "unread" in hooks and not stated:
            self.book.hook = "unread"
        if self.book.draws is not None:
            self.book.draws.rate = max((r for r in rates if r is not None), default=None)
            if lints.loaders > 1:
                self.book.draws.obstacle = "the training has several loaders"
            elif lints.loader is not None and lints.loader.kind != "poisson":
                # Other samplers are judged by the checks of the sampling, which the user may allow.
                self.book.draws.obstacle = "the sampler is not Poisson by its type"
        return self.book

    def look_at_steps(self, sessions: Sequence[AuditSession], course: RunCourse) -> None:
        """Count the skipped batches and the changes of noise that follow no known schedule.

        Noise that changes at most steps is not counted once `replay.release` has tested a step.

        Args:
            sessions: of the private optimizers.
            course: of the run.
        """
        self._compare_rows(sessions)
        book = self.book
        asked = course.examined.asked(REPLAY_RELEASE.name) > 0
        book.steps = book.changes = 0
        for session in sessions:
            changes = changes_of_noise(session.monitor.claims.runs())
            steps, changed = sum(number for _, number in changes), len(changes) - 1
            book.steps += steps
            known = changed <= 0 or (asked and 2 * changed >= steps)
            if not known and not follows_a_scheduler(changes, session.step.optimizer):
                book.changes += changed
        unseen = course.trained_batches - book.steps - self._lints.exchanged
        book.left_out = max(0, unseen) if self._lints.irregular else 0

    def _compare_rows(self, sessions: Sequence[AuditSession]) -> None:
        """Block a pass if steps clip more gradients than the sampling rate allows.

        Args:
            sessions: of the private optimizers; several are not compared.
        """
        draws = self.book.draws
        if len(sessions) != 1 or draws is None or draws.obstacle or self._too_many:
            return
        planner, history = sessions[0].planner, sessions[0].monitor.history
        by_input = isinstance(planner.config.canaries[0], InputCanary)  # adds a row
        if by_input or planner.rows_taken is None or not rates_known(history) or not history:
            return
        expected = draws.records * sum(phase.steps * phase.known_rate for phase in history)
        self._too_many = planner.rows_taken > _MANY * expected + _ERRORS * math.sqrt(expected)
        if self._too_many:
            planner.block_pass(
                "steps clip more gradients than the sample rate allows: batches are merged or "
                "padded after they are drawn; state the actual rate, PrivacyClaim(sample_rate=...)"
            )


def _private_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules that get the batches: Opacus', or without one the top two levels."""
    wrapped = [m for m in module.modules() if isinstance(m, AbstractGradSampleModule)]
    return wrapped or [module, *module.children()]


def count_rows(batch: Any) -> int | None:
    """Return the number of records of a batch; None if it is unknown."""
    try:
        return rows(batch)
    except ValueError:
        return None
