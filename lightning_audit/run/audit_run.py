"""The audit of one training: its batches, steps, epochs and report."""

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
from lightning_audit.run.optimizer_audit import draw_seed, planned_steps
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
    """Audit of one training.

    Args:
        config: of the audit.
        trainer: of the training.
        ranks: its processes.
        directory: of report and records.
    """

    def __init__(
        self, config: AuditConfig, trainer: Any, ranks: Ranks, directory: str | Path
    ) -> None:
        self.ranks = ranks
        #: Whether this is a fast_dev_run: the audit runs, but writes no file and fails nothing.
        self.trial = bool(trainer.fast_dev_run)
        self.files = ReportFiles(directory) if self.ranks.is_first and not self.trial else None
        self.report: AuditReport | None = None
        self._course = RunCourse.of(trainer, shuffled=config.shuffled)
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
        self.look_is_due = False  # whether to evaluate the checks after the present batch
        self._looks, self._epoch_ends = Looks(self.ranks), EpochEnds(self.ranks)
        self.ledger = RunLedger(notes, config.significance, self.lints)
        self.examinations = Examinations(config, self.optimizers, self.ranks, self._course)

    def take_directory(self, *, again: bool) -> None:
        """Lock the report directory for this training; all processes must call it.

        Args:
            again: whether the report in it may be this training's own.

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
        """The configuration; a resumed run keeps its first seed."""
        return self.optimizers.config

    # ------------------------------------------------------------------ resuming

    def go_on_in_its_directory(self) -> None:
        """Change to the directory in which the checkpoint's run began, if there is a checkpoint."""
        if self.files is not None:
            if run := self.optimizers.kept.get("run"):
                self.files.change_to(run)
            for note in self.files.notes:
                self._course.notes.add(note)

    def keep(self, state: dict[str, Any], report: AuditReport | None = None) -> None:
        """Hold a checkpoint's state until the optimizers exist.

        Args:
            state: of the audit, without its checksum.
            report: the last report of that audit, if this process wrote it.
        """
        self.report = report
        self.optimizers.keep(state)

    def forget(self, held: dict[str, Any], state: Any) -> None:
        """Drop the state of this training, because a checkpoint is being loaded.

        Args:
            held: current state of the audit.
            state: of the audit in the checkpoint, which may be another training's.
        """
        self.keep({})
        same = isinstance(state, dict) and state.get("run") == held["run"]
        if not same and self.files is not None:  # the report there is another training's
            self.files.set_report_aside()

    def take_up(self, trainer: Any, module: torch.nn.Module) -> None:
        """Load a checkpoint's audit if there is nothing left to train; keep a report of our own."""
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
        """Load the rest of a checkpoint's state once the optimizers exist."""
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
        """Return the audit's state for a checkpoint: tensors and plain values."""
        return self.optimizers.state(
            lints=self.lints.state(),
            course=self._course.state(steps_of(self.sessions)),
            examinations=self.examinations.state(),
            segments=segment_state(self.sessions, self.facts, self.config),
        )

    @property
    def facts(self) -> RunFacts:
        """The current facts, collected from each part of the run."""
        self.ledger.look_at_steps(self.sessions, self._course)
        self.examinations.look_at_changes()
        ledger = self.ledger.settle(self.optimizers.facts, self.config.claim)
        return RunFacts.of(self.optimizers, self.lints, self._course, self.ranks, ledger)

    # ------------------------------------------------------------------ the path of a batch

    def admit(self, batch: Any, module: torch.nn.Module) -> Any:
        """Return the batch to train on, with an input canary if one is due."""
        return source.admit(batch, module) if (source := self._input_sample()) else batch

    def skipped(self) -> None:
        """Record that automatic optimization skips this step."""
        if (source := self._input_sample()) is not None:
            source.skip()

    def _input_sample(self) -> InputSample | None:
        """Return the source of the input canary; None without one, and during a replay."""
        source = self.session.source if self.session is not None else None
        return source if isinstance(source, InputSample) and self.optimizers.looks else None

    def start(self, loaders: Any, global_step: int) -> None:
        """Read how the loaders sample, and whether earlier steps were not observed."""
        self.lints.start(loaders)
        if global_step > 0 and not self.optimizers.kept:
            self._course.resumed = (
                f"the training was resumed after step {global_step} from a checkpoint without this "
                "audit's state: earlier steps were not observed"
            )

    def note_trainer_settings(self, trainer: Any) -> None:
        """Note how the Trainer's arguments affect the private optimizers."""
        self.lints.note_trainer_settings([s.step.optimizer for s in self.sessions], trainer)
        self._course.about.planned_steps = planned_steps(trainer)

    def start_epoch(self) -> None:
        """Start an epoch: look for changed weights and gradients left over from the last one."""
        for session in self.sessions:
            session.way.tap.weights.fingerprint.start_epoch()
        self.lints.start_epoch([session.step.optimizer for session in self.sessions])
        if (passes := self._course.passes) is not None:
            passes.start_pass(steps_of(self.sessions))

    def start_batch(self, epoch: int, batch: Any) -> None:
        """Start a batch; a step that broke off is dropped."""
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
        """End a batch: nothing is trained until the next one."""
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
        """Write and return the report if ``composed``, or if a check but `epsilon` is violated."""
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
        """Lay out the canaries before a backward pass, if possible."""
        coming = Backward(loss, accumulated > 1, self._precision not in _FULL_PRECISION)
        for session in self.sessions:
            if len(self.optimizers.attached) == 1 or session.step.concerns(coming):
                session.prepare(coming)

    def conceal(self) -> None:
        """Hide the canaries after a backward pass: other code sees the batch's gradients alone."""
        for session in self.sessions:
            session.conceal()

    def inject(self, optimizer: Any) -> None:
        """Inject the canaries after a backward pass, before clipping."""
        if (audit := self.optimizers.audit_of(optimizer)) is not None:
            audit.session.inject()

    def end_epoch(
        self, epoch: int, module: torch.nn.Module, *, due: bool = True
    ) -> tuple[dict[str, float], AuditReport | None]:
        """Write the report, if due; return the metrics to log and the report."""
        for session in self.sessions:
            session.planner.end_epoch()
        if self.sessions:
            self._course.unaudited = self.optimizers.unaudited(module)
        self._course.comparison.compare(self.session, self.ranks)
        if not self._epoch_ends.is_due(due=due):
            self._course.about.end_epoch(epoch, self.sessions, self.config)
            return {}, None
        with self._epoch_ends.timed():
            metrics, self.report = self.ranks.from_first(lambda: self._close_epoch(epoch))
        return metrics, self.report

    def _close_epoch(self, epoch: int) -> tuple[dict[str, float], AuditReport]:
        epsilons, findings = self._evaluate()
        metrics = epoch_metrics(self.sessions, epsilons, findings.all, self.config)
        self._course.end_epoch({"epoch": epoch, **metrics})
        self._course.about.end_epoch(epoch, self.sessions, self.config, metrics)
        return metrics, self._write(epsilons, findings, complete=False)

    def end(self, reason: str = "") -> None:
        """Close the records and write the final report; ``reason`` as in `Ended`."""
        self._course.about.ended_by = reason
        self._course.comparison.compare(self.session, self.ranks)
        self.examinations.look_behind(self.optimizers.steps, now=True)
        for session in self.sessions:
            session.recorder.close()
        self.report = self.ranks.from_first(
            lambda: self._write(*self._evaluate(), complete=not self._course.break_off)
        )

    def break_off(self, why: str) -> None:
        """Record why the training ended early."""
        self._course.break_off = why

    def detach(self) -> None:
        """Remove all hooks."""
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
                return self._built(epsilons, findings, complete)  # states that it was not written
        return report

    def _built(
        self, epsilons: Epsilons, findings: Findings, complete: bool, besides: Sequence[str] = ()
    ) -> AuditReport:
        """Build the report, including which other files could not be written."""
        if self.files is not None:
            stores = [session.store for session in self.sessions if session.store is not None]
            troubles = [store.trouble for store in stores if store.trouble]
            failed = [text for name, text in self.files.unwritten.items() if name not in besides]
            self._course.unwritten = [*troubles, *failed]
        return build_report(
            self.sessions, self.facts, self.config, epsilons, findings, complete=complete
        )
