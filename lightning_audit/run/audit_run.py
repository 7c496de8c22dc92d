"""The audit of one training: its steps and epochs, what is known of it, its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.dpsgd.protocol import Backward
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.run.audited_optimizers import AuditedOptimizers
from lightning_audit.run.checkpoint import refusing_what_does_not_fit
from lightning_audit.run.evaluation import build_report, epoch_metrics, segment_state
from lightning_audit.run.examinations import Examinations
from lightning_audit.run.findings import EpochEnds, Findings, Looks, run_checks, violated
from lightning_audit.run.optimizer_audit import draw_seed
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.run.run_epsilons import Epsilons, current_epsilons
from lightning_audit.run.run_facts import RunCourse, RunFacts, steps_of
from lightning_audit.run.run_ledger import RunLedger, count_rows
from lightning_audit.run.run_lints import RunLints
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.input_sample import InputSample
from lightning_audit.session.ranks import Ranks

_FULL_PRECISION = ("32-true", "64-true", "bf16-true")


class AuditRun:
    """Audits one training.

    Args:
        config: what is claimed and asked for.
        trainer: of the training.
        ranks: its processes.
        directory: where report and records go.
    """

    def __init__(
        self, config: AuditConfig, trainer: Any, ranks: Ranks, directory: str | Path
    ) -> None:
        self.ranks = ranks
        #: Whether this is a fast_dev_run: everything is run, nothing written, nothing failed.
        self.trial = bool(trainer.fast_dev_run)
        self.files = ReportFiles(directory) if self.ranks.is_first and not self.trial else None
        self.report: AuditReport | None = None
        self._course = RunCourse.of(shuffled=config.shuffled)
        notes = self._course.notes
        self.lints = RunLints(notes, config.significance, self.ranks)
        self._precision = str(trainer.precision)
        seed, drawn = self.ranks.shared((config.seed, draw_seed() if config.seed is None else None))
        config = replace(config, seed=seed, drawn_seed=drawn)
        self.optimizers = AuditedOptimizers(
            config, self.files, trainer, self.ranks, notes, self.lints
        )
        self.sessions = self.optimizers.sessions  # empty before there is a private optimizer
        self._steps_before = 0
        self.look_is_due = False  # after the present batch: is the claim false?
        self._looks, self._epoch_ends = Looks(self.ranks), EpochEnds(self.ranks)
        self.ledger = RunLedger(notes, config.significance, self.lints)
        self.examinations = Examinations(config, self.optimizers, self.ranks, self._course)

    def take_directory(self, *, again: bool) -> None:
        """Make the report's directory this training's; all processes call it.

        Args:
            again: whether the report that lies there may be of this training.

        Raises:
            UnauditableTraining: nothing can be written there.
        """
        files = self.files
        self.ranks.from_first(lambda: files.acquire(again=again) if files is not None else None)

    @property
    def session(self) -> AuditSession | None:
        """The session of the first private optimizer."""
        return next(iter(self.sessions), None)

    @property
    def config(self) -> AuditConfig:
        """What is claimed and asked for; a resumed run has the seed of its beginning."""
        return self.optimizers.config

    # ------------------------------------------------------------------ going on

    def go_on_in_its_directory(self) -> None:
        """Change to the directory of the run that a checkpoint is of, if there is one."""
        if self.files is not None:
            if run := self.optimizers.kept.get("run"):
                self.files.change_to(run)
            for note in self.files.notes:
                self._course.notes.add(note)

    def keep(self, state: dict[str, Any], report: AuditReport | None = None) -> None:
        """Go on from a checkpoint's state as soon as the optimizers are there.

        Args:
            state: of the audit, as it was before it got its checksum.
            report: what was written of it last, if this process wrote it.
        """
        self.report = report
        self.optimizers.keep(state)

    def forget(self, held: dict[str, Any], state: Any) -> None:
        """Go on with nothing that is held of this training: a checkpoint is loaded.

        Args:
            held: state of the audit by now.
            state: what the checkpoint holds of an audit, which may be of another training.
        """
        self.keep({})
        same = isinstance(state, dict) and state.get("run") == held["run"]
        if not same and self.files is not None:  # the report there is another training's
            self.files.set_report_aside()

    def take_up(self, trainer: Any, module: torch.nn.Module) -> None:
        """Where nothing is left to train: go on with a checkpoint's audit; an own report stays."""
        if self.report is not None or not self.optimizers.kept:
            return
        self.start(trainer.train_dataloader, trainer.global_step)
        self.follow(trainer.optimizers, module)
        if not self.sessions:
            self.follow_hand_written(module)
        self.optimizers.read_rates()
        self._course.unaudited = self.optimizers.unaudited(module)

    def follow(self, optimizers: Sequence[Any], module: torch.nn.Module) -> None:
        """See `AuditedOptimizers.follow`."""
        self.optimizers.follow(optimizers, module)
        self._go_on(module)

    def follow_hand_written(self, module: torch.nn.Module) -> None:
        """See `AuditedOptimizers.follow_hand_written`."""
        self.optimizers.follow_hand_written(module)
        self._go_on(module)

    def _go_on(self, module: torch.nn.Module) -> None:
        """Take up the rest of a checkpoint's state once its optimizers are there."""
        self.ledger.module = module
        kept = self.optimizers.kept
        self.optimizers.begin_amid(self._course.resumed)
        if not kept or not self.sessions:
            return
        try:
            with refusing_what_does_not_fit():
                self.lints.load(kept["lints"])
                self._course.load(kept["course"])
                self.examinations.load(kept["examinations"])
                tested = [self.lints.batches, self.ledger.book, *self.optimizers.tests]
                self._course.begin_segment(kept["segments"], self.optimizers.steps, tested)
        except UnauditableTraining:
            self.optimizers.close_records()
            raise
        self.optimizers.keep({})

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the audit: tensors and plain values."""
        return self.optimizers.state(
            lints=self.lints.state(),
            course=self._course.state(steps_of(self.sessions)),
            examinations=self.examinations.state(),
            segments=segment_state(self.sessions, self.facts, self.config),
        )

    @property
    def facts(self) -> RunFacts:
        """What is known now, from each part of the run."""
        self.ledger.look_at_steps(self.sessions, self._course)
        self.examinations.look_at_changes()
        ledger = self.ledger.settle(self.optimizers.facts, self.config.claim)
        return RunFacts.of(self.optimizers, self.lints, self._course, self.ranks, ledger)

    # ------------------------------------------------------------------ what a batch goes through

    def admit(self, batch: Any, module: torch.nn.Module) -> Any:
        """The batch that is trained, with an input canary if it is due."""
        return source.admit(batch, module) if (source := self._input_sample()) else batch

    def skipped(self) -> None:
        """Automatic optimization is told to take no step."""
        if (source := self._input_sample()) is not None:
            source.skip()

    def _input_sample(self) -> InputSample | None:
        """The source of an input canary, if there is one and this is no replay of a step."""
        source = self.session.source if self.session is not None else None
        return source if isinstance(source, InputSample) and self.optimizers.looks else None

    def start(self, loaders: Any, global_step: int) -> None:
        """Read how the loaders sample, and whether steps were taken that nobody saw."""
        self.lints.start(loaders)
        if global_step > 0 and not self.optimizers.kept:
            self._course.resumed = (
                f"the training was resumed at step {global_step} from a checkpoint without this "
                "audit's state: earlier steps were not observed"
            )

    def note_trainer_settings(self, trainer: Any) -> None:
        """Note what the Trainer's arguments do to the private optimizers."""
        self.lints.note_trainer_settings([s.step.optimizer for s in self.sessions], trainer)

    # ------------------------------------------------------------------ each step and epoch

    def start_epoch(self) -> None:
        """At the first batch of an epoch: see whether something of the one before is left."""
        for session in self.sessions:
            session.way.tap.weights.fingerprint.start_epoch()
        self.lints.start_epoch([session.step.optimizer for session in self.sessions])
        if (passes := self._course.passes) is not None:
            passes.start_pass(steps_of(self.sessions))

    def start_batch(self, epoch: int, batch: Any) -> None:
        """Forget a step that broke off."""
        self._course.trained_batches += 1
        if (passes := self._course.passes) is not None:
            passes.start_batch(steps_of(self.sessions))
        self._steps_before, plain = self.optimizers.steps, self.optimizers.plain
        plain.records = count_rows(batch) if plain.rows else None
        if self._course.trained_batches >= self.ledger.due:
            self.ledger.start_batch(batch, self._course.trained_batches, self.optimizers)
        for session in self.sessions:
            session.start_batch(epoch)
            self.ledger.rows_before = session.planner.rows_taken
        if self._steps_before + 1 >= self.examinations.schedule.due:
            self.examinations.start_batch(batch, self._steps_before)

    def end_batch(self, batch: Any) -> None:
        """Until the next batch nothing is trained."""
        for session in self.sessions:
            session.end_batch()
        taken = self.optimizers.steps - self._steps_before
        if taken > 1 or self.ledger.looks:
            self.ledger.end_batch(taken, self.sessions, batch)
        waits = bool(self.sessions) and all(session.recorder.waits for session in self.sessions)
        noise = [getattr(own.optimizer, "noise_multiplier", None) for own in self.optimizers.audits]
        regular = waits and taken == 1 and noise == self.lints.regular
        if not regular and self.lints.end_batch(batch, self.sessions, stepped=taken > 0):
            self.examinations.look_at_schedule(self.optimizers.steps)
        self.look_is_due |= self.lints.rate_rose
        if self.examinations.behind is not None or self.examinations.watch is not None:
            self.examinations.end_batch(self.optimizers.steps, stepped=taken > 0)
            self.look_is_due |= self._course.examined.found(self.config.significance)
        if not waits or self.ledger.looks:
            self.look_is_due |= self._looks.is_due(self.optimizers, self.ledger.book)

    def look(self, *, composed: bool = False) -> AuditReport | None:
        """The report, if a check without an epsilon is violated, or where they are ``composed``."""
        self.look_is_due = self.lints.rate_rose = False
        if not self.optimizers.steps:
            self.optimizers.read_rates()
        if not self.ranks.from_first(
            lambda: composed or violated(self.sessions, self.facts, self.config)
        ):
            return None
        self.report = self.ranks.from_first(lambda: self._write(*self._evaluate(), complete=False))
        return self.report

    def prepare(self, loss: Any, accumulated: int) -> None:
        """Before a backward pass: lay the canaries out, where that is possible."""
        coming = Backward(loss, accumulated > 1, self._precision not in _FULL_PRECISION)
        for session in self.sessions:
            if len(self.optimizers.attached) == 1 or session.step.concerns(coming):
                session.prepare(coming)

    def conceal(self) -> None:
        """After a backward pass: let others see the batch's gradients alone."""
        for session in self.sessions:
            session.conceal()

    def inject(self, optimizer: Any) -> None:
        """After a backward pass, before clipping: put the canaries in."""
        if (audit := self.optimizers.audit_of(optimizer)) is not None:
            audit.session.inject()

    def end_epoch(
        self, epoch: int, module: torch.nn.Module, *, due: bool = True
    ) -> tuple[dict[str, float], AuditReport | None]:
        """Compute and write where things stand, if due; return what is logged, and the report."""
        for session in self.sessions:
            session.planner.end_epoch()
        if self.sessions:
            self._course.unaudited = self.optimizers.unaudited(module)
        self._course.comparison.compare(self.session, self.ranks)
        if not self._epoch_ends.is_due(due=due):
            return {}, None
        with self._epoch_ends.timed():
            metrics, self.report = self.ranks.from_first(lambda: self._close_epoch(epoch))
        return metrics, self.report

    def _close_epoch(self, epoch: int) -> tuple[dict[str, float], AuditReport]:
        epsilons, findings = self._evaluate()
        metrics = epoch_metrics(self.sessions, epsilons, findings.all, self.config)
        self._course.end_epoch({"epoch": epoch, **metrics})
        return metrics, self._write(epsilons, findings, complete=False)

    # ------------------------------------------------------------------ the end

    def end(self) -> None:
        """Close the records, and write the last report, which says whether they are whole."""
        self._course.comparison.compare(self.session, self.ranks)
        self.examinations.look_behind(self.optimizers.steps, now=True)
        for session in self.sessions:
            session.recorder.close()
        self.report = self.ranks.from_first(
            lambda: self._write(*self._evaluate(), complete=not self._course.break_off)
        )

    def break_off(self, why: str) -> None:
        """The training ends before its time."""
        self._course.break_off = why

    def detach(self) -> None:
        """Take all hooks off."""
        for part in (self.lints, self.examinations, self.ledger, self.optimizers):
            part.detach()

    def _evaluate(self) -> tuple[Epsilons, Findings]:
        facts = self.facts
        epsilons = current_epsilons(self.sessions, facts, self.config)
        return epsilons, run_checks(self.sessions, facts, self.config, epsilons)

    def _write(self, epsilons: Epsilons, findings: Findings, *, complete: bool) -> AuditReport:
        for session in self.sessions:
            session.recorder.flush()
        report = self._built(epsilons, findings, complete, besides=(REPORT_NAME,))
        if self.files is not None:
            whole = any(session.store and not session.store.trouble for session in self.sessions)
            if self.files.write(REPORT_NAME, report.save, beside=whole) is None:
                return self._built(epsilons, findings, complete)  # and says that it is not written
        return report

    def _built(
        self, epsilons: Epsilons, findings: Findings, complete: bool, besides: Sequence[str] = ()
    ) -> AuditReport:
        """The report, with what could not be written besides it."""
        if self.files is not None:
            stores = [session.store for session in self.sessions if session.store is not None]
            troubles = [store.trouble for store in stores if store.trouble]
            failed = [text for name, text in self.files.unwritten.items() if name not in besides]
            self._course.unwritten = [*troubles, *failed]
        return build_report(
            self.sessions, self.facts, self.config, epsilons, findings, complete=complete
        )
