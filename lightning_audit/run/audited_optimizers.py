"""The optimizers of a run: which are private, the audit of each, and its state after a resume."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lightning_audit.checks.base.evidence import Evidence
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.config.changed_config import describe_changes, refuse_mechanism
from lightning_audit.dpsgd.adapters import draws_poisson, opacus_step
from lightning_audit.dpsgd.manual import ManualStep
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep, UnsupportedOptimizer
from lightning_audit.lints.untrained import fingerprints
from lightning_audit.record.report_directory import record_name
from lightning_audit.record.store import ObservationStore, RecordHeader
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.run.checkpoint import (
    VERSION,
    refusing_what_does_not_fit,
    unusable_checkpoint,
    with_checksum,
)
from lightning_audit.run.optimizer_audit import OptimizerAudit, facts_of, label_of, new_session
from lightning_audit.run.optimizer_refusals import (
    hand_written_step,
    private_optimizers,
    refuse_several,
    scoped_optimizers,
)
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.run.run_facts import Notes, OptimizerFacts
from lightning_audit.run.run_lints import RunLints
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.ranks import Ranks
from lightning_audit.taps.boundary import undoing
from lightning_audit.taps.plain_steps import PlainSteps
from lightning_audit.verdict.exemptions import covers

_NO_ACCOUNTANT = (
    "no accountant counts the optimizer's steps, so no epsilon is composed; each step is audited "
    "all the same"
)
_ADAPTIVE_UNACCOUNTED = (
    "PrivacyAudit cannot compute the epsilon of adaptive clipping without an accountant: the count "
    "that the clipping norm adapts to is released too. Use PrivacyEngine.make_private."
)


class AuditedOptimizers:
    """The Trainer's optimizers, with one session for each private one.

    Args:
        config: of the audit.
        files: the report directory; None to keep no records.
        trainer: of the training.
        ranks: the processes that train together.
        notes: remarks on the run.
        lints: say whether batch sizes must be recorded.
    """

    def __init__(
        self,
        config: AuditConfig,
        files: ReportFiles | None,
        trainer: Any,
        ranks: Ranks,
        notes: Notes,
        lints: RunLints,
    ) -> None:
        self.config = config
        #: Audits of the private optimizers, in the order of the Trainer's first list.
        self.audits: list[OptimizerAudit] = []
        #: The session of each audit; empty before the first.
        self.sessions: list[AuditSession] = []
        #: State of the checkpoint that this training resumes from, until it is loaded.
        self.kept: dict[str, Any] = {}
        self.attached: list[Any] = []
        #: All records that were opened, including those of sessions that failed to begin.
        self.stores: list[ObservationStore] = []
        self._files = files
        self._trainer = trainer
        self._ranks = ranks
        #: Remarks on the run.
        self.notes, self._lints = notes, lints
        #: Whether steps belong to the training (False during a replay).
        self.looks = True
        #: Steps of optimizers that are not private.
        self.plain = PlainSteps()
        self._name = uuid.uuid4().hex
        self._untrained: dict[str, tuple[float, float]] = {}
        # Names of the parameters that exempt optimizers train.
        self._exempt: set[str] = set()

    def keep(self, state: dict[str, Any]) -> None:
        """Hold a checkpoint's state, or an empty one, until the optimizers exist."""
        self.kept = state

    @property
    def facts(self) -> list[OptimizerFacts]:
        """The facts of each private optimizer."""
        return [audit.facts for audit in self.audits]

    @property
    def steps(self) -> int:
        """Steps of the private optimizers so far."""
        return sum(session.recorder.steps for session in self.sessions)

    @property
    def tests(self) -> list[Evidence]:
        """All tests of the private optimizers' steps."""
        return [test for session in self.sessions for test in session.recorder.tests]

    def state(self, **run: Any) -> dict[str, Any]:
        """Return the audit's state for a checkpoint: tensors and plain values.

        Args:
            run: state of the rest of the run.
        """
        if not self.audits:
            return with_checksum(self.kept) if self.kept else {}
        first, *others = (audit.state() for audit in self.audits)
        return with_checksum(
            {
                "version": VERSION,
                "run": self._name,
                "config": self.config.settings(),
                "seed": {"seed": self.config.seed, "drawn_seed": self.config.drawn_seed},
                **first,
                "others": others,
                "untrained": {name: list(sums) for name, sums in self._untrained.items()},
                "plain": self.plain.state(),
                **run,
            }
        )

    # ------------------------------------------------------------------ following

    def follow(self, optimizers: Sequence[Any], module: torch.nn.Module) -> None:
        """Attach to the current optimizers, unless they are attached already.

        Raises:
            UnauditableTraining: an optimizer cannot be audited.
        """
        if [*map(id, optimizers)] == [*map(id, self.attached)]:
            for audit in self.audits:
                if getattr(audit.optimizer, "step_hook", None) is not audit.hook:
                    audit.follow_hook()
            return
        self._lints.exchanged += bool(self.attached)
        self.attached = list(optimizers)
        names = {id(p): name for name, p in module.named_parameters()}
        scoped = scoped_optimizers(optimizers, names, self.config.exemptions)
        plain = [one for one in scoped if private_optimizer(one.optimizer) is None]
        self.plain.watch(one.watched(module) for one in plain)
        for one in self.config.exemptions:
            self.notes.add(f"the user allows {one.finding}{one.scope}: {one.reason}")
        self._exempt |= {name for one in plain if one.exempt for name in one.names}
        private = private_optimizers(optimizers)
        if not private:
            if any(isinstance(session.step, ManualStep) for session in self.sessions):
                self.follow_hand_written(module)
            return
        try:
            steps = [opacus_step(optimizer, names, module.modules()) for optimizer in private]
        except UnsupportedOptimizer as error:
            raise UnauditableTraining(str(error)) from error
        found = [facts_of(optimizer) for optimizer in private]
        for facts, optimizer in zip(found, private, strict=True):
            own = (one for one in scoped if private_optimizer(one.optimizer) is optimizer)
            facts.allow = frozenset(name for one in own for name in one.findings)
            facts.poisson = draws_poisson(module)
        claim = self.config.claim
        rate_known = claim is not None and claim.sample_rate is not None
        if not rate_known and any(facts.accountant is None for facts in found):
            self.notes.add(_NO_ACCOUNTANT)
        if any(s.adapts_its_norm and not f.accountant for s, f in zip(steps, found, strict=True)):
            raise UnauditableTraining(_ADAPTIVE_UNACCOUNTED)
        for audit in self._audits_of(steps, found, module):
            audit.session.watch()

    def begin_amid(self, resumed: str) -> None:
        """Record that steps were taken before the first observed one, if ``resumed`` says so."""
        for session in self.sessions:
            if resumed and not session.recorder.steps:
                session.noise.begin_amid()

    def follow_hand_written(self, module: Any) -> None:
        """Attach to a plain optimizer, if the claim states DP-SGD and none is private.

        Raises:
            UnauditableTraining: the optimizers, or what is claimed, cannot be audited.
        """
        claim = self.config.claim
        if claim is None or claim.noise_multiplier is None:
            return
        step = hand_written_step(claim, self.attached, module)
        self.plain.detach()
        if claim.sample_rate is None:
            self.notes.add(_NO_ACCOUNTANT)
        allowed = frozenset(one.finding for one in self.config.exemptions if one.optimizer)
        (audit,) = self._audits_of([step], [OptimizerFacts(allow=allowed)], module)
        audit.open_to(module)

    def _audits_of(
        self, steps: Sequence[DPSGDStep], found: Sequence[OptimizerFacts], module: torch.nn.Module
    ) -> list[OptimizerAudit]:
        """Return the audits of the steps: new ones, or those that continue."""
        if self.audits:
            return [self._followed(step, facts) for step, facts in zip(steps, found, strict=True)]
        refuse_several(len(steps), self.config.canaries, self._ranks.count)
        self._untrained = fingerprints(module, [p for step in steps for p in step.params])
        self._take_up(steps, found)
        return self.audits

    def _followed(self, step: DPSGDStep, facts: OptimizerFacts) -> OptimizerAudit:
        """Return the audit that continues with a step over the same parameters."""
        for audit in self.audits:
            if type(step) is type(audit.session.step) and audit.follow(step):
                audit.facts.accountant, audit.facts.hook = facts.accountant, facts.hook
                audit.facts.expected_batch_size = facts.expected_batch_size
                audit.facts.loss_reduction = facts.loss_reduction
                audit.facts.allow, audit.facts.poisson = facts.allow, facts.poisson
                return audit
        raise UnauditableTraining(
            "PrivacyAudit cannot follow an optimizer over other parameters or of another kind "
            "during a training; keep the parameters and change their learning rates instead."
        )

    def _take_up(self, steps: Sequence[DPSGDStep], found: Sequence[OptimizerFacts]) -> None:
        """Begin the audits, from a checkpoint's state if there is one."""
        kept = self.kept
        states = [kept, *kept["others"]] if kept else []
        if kept:
            self._name = kept["run"]
            self.config = replace(self.config, **kept["seed"])
            if len(states) != len(steps):
                raise unusable_checkpoint(
                    f"it was saved with {len(states)} private optimizers, the training has "
                    f"{len(steps)}; resume with the same optimizers."
                )
        for number, (step, facts) in enumerate(zip(steps, found, strict=True), 1):
            facts.label = label_of(step, number) if len(steps) > 1 else ""
            entries = states[number - 1]["session"]["entries"] if states else None
            files = self._files
            session = new_session(
                step,
                (number, len(steps)),
                self.config,
                self._trainer,
                partial(facts.current_rate, self.config.claim),
                partial(self._open_store, files, number, entries) if files is not None else None,
                self._ranks,
                track_batch_sizes=self._lints.needs_sizes,
            )
            self.sessions.append(session)
            self.audits.append(OptimizerAudit(session, facts))
        if not kept:
            return
        try:
            with refusing_what_does_not_fit():
                self._load(kept, states)
        except UnauditableTraining:
            self.close_records()
            raise

    def _load(self, kept: dict[str, Any], states: Sequence[dict[str, Any]]) -> None:
        """Load the optimizers' state from a checkpoint; the current configuration applies."""
        for audit, state in zip(self.audits, states, strict=True):
            audit.load(state)
        self._untrained = {name: (a, b) for name, (a, b) in kept["untrained"].items()}
        steps = max(session.recorder.steps for session in self.sessions)
        history = [phase for session in self.sessions for phase in session.monitor.history]
        before, now = kept["config"], self.config.settings()
        refuse_mechanism(before, now, history, steps)
        for sentence in describe_changes(before, now, steps):
            self.notes.add(sentence)
        self.plain.load(kept["plain"])

    def close_records(self) -> None:
        """Close the records without archiving them: the run cannot continue."""
        for store in self.stores:
            store.close(archive=False)

    def _open_store(
        self, files: ReportFiles, number: int, entries: int | None, header: RecordHeader
    ) -> ObservationStore | None:
        def opened(path: Path) -> ObservationStore:
            directory, name = path.parent, self._name
            if entries is not None:
                store = ObservationStore.resume(directory, header, name, entries, number)
                if store is not None:
                    self.stores.append(store)
                    return store
                self.notes.add(
                    f"the record of the first {entries} steps is not in {directory}; the checks "
                    "continue from the checkpoint's sums, and the record starts here"
                )
            self.stores.append(ObservationStore(directory, header, name, number))
            return self.stores[-1]

        return files.write(record_name(number), opened, beside=number > 1)

    # ------------------------------------------------------------------ rates, pauses, lookups

    def read_rates(self) -> None:
        """Read the stated sample rates before the first step; each step reads them again."""
        for own in self.facts:
            own.current_rate(self.config.claim, 1)

    def paused(self) -> undoing:
        """Ignore the steps within this context: they are not the training's."""
        before = self.plain.state()
        self.looks, self.plain.records = False, None
        for session in self.sessions:
            session.pause(paused=True)

        def look_again() -> None:
            for session in self.sessions:
                session.pause(paused=False)
            self.looks = True
            self.plain.load(before)

        return undoing(look_again)

    def audit_of(self, optimizer: Any) -> OptimizerAudit | None:
        """Return the audit of an optimizer or of its wrapper; None if there is none."""
        private = private_optimizer(optimizer)
        return next((a for a in self.audits if a.session.step.optimizer is private), None)

    def unaudited(self, module: torch.nn.Module) -> tuple[str, ...]:
        """Return the parameters that changed although no private optimizer trains them."""
        steps = [session.step for session in self.sessions]
        now = fingerprints(module, [p for s in steps for p in (*s.params, *s.trained())])
        kept = self._untrained = {**now, **self._untrained}  # a layer may come later
        moved = {name for name, sums in kept.items() if now.get(name, sums) != sums} - self._exempt
        return tuple(n for n in kept if n in moved and not covers(self.config.exemptions, n))

    def detach(self) -> None:
        """Remove all hooks."""
        self.plain.detach()
        for audit in self.audits:
            audit.detach()
