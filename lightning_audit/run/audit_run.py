"""The audit of one training: its steps and epochs, what is known of it, its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.dpsgd.protocol import Backward
from lightning_audit.examine.neighbour_replay import NeighbourReplay
from lightning_audit.lints.empty_batches import SKIPPED, EmptyBatches
from lightning_audit.lints.noise_draws import equal_draws
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.run.audited_optimizers import AuditedOptimizers
from lightning_audit.run.checkpoint import VERSION, going_on, sealed
from lightning_audit.run.evaluation import build_report, epoch_metrics
from lightning_audit.run.findings import Findings, run_checks
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.run.run_epsilons import Epsilons, current_epsilons
from lightning_audit.run.run_facts import RunFacts
from lightning_audit.run.run_lints import RunLints
from lightning_audit.run.terms import Terms
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.input_session import InputSession
from lightning_audit.session.ranks import Ranks

_FULL_PRECISION = ("32-true", "64-true", "bf16-true")


@dataclass(frozen=True)
class BatchAccess:
    """What the audit does with each batch.

    Args:
        admit: gives the batch that is trained, of the batch and the module.
        skipped: called where automatic optimization is told to take no step.
        look: called before with the batch, and with what trains on a batch; None for nothing.
    """

    admit: Callable[[Any, torch.nn.Module], Any]
    skipped: Callable[[], None]
    look: Callable[[Any, Callable[[Any], Any]], None] | None = None


class AuditRun:
    """Audits one training.

    Args:
        terms: what is claimed and asked for.
        files: where report and records go; None to write nothing.
        precision: the Trainer's precision.
        ranks: the processes that train together; None for this one alone.
    """

    def __init__(
        self, terms: Terms, files: ReportFiles | None, precision: str, ranks: Ranks | None = None
    ) -> None:
        self.files = files
        self.ranks = ranks or Ranks()
        self.report: AuditReport | None = None
        self.facts = RunFacts(processes=self.ranks.count)
        self._empty = EmptyBatches()
        self.lints = RunLints(self.facts, terms.significance, self.ranks)
        self._optimizers = AuditedOptimizers(terms, files, precision, self.ranks, self.facts)
        self._precision = precision
        self._replay: NeighbourReplay | None = None

    def take_directory(self, *, again: bool = False) -> None:
        """Make the report's directory this training's; all processes call it.

        Args:
            again: whether the report that lies there may be of this training.

        Raises:
            UnauditableTraining: nothing can be written there.
            RuntimeError: that is so in the first process.
        """
        files = self.files
        self.ranks.from_first(lambda: files.take(again=again) if files is not None else None)

    def make_room(self) -> None:
        """Put the report that lies in the directory aside: it is another training's."""
        if self.files is not None:
            self.files.make_room()

    def go_on_in_its_directory(self) -> None:
        """Change to the directory of the run that a checkpoint is of, if there is one."""
        if self.files is not None:
            if run := self._optimizers.kept.get("run"):
                self.files.go_on(run)
            for note in self.files.notes:
                self.facts.note(note)

    # ------------------------------------------------------------------ checkpoints

    def keep(self, state: dict[str, Any], report: AuditReport | None = None) -> None:
        """Go on from a checkpoint's state as soon as the optimizers are there.

        Args:
            state: of the audit, as it was before it was sealed.
            report: what was written of it last, if this process wrote it.
        """
        self._optimizers.kept, self.report = state, report

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the audit: tensors and plain values."""
        if not self.sessions:
            kept = self._optimizers.kept
            return sealed(kept) if kept else {}
        return sealed(
            {
                "version": VERSION,
                **self._optimizers.state(),
                "facts": self.facts.state(),
                "batches": self.lints.state(),
            }
        )

    def _load(self) -> None:
        """Go on with what a checkpoint knows of the run, once its sessions went on."""
        kept, self._optimizers.kept = self._optimizers.kept, {}
        if kept:
            with going_on():
                self.facts.load(kept["facts"])
                self.lints.load(kept["batches"])

    # ------------------------------------------------------------------ the optimizers

    @property
    def attached(self) -> bool:
        """Whether there was an optimizer to look at."""
        return bool(self._optimizers.attached)

    @property
    def sessions(self) -> list[AuditSession]:
        """The session of each private optimizer; empty before there is one."""
        return self._optimizers.sessions

    @property
    def session(self) -> AuditSession | None:
        """The session of the first private optimizer."""
        return next(iter(self.sessions), None)

    @property
    def terms(self) -> Terms:
        """What is claimed and asked for; a resumed run has the seed of its beginning."""
        return self._optimizers.terms

    def follow(self, optimizers: Sequence[Any], module: torch.nn.Module) -> None:
        """Attach to the optimizers that are in use now; see `AuditedOptimizers.follow`."""
        if self._optimizers.follow(optimizers, module):
            self._load()

    def follow_hand_written(self, module: Any) -> None:
        """Attach to a plain optimizer; see `AuditedOptimizers.follow_hand_written`."""
        if self._optimizers.follow_hand_written(module):
            self._load()

    def take_up(self, trainer: Any, module: torch.nn.Module) -> None:
        """Where nothing is left to train: go on with a checkpoint's audit without a step.

        The report of this process's own audit stays as it is.
        """
        if self.report is not None or not self._optimizers.kept:
            return
        self.start(trainer.train_dataloader, trainer.global_step)
        self.follow(trainer.optimizers, module)
        if not self.sessions:
            self.follow_hand_written(module)
        for facts in self.facts.optimizers:  # read at each step, of which none comes
            facts.current_rate(self.terms.claim, 1)
        self.facts.unaudited = self._optimizers.unaudited(module)

    def way_to_batches(self, trainer: Any, module: torch.nn.Module) -> BatchAccess | None:
        """What input canaries and replays do with each batch; None if neither is asked for.

        Raises:
            UnauditableTraining: several processes, each with a batch of its own.
        """
        canaries = self.terms.canaries
        by_input, look = isinstance(canaries[0], InputCanary), None
        if not by_input and not self.terms.replay_neighbours:
            return None
        if by_input and trainer.world_size > 1:
            raise UnauditableTraining(
                f"canaries={list(canaries)!r} would join the batch of each of the "
                f"{trainer.world_size} processes; train with devices=1, or use gradient canaries."
            )
        if self.terms.replay_neighbours:
            coupling = self.facts.coupling
            self._replay = NeighbourReplay(trainer, module, coupling, lambda: self.sessions)
            look = self._replay.look
        return BatchAccess(self._admit, self._skipped, look)

    def _admit(self, batch: Any, module: torch.nn.Module) -> Any:
        session = self.session
        return session.admit(batch, module) if isinstance(session, InputSession) else batch

    def _skipped(self) -> None:
        session = self.session
        if isinstance(session, InputSession):
            session.skip()

    def start(self, loaders: Any, global_step: int) -> None:
        """Read how the loaders sample, and whether steps were taken that nobody saw."""
        self.lints.start(loaders)
        if global_step > 0 and not self._optimizers.kept:
            self.facts.resumed = (
                f"the training was resumed at step {global_step} from a checkpoint without this "
                "audit's state: earlier steps were not observed"
            )

    def remark(self, trainer: Any) -> None:
        """Note what the Trainer's arguments do to the private optimizers."""
        for session in self.sessions:
            self.lints.remark(session.step.optimizer, trainer)

    # ------------------------------------------------------------------ each step and epoch

    def start_epoch(self) -> None:
        """At the first batch of an epoch: see whether something of the one before is left."""
        if self._replay is not None:
            self._replay.start_epoch()
        if self.sessions:
            self.lints.start_epoch([session.step.optimizer for session in self.sessions])

    def start_batch(self, epoch: int) -> None:
        """Forget a step that broke off."""
        self.facts.trained_batches += 1
        self._empty.start(self._steps())
        for session in self.sessions:
            session.epoch = epoch
            session.start_batch()

    def end_batch(self, batch: Any) -> None:
        """Until the next batch nothing is trained."""
        for session in self.sessions:
            session.end_batch()
        if self.sessions and self._empty.skipped(batch, self._steps()):
            self.facts.note(SKIPPED)

    def _steps(self) -> int:
        return sum(session.recorder.steps for session in self.sessions)

    def prepare(self, loss: Any, accumulated: int) -> None:
        """Before a backward pass: lay the canaries out, where that is possible."""
        coming = Backward(loss, accumulated > 1, self._precision not in _FULL_PRECISION)
        sessions = self.sessions
        for session in sessions:
            if len(sessions) == 1 or session.step.concerns(coming):
                session.prepare(coming)

    def conceal(self) -> None:
        """After a backward pass: let other code see the batch's gradients alone."""
        for session in self.sessions:
            session.conceal()

    def inject(self, optimizer: Any) -> None:
        """After a backward pass, before clipping: put the canaries in."""
        audit = self._optimizers.audit_of(optimizer)
        if audit is not None:
            audit.inject()

    def end_epoch(self, epoch: int, module: torch.nn.Module) -> dict[str, float]:
        """Compute and write where things stand; return what is logged."""
        for session in self.sessions:
            session.end_epoch()
        if self.sessions:
            self.facts.unaudited = self._optimizers.unaudited(module)
        self._compare()
        metrics, self.report = self.ranks.from_first(lambda: self._close_epoch(epoch))
        return metrics

    def _close_epoch(self, epoch: int) -> tuple[dict[str, float], AuditReport]:
        epsilons, findings = self._evaluate()
        metrics = epoch_metrics(self.sessions, epsilons, findings.all)
        self.facts.end_epoch({"epoch": epoch, **metrics})
        return metrics, self._write(epsilons, findings, complete=False)

    def _compare(self) -> None:
        """See whether all processes read the same gradients."""
        session = self.session
        if session is None or not self.ranks.talk:
            return
        draws = session.draws.numbers
        own = [session.recorder.steps, session.checksum, session.copied, *draws]
        told = self.ranks.gathered([*own, *session.lost.numbers()])
        session.lost.hear([row[len(own) :] for row in told])
        same = all(row[:2] == told[0][:2] for row in told)
        self.facts.synchronised = same and self.facts.synchronised is not False
        session.anyone_copies = any(row[2] for row in told)
        self.facts.noise_equal |= equal_draws([row[3 : len(own)] for row in told])

    # ------------------------------------------------------------------ the end

    def end(self) -> None:
        """Close the records, and write the last report, which says whether they are whole."""
        self._compare()
        for session in self.sessions:
            session.recorder.close()
        self.report = self.ranks.from_first(
            lambda: self._write(*self._evaluate(), complete=not self.facts.break_off)
        )

    def detach(self) -> None:
        """Take all hooks off."""
        self.lints.detach()
        self._optimizers.detach()

    def _evaluate(self) -> tuple[Epsilons, Findings]:
        epsilons = current_epsilons(self.sessions, self.facts, self.terms)
        return epsilons, run_checks(self.sessions, self.facts, self.terms, epsilons)

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
            lacks = [text for name, text in self.files.lacks.items() if name not in besides]
            self.facts.unwritten = [*troubles, *lacks]
        return build_report(
            self.sessions, self.facts, self.terms, epsilons, findings, complete=complete
        )
