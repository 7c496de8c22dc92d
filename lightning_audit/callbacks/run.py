"""The audit of one training: its optimizers, its session, what is known of it, its report."""

from __future__ import annotations

import operator
import uuid
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_audit.callbacks._namespaces import MisconfigurationException
from lightning_audit.callbacks.checkpoint import (
    VERSION,
    accountant_history,
    restore_accountant,
    to_arrays,
    to_tensors,
)
from lightning_audit.callbacks.evaluation import (
    Epsilons,
    build_report,
    current_epsilons,
    epoch_metrics,
    run_checks,
)
from lightning_audit.callbacks.facts import RunFacts
from lightning_audit.callbacks.gate import BatchGate
from lightning_audit.callbacks.hand_written import HandWrittenSession
from lightning_audit.callbacks.hand_written_input import HandWrittenInputSession
from lightning_audit.callbacks.input_session import InputSession
from lightning_audit.callbacks.planning import SessionSettings
from lightning_audit.callbacks.ranks import Ranks
from lightning_audit.callbacks.refusals import chosen_optimizer, hand_written_step
from lightning_audit.callbacks.run_lints import RunLints
from lightning_audit.callbacks.session import AuditSession
from lightning_audit.callbacks.terms import Terms
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.checks.integrity import noise_restarted_result
from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.dpsgd.clipping_hook import BeforeClipping
from lightning_audit.dpsgd.lints import (
    fingerprints,
)
from lightning_audit.dpsgd.manual import ManualStep
from lightning_audit.dpsgd.opacus import accountant_link, innermost, private_optimizer
from lightning_audit.dpsgd.protocol import Backward, DPSGDStep, UnsupportedOptimizer
from lightning_audit.results import AuditReport, CheckResult
from lightning_audit.store import REPORT_NAME, ObservationStore, RecordHeader

_NO_ACCOUNTANT = (
    "no accountant feeds on the optimizer's steps, so no epsilon is composed; each step is audited "
    "all the same"
)
_ADAPTIVE_UNACCOUNTED = (
    "PrivacyAudit cannot tell the epsilon of adaptive clipping without an accountant: the count "
    "that the clipping norm adapts to is released too. Use PrivacyEngine.make_private."
)
_FULL_PRECISION = ("32-true", "64-true", "bf16-true")
#: Largest shift that a correctly clipped canary shows where low precision rounds it.
_SIGNALS = {"bf16": 1.0 + 2.0**-7}


