"""What `PrivacyAudit` holds of a training: its audit while it trains, report and state after it."""

from __future__ import annotations

from typing import Any

from lightning_audit.callbacks.loader_hook import LoaderWatcher
from lightning_audit.callbacks.same_training import goes_on, leave
from lightning_audit.callbacks.training_step_hook import TrainingStepHook
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.checkpoint import opened


class HeldAudit:
    """The audit of the present training, or what is left of the last one."""

    def __init__(self) -> None:
        self.run: AuditRun | None = None
        #: State of a checkpoint from which the next training goes on, or of the last one.
        self.kept: dict[str, Any] = {}
        self._report: AuditReport | None = None
        self._loaders = LoaderWatcher()
        self._batches: TrainingStepHook | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: the report and the audit's state, not the training."""
        left = {"kept": self.state(), "_report": self.report}
        return {**vars(HeldAudit()), **left}

    @property
    def report(self) -> AuditReport | None:
        """The report of the latest training; None before the first epoch has ended."""
        return self.run.report if self.run is not None else self._report

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the audit."""
        return self.kept if self.run is None else self.run.state()

    def stays(self, trainer: Any, module: Any) -> bool:
        """Whether `Trainer.fit` goes on with the training that was held; if not, forget it."""
        again = goes_on(trainer, module, self.kept)
        if not again:
            self._report, self.kept = None, {}
        return again

    def take(self, run: AuditRun, *, again: bool) -> None:
        """Hold the audit of a training, in its directory.

        Args:
            run: the audit.
            again: whether it goes on with what is held.
        """
        run.take_directory(again=again)
        if again:
            run.keep(opened(self.kept), self._report)
        self.run = run

    def watch_loaders(self, trainer: Any) -> None:
        """Show the audit every loader before its first batch."""
        if self.run is not None:
            self._loaders.attach(trainer, self.run.lints.watch)

    def watch_batches(self, trainer: Any, module: Any) -> None:
        """Show the audit every batch, if it asks for them."""
        access = None if self.run is None else self.run.way_to_batches(trainer, module)
        if access is not None and self._batches is None:
            self._batches = TrainingStepHook(trainer, module, access)

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state as soon as the optimizers are there."""
        kept = opened(state)
        self.kept = dict(state)
        if self.run is not None:  # Lightning loads checkpoints after `setup`
            self.run.keep(kept)

    def leave_for(self, state: Any) -> bool:
        """Let go of what was held of this training where a checkpoint's is another one.

        Args:
            state: what the checkpoint holds of the audit.

        Returns:
            Whether the report that lies in the directory is another training's.
        """
        run, held = self.run, self.kept
        if run is None or not held:
            return False
        self.kept = {}
        run.keep({}, None)
        return not (isinstance(state, dict) and state.get("run") == held["run"])

    def detach(self) -> None:
        """Take all hooks off."""
        self._loaders.detach()
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.remove()
        if self.run is not None:
            self.run.detach()

    def let_go(self) -> bool:
        """Let go of the training, if there is one; whether there was."""
        self.detach()
        run, self.run = self.run, None
        if run is None:
            return False
        if run.files is not None:
            run.files.release()
        # Checkpoints may be saved after the training, too.
        self._report, self.kept = run.report, run.state()
        return True

    def release(self, trainer: Any, module: Any) -> None:
        """Keep no optimizer and no file, and note where the Trainer stands."""
        if self.let_go():
            leave(trainer, module, self.kept)
