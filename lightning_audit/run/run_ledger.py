"""Keeps a run's ledger: the batches that were drawn, their steps, and what was told of them."""

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
#: Part of a batch's records that come twice where two steps have the same ones.
_SAME = 1.5
_MORE = (
    "some steps clipped more gradients than their batch has records: where several are of one "
    "record, it adds several times the clipping norm (replay.sensitivity looks at single records)"
)
_FEWER = (
    "some steps clipped fewer gradients than their batch has records: records were left out, or "
    "several were summed before they were clipped"
)
#: How many times as many gradients as records, and standard errors, are no chance.
_MANY, _ERRORS = 1.05, 5.0
#: Batches of which it is seen which steps use them: the first ones, and so many in a row of each so
#: many later.
_FIRST, _IN_A_ROW, _OF = 100, 25, 250


class RunLedger:
    """Writes down what becomes of a run's batches.

    Args:
        notes: remarks on the run.
        significance: probability of a false alarm over the run.
        lints: how the loaders sample.
    """

    def __init__(self, notes: Notes, significance: float, lints: RunLints) -> None:
        self._notes, self._significance, self._lints = notes, significance, lints
        #: What was written down.
        self.book = Ledger()
        #: Records of all steps of the only private optimizer before the present batch.
        self.rows_before: int | None = None
        #: Number of the batch from which on `start_batch` is to be told of each, and whether
        #: `end_batch` is.
        self.due, self.looks = 0, False
        # Whether the batch before ended with a step, so that the next step has one batch alone.
        self._stepped = False
        # Whether it was said that there are more gradients than records.
        self._too_many = False
        self._use = BatchUse()
        #: The module whose layers are given batches in training.
        self.module: torch.nn.Module | None = None

    def watch(self, loader: Any) -> None:
        """Take the batches of a loader's sampler, where they can be read.

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
            except Exception as error:  # of a data set that is like no other
                if raised_in_audit(error):
                    raise
                _log.warning("it could not be told whether the data set holds records twice")
                same = None
            if same:
                self._notes.add(
                    "records of the data set have the contents of other ones: a person whose "
                    "record is in the data several times has less privacy than is claimed"
                )
        elif book.draws.records != count:
            book.draws.obstacle = "the loader's data set changes"
        self._lints.watch(loader, book.draws.take)

    # ------------------------------------------------------------------ each batch

    def start_batch(self, batch: Any, number: int, optimizers: AuditedOptimizers) -> None:
        """A batch is about to be trained.

        Args:
            batch: as the loader gave it.
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
        """Take all hooks off."""
        self._use.detach()

    def _write_down(self) -> None:
        book, use = self.book, self._use
        book.recognised, book.stale = book.recognised + use.recognised, book.stale + use.stale
        book.regiven += use.regiven
        use.recognised = use.stale = use.regiven = 0

    def _begin(self, optimizers: AuditedOptimizers) -> None:
        """Write down what was told and taken before the first batch."""
        sessions = optimizers.sessions
        self.book.begun = True
        held = [own.accountant.accountant for own in optimizers.facts if own.accountant]
        once = {id(accountant): accountant for accountant in held}.values()
        told = (int(steps) for accountant in once for *_, steps in accountant.history)
        self.book.told_before, self.book.accountants = sum(told), len(once)
        self.book.taken_before = sum(session.recorder.steps for session in sessions)

    def end_batch(self, taken: int, sessions: Sequence[AuditSession], batch: Any) -> None:
        """A batch was trained: see whether its steps had its records.

        Args:
            taken: number of steps within it.
            sessions: of the private optimizers; of several it is not told whose the steps were.
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

    # ------------------------------------------------------------------ what is known

    def settle(self, optimizers: Sequence[OptimizerFacts], claim: PrivacyClaim | None) -> Ledger:
        """The ledger by now.

        Args:
            optimizers: what is known of the private optimizers.
            claim: what the user states.
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
                # What other samplers do is the check's of the sampling, and the user's to allow.
                self.book.draws.obstacle = "the sampler is not Poisson by its type"
        return self.book

    def look_at_steps(self, sessions: Sequence[AuditSession], course: RunCourse) -> None:
        """See whether steps, and their noise, follow a schedule that is known; compare their rows.

        Noise that is set anew at most steps is asked of by replay, whatever sets it.

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
        """Block a pass where steps clip more gradients than the sample rate lets records join.

        Args:
            sessions: of the private optimizers; of several nothing is compared.
        """
        draws = self.book.draws
        if len(sessions) != 1 or draws is None or draws.obstacle or self._too_many:
            return
        planner, history = sessions[0].planner, sessions[0].monitor.history
        by_input = isinstance(planner.config.canaries[0], InputCanary)  # a row more
        if by_input or planner.rows_taken is None or not rates_known(history) or not history:
            return
        expected = draws.records * sum(phase.steps * phase.known_rate for phase in history)
        self._too_many = planner.rows_taken > _MANY * expected + _ERRORS * math.sqrt(expected)
        if self._too_many:
            planner.block_pass(
                "steps clip more gradients than the sample rate lets records join: batches are "
                "merged or filled up on their way; state the rate that holds, "
                "PrivacyClaim(sample_rate=...)"
            )


def _private_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """What sees the batches: Opacus' modules, or where there is none all that may be called."""
    wrapped = [m for m in module.modules() if isinstance(m, AbstractGradSampleModule)]
    return wrapped or [module, *module.children()]


def count_rows(batch: Any) -> int | None:
    """Number of records of a batch; None where it is not known."""
    try:
        return rows(batch)
    except ValueError:
        return None