class AuditRun:
    """Audits one training.

    Args:
        terms: what is claimed and asked for.
        directory: where report and record go; None to write nothing.
        precision: the Trainer's precision.
        ranks: the processes that train together; None for this one alone.
    """

    def __init__(
        self, terms: Terms, directory: Path | None, precision: str, ranks: Ranks | None = None
    ) -> None:
        self.directory = directory
        self.ranks = ranks or Ranks()
        self.report: AuditReport | None = None
        self.session: AuditSession | None = None
        self.facts = RunFacts(processes=self.ranks.count)
        self._terms = terms
        self._precision = precision
        self._name = uuid.uuid4().hex
        #: State of a checkpoint from which this training goes on, until it was taken up.
        self._kept: dict[str, Any] = {}
        self._attached: list[Any] = []
        self._plain_handles: list[Any] = []
        self._before_clipping: BeforeClipping | None = None
        self._untrained: dict[str, tuple[float, float]] = {}
        self._first_noise: str | None = None
        self._noise_known = False
        self.lints = RunLints(self.facts, terms.significance, self.ranks)
        self._gate: BatchGate | None = None

    # ------------------------------------------------------------------ checkpoints

    def keep(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state as soon as the optimizers are there."""
        self._kept = state if state.get("session") else {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the audit: tensors and plain values."""
        if self.session is None:
            return self._kept
        return {
            "version": VERSION,
            "run": self._name,
            "seed": self._terms.seed,
            "session": to_tensors(self.session.state()),
            "facts": self.facts.state(),
            "first_noise": self._first_noise,
            "untrained": {name: list(sums) for name, sums in self._untrained.items()},
            "accountant": accountant_history(self.facts.accountant),
            "batches": self.lints.state(),
        }

    # ------------------------------------------------------------------ the optimizers

    @property
    def attached(self) -> bool:
        """Whether there was an optimizer to look at."""
        return bool(self._attached)

    @property
    def _input_canary(self) -> bool:
        return isinstance(self._terms.canaries[0], InputCanary)

    def open_gate(self, trainer: Any, module: torch.nn.Module) -> None:
        """Let an input canary into the batches of ``training_step``, if it is what is asked for.

        Raises:
            MisconfigurationException: several processes, each with a batch of its own.
        """
        if not self._input_canary:
            return
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"canaries={list(self._terms.canaries)!r} would join the batch of each of the "
                f"{trainer.world_size} processes; train with devices=1, or use gradient canaries."
            )
        if self._gate is None:
            self._gate = BatchGate(trainer, module, self._admit, self._skipped)

    def _admit(self, batch: Any, module: torch.nn.Module) -> Any:
        session = self.session
        return session.admit(batch, module) if isinstance(session, InputSession) else batch

    def _skipped(self) -> None:
        if isinstance(self.session, InputSession):
            self.session.skip()

    def start(self, loaders: Any, global_step: int) -> None:
        """Read how the loaders sample, and whether steps were taken that nobody saw."""
        self.lints.start(loaders)
        if global_step > 0 and not self._kept:
            self.facts.resumed = (
                f"the training was resumed at step {global_step} from a checkpoint without this "
                "audit's state: earlier steps were not observed"
            )

    def remark(self, trainer: Any) -> None:
        """Note what the Trainer's arguments do to the private optimizer."""
        if self.session is not None:
            self.lints.remark(self.session.step.optimizer, trainer)

    def start_epoch(self) -> None:
        """At the first batch of an epoch: see whether something of the one before is left."""
        if self.session is not None:
            self.lints.start_epoch(self.session.step.optimizer)

    def follow(self, optimizers: Sequence[Any], module: torch.nn.Module) -> None:
        """Attach to the optimizers that are in use now, unless that was done.

        Raises:
            MisconfigurationException: an optimizer cannot be audited.
        """
        same = len(optimizers) == len(self._attached)
        if same and not any(map(operator.is_not, optimizers, self._attached)):
            return
        self._remove_plain_handles()
        self._attached = list(optimizers)
        plain = [innermost(o) for o in optimizers if private_optimizer(o) is None]
        self._plain_handles = [o.register_step_post_hook(self._count_plain) for o in plain]
        private = chosen_optimizer(optimizers)
        if private is None:
            if isinstance(self.session, HandWrittenSession):
                self.follow_hand_written(module)
            return
        names = {id(p): name for name, p in module.named_parameters()}
        try:
            step = opacus_step(private, names, module.modules())
        except UnsupportedOptimizer as error:
            raise MisconfigurationException(str(error)) from error
        self.facts.accountant = accountant_link(private)
        self.facts.expected_batch_size = None
        if private.loss_reduction == "mean":
            self.facts.expected_batch_size = private.expected_batch_size
        claim = self._terms.claim
        if self.facts.accountant is None and (claim is None or claim.sample_rate is None):
            self.facts.note(_NO_ACCOUNTANT)
        if self.facts.accountant is None and step.adapts_its_norm:
            raise MisconfigurationException(_ADAPTIVE_UNACCOUNTED)
        self._go_on(step, module)
        self._remove_clipping_hook()
        self._before_clipping = BeforeClipping(private, self._inject_late)

    def follow_hand_written(self, module: Any) -> None:
        """Attach to a plain optimizer, if the claim states DP-SGD and none is private.

        Raises:
            MisconfigurationException: the optimizers, or what is claimed, cannot be audited.
        """
        claim = self._terms.claim
        if claim is None or claim.noise_multiplier is None:
            return
        step = hand_written_step(claim, self._attached, module)
        self._remove_plain_handles()
        if claim.sample_rate is None:
            self.facts.note(_NO_ACCOUNTANT)
        self._go_on(step, module)
        assert isinstance(self.session, HandWrittenSession)
        self.session.open_to(module)

    def _go_on(self, step: DPSGDStep, module: torch.nn.Module) -> None:
        """Begin the audit of a step, or go on with it."""
        if self.session is None:
            self._untrained = fingerprints(module, step.params)
            self._take_up(step)
        elif type(step) is not type(self.session.step) or not self.session.follow(step):
            raise MisconfigurationException(
                "PrivacyAudit cannot follow an optimizer over other parameters or of another kind "
                "during a training; keep the parameters and change their learning rates instead."
            )

    def _take_up(self, step: DPSGDStep) -> None:
        """Begin the audit, or go on with the one that a checkpoint holds."""
        kept = self._kept
        if kept:
            self._name = kept["run"]
            self._terms = replace(self._terms, seed=kept["seed"])
        self.session = self._new_session(step)
        kind = self.facts.loader.kind if self.facts.loader else "unknown"
        self.session.track_batch_sizes = kind == "unknown" and self.facts.batches is None
        if not kept:
            return
        try:
            self.session.load(to_arrays(kept["session"]))
        except (KeyError, TypeError, ValueError) as error:
            if self.session.store is not None:
                self.session.store.close(archive=False)
            raise MisconfigurationException(
                f"PrivacyAudit cannot go on from this checkpoint: {error}"
            ) from error
        self.facts.load(kept["facts"])
        self._first_noise = kept["first_noise"]
        self._untrained = {name: (a, b) for name, (a, b) in kept["untrained"].items()}
        restore_accountant(self.facts.accountant, kept["accountant"])
        self.lints.load(kept.get("batches"))
        self._kept = {}

    def _new_session(self, step: DPSGDStep) -> AuditSession:
        settings = SessionSettings(
            canaries=self._terms.canaries,
            oversize=self._terms.oversize,
            every_n_steps=self._terms.every_n_steps,
            significance=self._terms.significance,
            claim=self._terms.claim,
            signal=_SIGNALS.get(self._precision.split("-")[0], 1.0),
        )
        rng = np.random.default_rng(self._terms.seed)
        open_store = self._open_store if self.directory is not None else None
        by_hand = isinstance(step, ManualStep)
        if self._input_canary:
            kind: type[AuditSession] = HandWrittenInputSession if by_hand else InputSession
        else:
            kind = HandWrittenSession if by_hand else AuditSession
        return kind(step, settings, rng, self._current_rate, open_store, self.ranks)

    def _open_store(self, header: RecordHeader) -> ObservationStore:
        assert self.directory is not None
        if self._kept:
            entries = self._kept["session"]["entries"]
            store = ObservationStore.resume(self.directory, header, self._name, entries)
            if store is not None:
                return store
            self.facts.note(
                f"the record of the first {entries} steps is not in {self.directory}; the checks "
                "go on from the checkpoint's sums, the record from here"
            )
        return ObservationStore(self.directory, header, self._name)

    def _current_rate(self, accumulated: int) -> float | None:
        """Sample rate of the present step: stated, or told to the accountant."""
        link, claim = self.facts.accountant, self._terms.claim
        if claim is not None and claim.sample_rate is not None:
            self.facts.sample_rate = claim.sample_rate
            return claim.sample_rate
        if link is None:
            return None
        self.facts.sample_rate = link.sample_rate
        return min(link.sample_rate * accumulated, 1.0)

    def _count_plain(self, optimizer: Any, *_: Any) -> None:
        self.facts.plain_steps += 1
        self.facts.plain_name = type(optimizer).__name__

    # ------------------------------------------------------------------ each step and epoch

    def start_batch(self, epoch: int) -> None:
        """Forget a step that broke off."""
        self.facts.trained_batches += 1
        if self.session is not None:
            self.session.epoch = epoch
            self.session.start_batch()

    def end_batch(self) -> None:
        """Until the next batch nothing is trained."""
        if self.session is not None:
            self.session.end_batch()

    def prepare(self, loss: Any, accumulated: int) -> None:
        """Before a backward pass: lay the canaries out, where that is possible."""
        if self.session is not None:
            autocast = self._precision not in _FULL_PRECISION
            self.session.prepare(Backward(loss, accumulated > 1, autocast))

    def conceal(self) -> None:
        """After a backward pass: let other code see the batch's gradients alone."""
        if self.session is not None:
            self.session.conceal()

    def inject(self, optimizer: Any) -> None:
        """After a backward pass, before clipping: put the canaries in."""
        session = self.session
        if session is None or private_optimizer(optimizer) is not session.step.optimizer:
            return
        session.inject()
        if not self._noise_known:
            self._look_at_noise(session)

    def _inject_late(self) -> None:
        if self.session is not None:
            self.session.inject_late()
            if not self._noise_known:
                self._look_at_noise(self.session)

    def _look_at_noise(self, session: AuditSession) -> None:
        """See whether the noise of a resumed training starts as it did at the very first step."""
        self._noise_known = True
        state = session.step.noise_state()
        if not session.recorder.steps:
            self._first_noise = state
            return
        again = state is not None and state == self._first_noise
        self.facts.noise_restarted = self.facts.noise_restarted or again
        if again and self.ranks.is_first:
            warnings.warn(noise_restarted_result(restarted=True).message, stacklevel=2)

    def end_epoch(self, epoch: int, module: torch.nn.Module) -> dict[str, float]:
        """Compute and write where things stand; return what is logged."""
        if self.session is not None:
            self.session.end_epoch()
            now = fingerprints(module, self.session.step.params)
            self.facts.unaudited = tuple(
                name for name, sums in self._untrained.items() if now.get(name, sums) != sums
            )
        self._compare()
        metrics, self.report = self.ranks.from_first(lambda: self._close_epoch(epoch))
        return metrics

    def _close_epoch(self, epoch: int) -> tuple[dict[str, float], AuditReport]:
        epsilons, checks = self._evaluate()
        metrics = epoch_metrics(self.session, epsilons, checks)
        self.facts.end_epoch({"epoch": epoch, **metrics})
        return metrics, self._write(epsilons, checks, complete=False)

    def _compare(self) -> None:
        """See whether all processes read the same gradients."""
        session = self.session
        if session is None or not self.ranks.talk:
            return
        told = self.ranks.gathered([session.recorder.steps, session.checksum, session.copied])
        same = all(row[:2] == told[0][:2] for row in told)
        self.facts.synchronised = same and self.facts.synchronised is not False
        session.anyone_copies = any(row[2] for row in told)

    # ------------------------------------------------------------------ the end

    def end(self) -> None:
        """Write the last report and close the record."""
        self._compare()
        self.report = self.ranks.from_first(
            lambda: self._write(*self._evaluate(), complete=not self.facts.break_off)
        )
        if self.session is not None and self.session.store is not None:
            self.session.store.close()

    def detach(self) -> None:
        """Take all hooks off."""
        self.lints.detach()
        if self._gate is not None:
            self._gate.close()
            self._gate = None
        self._remove_plain_handles()
        self._remove_clipping_hook()
        if self.session is not None:
            self.session.detach()

    def _remove_clipping_hook(self) -> None:
        if self._before_clipping is not None:
            self._before_clipping.remove()
        self._before_clipping = None

    def _remove_plain_handles(self) -> None:
        for handle in self._plain_handles:
            handle.remove()
        self._plain_handles = []

    def _evaluate(self) -> tuple[Epsilons, tuple[CheckResult, ...]]:
        epsilons = current_epsilons(self.session, self.facts, self._terms)
        return epsilons, run_checks(self.session, self.facts, self._terms, epsilons)

    def _write(
        self, epsilons: Epsilons, checks: tuple[CheckResult, ...], *, complete: bool
    ) -> AuditReport:
        report = build_report(
            self.session, self.facts, self._terms, epsilons, checks, complete=complete
        )
        if self.directory is None:
            return report
        if self.session is not None:
            self.session.recorder.flush()
        self.directory.mkdir(parents=True, exist_ok=True)
        report.save(self.directory / REPORT_NAME)
        return report
