"""Keeps a run's ledger: the batches that were drawn, their steps, and what was told of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries.sample_batches import rows
from lightning_audit.lints.record_contents import repeated_contents, repeated_indices
from lightning_audit.run.audited_optimizers import AuditedOptimizers
from lightning_audit.run.run_facts import Notes, OptimizerFacts, rate_of_all
from lightning_audit.run.run_lints import RunLints
from lightning_audit.run_checks.drawn_batches import DrawnBatches
from lightning_audit.run_checks.ledger import Ledger
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.taps.batch_use import BatchUse
from lightning_audit.taps.sampler_tap import can_be_watched

_log = logging.getLogger(__name__)
#: Part of a batch's records that come twice where two steps have the same ones.
_SAME = 1.5
_COUNTS = ("again", "unknown", "recognised", "stale")
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
        #: Number of the batch from which on `start_batch` is to be told of each.
        self.due = 0
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
            except Exception:  # of a data set that is like no other
                _log.exception("it could not be told whether the data set holds records twice")
                same = None
            if same:
                self._notes.add(
                    f"{same:,} of {count:,} records have the contents of another one: whoever "
                    "stands in the data several times has less privacy than is claimed"
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
        if number >= _FIRST and number % _OF >= _IN_A_ROW:
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
        use.recognised = use.stale = 0

    def _begin(self, optimizers: AuditedOptimizers) -> None:
        """Write down what was told and taken before the first batch."""
        sessions = optimizers.sessions
        self.book.begun = True
        held = [own.accountant.accountant for own in optimizers.facts if own.accountant]
        once = {id(accountant): accountant for accountant in held}.values()
        told = (int(steps) for accountant in once for *_, steps in accountant.history)
        self.book.told_before, self.book.accountants = sum(told), len(once)
        self.book.taken_before = sum(session.recorder.steps for session in sessions)

    def take_several(self, taken: int, sessions: Sequence[AuditSession], batch: Any) -> None:
        """Several steps were taken within a batch: see whether they had its records.

        Args:
            taken: how many.
            sessions: of the private optimizers; of several it is not told whose the steps were.
            batch: as it was trained.
        """
        if len(sessions) != 1:
            return
        now, records = sessions[0].planner.rows_taken, _count(batch)
        if now is None or self.rows_before is None or records is None:
            self.book.unknown += 1
        elif now - self.rows_before >= _SAME * records > 0:
            self.book.again += taken - 1

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

    def state(self) -> dict[str, int]:
        """What a checkpoint holds: counts of steps, and nothing of the batches."""
        self._write_down()
        return {name: getattr(self.book, name) for name in _COUNTS}

    def load(self, state: dict[str, int]) -> None:
        """Go on from a checkpoint's state; batches that come again are looked for anew."""
        for name in _COUNTS:
            setattr(self.book, name, getattr(self.book, name) + int(state[name]))


def _private_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """What sees the batches: Opacus' modules, or where there is none all that may be called."""
    wrapped = [m for m in module.modules() if isinstance(m, AbstractGradSampleModule)]
    return wrapped or [module, *module.children()]


def _count(batch: Any) -> int | None:
    try:
        return rows(batch)
    except ValueError:
        return None
