"""`PrivacyAudit`: the callback that audits the DP-SGD of a Lightning training while it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_audit._validate import end_at_user
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.callbacks import outcome
from lightning_audit.callbacks._namespaces import (
    MisconfigurationException,
    OneFit,
    guarded,
    of_its_run,
)
from lightning_audit.callbacks.outcome import monitored
from lightning_audit.callbacks.trainer import (
    LightningFrontEnd,
    LightningStep,
    ends_with_this_epoch,
    fence_hooks,
    goes_on,
    monitors,
    note_end,
    ranks_of,
    refuse_several,
    refuse_trainer,
    show_batches,
    training_info,
    watch_loaders,
)
from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.config import AuditConfig, named_as_here
from lightning_audit.hooks.boundary import attempt
from lightning_audit.results.audit_report import OF_VERDICTS, AuditReport
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.optimizers import verified
from lightning_audit.run.outcome import Stopping, boundary, left, send, tell, warn_of_end
from lightning_audit.session.entrances import join_batches
from lightning_audit.session.planner import Ranks
from lightning_audit.verdict.allow import Allow
from lightning_audit.verdict.judge import Resolution

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule, Trainer

# --- `PrivacyAudit`: the callback that audits the DP-SGD of a Lightning training while it runs.

_OF_LIGHTNING = (
    "PrivacyAudit is a callback of Lightning's Trainer; give Hugging Face's Trainer "
    "lightning_audit.transformers.PrivacyAuditCallback(...), which takes the same arguments."
)


class PrivacyAudit(OneFit):
    """Callback that audits the privacy of a DP-SGD training while it runs.

    Each step carries canary gradients through the user's own clipping and noise. The noisy sum is
    read before the update, and the canaries are removed again, so that the trained model is what it
    would have been. Lower bounds on epsilon are logged at the ends of epochs. When the training
    ends, the report gives a verdict: PASS, VIOLATION or INCONCLUSIVE.

    Without arguments everything is read from the optimizer and its accountant, and the claim is
    the accountant's own epsilon.

    It is a callback of `pytorch_lightning` and of `lightning.pytorch`. In the YAML of a
    LightningCLI its ``class_path`` is ``lightning_audit.PrivacyAudit``; ``claim`` and
    ``resolution`` take their arguments with a ``class_path`` or without, and each of the
    ``canaries`` has one, such as ``lightning_audit.canaries.Dirac`` or ``Dirac``.

    Args:
        claimed_epsilon: the epsilon that the whole training must not exceed, > 0; None for the
            accountant's own.
        delta: the delta of all epsilons, in (0, 1); None for the claim's, or 1e-5.
        claim: what cannot be read from the optimizer, or is to be tested instead of its settings.
            For hand-written DP-SGD ``noise_multiplier``, ``max_grad_norm`` and
            ``expected_batch_size`` must be stated; they hold for every step.
        canaries: of an audited step, or one input canary alone; None for the default mix.
        num_canaries: size of the default mix, >= 1; not used if ``canaries`` are given.
        oversize: norm of the canaries over the clipping norm, >= 1. A canary of norm 1 detects no
            clipping faults. Not used for an input canary, whose amplitude decides its norm.
        every_n_steps: canaries enter each n-th step; None for every step, or for fewer after the
            first 500 if canaries require a copy of the per-sample gradients.
        significance: probability of a false alarm over the whole run, in (0, 1).
        bound_significance: probability that a logged lower bound is wrong, in (0, 1).
        bounds: the literature's bounds to log as well, such as ["fdp_cp"], or "all".
        resolution: what the audit must be able to detect before it may pass; None for noise of 0.8
            times the claim and a clipping norm twice too large.
        allow: findings that do not fail the run, by name or as `Allow`; they are still shown.
        on_violation: "raise" stops the training at once, regardless of min_epochs and min_steps,
            and raises `PrivacyViolation` at its end; "stop" only stops it, "warn" only logs.
        on_inconclusive: "warn", or "raise" `InconclusiveAudit` when the training has ended.
        on_budget: "raise" `ClaimUsedUp` when a training has ended that was stopped because its next
            step would exceed the claim, or only "stop" it.
        report_dir: directory of report and observations; None for ``default_root_dir/audit``. While
            another training uses the directory, they go to ``run-2`` in it, or ``run-3``...
        log_prefix: first part of the names of the logged metrics.
        seed: of the coins; None to draw one, which the report shows after the training has ended.
        examinations: steps that are examined by replay, which tests the definition of DP-SGD and
            does not change the training: "auto" for the first step (at most 92 replays) and later
            ones (at most 3 % of the time since), 0 for none, or a number of steps of each
            training, without a time limit. On a GPU, files that a step writes are written again.
        source_in_report: whether the report shows the first 12 lines at most of the code to look
            at; file and lines are shown in any case.
        verbose: whether to print every check at the end, instead of a summary of 15 lines.

    Raises:
        ValueError: an argument is outside its range, or, when training starts, a canary names a
            tensor that is not trained.
        MisconfigurationException: when training starts, if this Trainer or optimizer cannot be
            audited.
        PrivacyViolation: from ``Trainer.fit``, after the last checkpoint, if the claim is false.
        ClaimUsedUp: in the same way, if the claim ended the training before its planned end.
    """

    @named_as_here
    def __init__(
        self,
        claimed_epsilon: float | None = None,
        delta: float | None = None,
        claim: PrivacyClaim | None = None,
        canaries: Sequence[GradientCanary | InputCanary] | None = None,
        num_canaries: int = 8,
        oversize: float = 1000.0,
        every_n_steps: int | None = None,
        significance: float = 1e-3,
        bound_significance: float = 0.05,
        resolution: Resolution | None = None,
        allow: Sequence[str | Allow] = (),
        on_violation: Literal["raise", "stop", "warn"] = "raise",
        on_inconclusive: Literal["raise", "warn"] = "warn",
        on_budget: Literal["raise", "stop"] = "raise",
        report_dir: str | Path | None = None,
        log_prefix: str = "audit",
        seed: int | None = None,
        examinations: Literal["auto"] | int = "auto",
        bounds: Sequence[str] | Literal["all"] = (),
        source_in_report: bool = True,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.config = AuditConfig.of_arguments(PrivacyAudit.__init__, locals())
        self.report_dir, self.log_prefix, self.verbose = report_dir, log_prefix, bool(verbose)
        self._kept: dict[str, Any] = {}  # state of a checkpoint: the next training continues it
        self._run: AuditRun | None = None
        self._ranks: Ranks | None = None
        self._report: AuditReport | None = None
        self._ended, self._stopping = False, Stopping(self.on_violation)
        self._boundary = boundary(MisconfigurationException)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle: report and audit state, not the training."""
        kept = {"_report": self.report, "_kept": self.state_dict(), "_run": None, "_ranks": None}
        kept |= {
            "_boundary": boundary(MisconfigurationException),
            "_stopping": Stopping(self.on_violation),
        }
        return super().__getstate__() | kept

    @property
    def state_key(self) -> str:
        """Name of its state in a checkpoint, by which a new Trainer finds callbacks given twice."""
        caller = sys._getframe(1)
        if caller.f_code.co_name == "_validate_callbacks_list":
            given = caller.f_locals["callbacks"]
            refuse_several(sum(isinstance(one, PrivacyAudit) for one in given))
        return str(super().state_key)

    @property
    def report(self) -> AuditReport | None:
        """The report of the latest training; None before the first epoch has ended."""
        return self._run.report if self._run is not None else self._report

    # ------------------------------------------------------------------ its arguments

    def _directory(self, trainer: Any) -> Path:
        """Return the directory of the report and observations of a Trainer's training."""
        return Path(self.report_dir or Path(trainer.default_root_dir) / "audit")

    @property
    def claimed_epsilon(self) -> float | None:
        """The claimed epsilon, from the argument or the claim; None for the accountant's own."""
        return self.config.claimed_epsilon

    @property
    def delta(self) -> float:
        """The delta of all epsilons."""
        return self.config.delta

    @property
    def claim(self) -> PrivacyClaim | None:
        """The user's statements that replace or supplement what is read from the optimizer."""
        return self.config.claim

    @property
    def canaries(self) -> Sequence[GradientCanary | InputCanary]:
        """The canaries of an audited step."""
        return self.config.canaries

    @property
    def resolution(self) -> Resolution:
        """The deviations that the audit must be able to detect before it may pass."""
        return self.config.resolution

    @property
    def allow(self) -> tuple[str, ...]:
        """Names of findings that do not fail the run."""
        return self.config.allow

    @property
    def on_violation(self) -> str:
        """The response to a violation: "raise", "stop" or "warn"."""
        return self.config.on_violation

    @property
    def seed(self) -> int | None:
        """The seed of the audit's coins; a drawn one is None until the training has ended."""
        report = self.report
        return self.config.seed if report is None else report.settings["seed"]

    # ------------------------------------------------------------------ the hooks of a fit

    @guarded(outcome.not_begun, begins=True)
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot be audited, before the training starts."""
        if stage == "fit":
            self._take(trainer)
            if self._run is not None:  # a training that was broken off without a teardown
                attempt(self._release)
            self._run = self._ranks = None
            self._boundary.begin()
            self._begin(trainer, pl_module)

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ranks = ranks_of(trainer)
        again = goes_on(trainer, pl_module, self._kept)
        if not again:
            self._report, self._kept = None, {}
        self._ended, self._stopping = False, Stopping(self.on_violation)
        audits = sum(isinstance(callback, PrivacyAudit) for callback in trainer.callbacks)  # type: ignore[attr-defined]
        refuse_trainer(trainer, audits)
        self._run = run = AuditRun(
            self.config,
            training_info(trainer, begins=False),
            self._ranks,
            self._directory(trainer),
        )
        run.take_directory(again=again)
        if again:
            run.keep(verified(self._kept), self._report)
        run.fence.begin(
            pl_module,
            lambda: trainer.train_dataloader,
            monitors=partial(monitors, trainer, self.log_prefix),
            validation=lambda: trainer.val_dataloaders,
        )
        fence_hooks(trainer, pl_module, self, run.fence)
        if not run.ranks.several:  # each of several processes sees only its share of the records
            watch_loaders(trainer, run.ledger.watch)

    @of_its_run(left)
    def on_fit_start(self, run: AuditRun, trainer: Trainer, pl_module: LightningModule) -> None:
        """Change to the directory of a resumed run; its checkpoint has been loaded by now."""
        run.go_on_in_its_directory()

    @guarded(lambda *_: {})
    def state_dict(self) -> dict[str, Any]:
        """Return the audit's state for a checkpoint; it loads under ``weights_only=True``."""
        return self._kept if self._run is None else self._run.state()

    @of_its_run(left)
    def on_load_checkpoint(
        self, run: AuditRun, trainer: Trainer, pl_module: LightningModule, checkpoint: Any
    ) -> None:
        """Drop the state of this training: the checkpoint's steps replace its own."""
        if self._kept:
            run.forget(self._kept, checkpoint["callbacks"].get(self.state_key))
            self._kept = {}

    @guarded(left)
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the optimizers exist.

        Raises:
            MisconfigurationException: the state is not as an audit of this version saved it.
        """
        state = verified(state_dict)
        self._kept = dict(state_dict)
        if self._run is not None:  # Lightning loads checkpoints after `setup`
            self._run.keep(state)

    @of_its_run(left)
    def on_train_start(self, run: AuditRun, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the optimizers, read how the loader samples, and stop if that is wrong."""
        run.start(training_info(trainer))
        run.follow(trainer.optimizers, pl_module)
        run.note_settings()
        run.examinations.open_to(LightningStep(trainer, pl_module, self))
        if join_batches(run.config.canaries, trainer.world_size, pl_module):
            show_batches(trainer, pl_module, run)
        run.look_at_monitors()
        self._stopping.begin(LightningFrontEnd(trainer), run)

    @of_its_run(left)
    def on_train_batch_start(
        self,
        run: AuditRun,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Follow optimizers that were replaced, and start the batch."""
        run.follow(trainer.optimizers, pl_module)
        if batch_idx == 0 or not run.lints.began:  # a resumed epoch is shuffled again
            run.start_epoch()
        if not run.sessions:
            # Not before the first batch: until then a callback may make the training private.
            run.follow_hand_written(pl_module)
            self._stopping.begin_steps()
        run.start_batch(trainer.current_epoch, batch)

    @of_its_run(left)
    def on_before_backward(
        self, run: AuditRun, trainer: Trainer, pl_module: LightningModule, loss: Any
    ) -> None:
        """Lay out the canaries' rows before Opacus fills in the records', which saves a copy."""
        # on_train_batch_start of the module and of later callbacks has run since.
        run.follow(trainer.optimizers, pl_module)
        if not run.lints.loss_seen:
            run.lints.look_at_loss(pl_module, loss)
            self._stopping.begin_steps()
        run.prepare(loss, trainer.accumulate_grad_batches)

    @of_its_run(left)
    def on_after_backward(self, run: AuditRun, *_: Any) -> None:
        """Hide the canaries' rows from code that looks at the gradients before the step."""
        run.conceal()

    @of_its_run(left)
    def on_before_optimizer_step(
        self, run: AuditRun, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Inject the canaries: after backward, before clipping."""
        run.inject(optimizer)

    @of_its_run(left)
    def on_train_batch_end(
        self, run: AuditRun, trainer: Trainer, _: Any, outputs: Any, batch: Any, *__: Any
    ) -> None:
        """End the batch, and respond to what was found in it."""
        run.end_batch(batch)
        self._stopping.look()
        self._stopping.keep_to_budget()

    @of_its_run(outcome.epoch_left)
    def on_train_epoch_end(
        self, run: AuditRun, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Log the bounds if they are due; stop the training if the claim is violated."""
        due = ends_with_this_epoch(trainer) or bool(monitored(trainer, self.log_prefix))
        metrics, report = run.end_epoch(trainer.current_epoch, pl_module, due=due)
        named = {f"{self.log_prefix}/{name}": value for name, value in metrics.items()}
        run.ranks.meet()  # Lightning reduces metrics over the processes, so all must log them
        pl_module.log_dict(named, sync_dist=run.ranks.several)
        self._stopping.respond(report)

    @of_its_run(outcome.end_failed)
    def on_train_end(self, run: AuditRun, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the report; errors are raised later, after every other callback's end."""
        self._end(run, trainer)

    @of_its_run(outcome.fit_end_failed)
    def on_fit_end(self, run: AuditRun, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the report, and raise the error of its verdict if configured."""
        if not self._ended:  # nothing was trained, so on_train_end was not called
            run.take_up(training_info(trainer), trainer.optimizers)
            if run.report is None:
                self._end(run, trainer)
        else:
            self._end_again(run, trainer)
        self._unhook(run)
        if (error := tell(run, verbose=self.verbose)) is not None:
            raise error

    @of_its_run(outcome.release_failed)
    def on_exception(
        self, run: AuditRun, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Remove all hooks after an exception, and close report and record properly."""
        if isinstance(exception, OF_VERDICTS):
            end_at_user(exception)
        run.ranks.part()  # other processes may be elsewhere, or may have ended
        if run.optimizers.attached and not self._ended:
            run.break_off(f"the training broke off with {type(exception).__name__}")
            self._end(run, trainer)
            warn_of_end(run, known=self._stopping.told)
        self._close(trainer, pl_module)

    @guarded(outcome.release_failed)
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove all hooks and references to the training; the report is kept."""
        if stage == "fit" and self._serves(trainer) and self._run is not None:
            if self._ended and self._end_again(self._run, trainer, "a hook on_fit_end or teardown"):
                warn_of_end(self._run)
            self._close(trainer, pl_module)

    def _close(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release(meet=True)
        note_end(trainer, pl_module, self._kept)

    def _end(self, run: AuditRun, trainer: Trainer) -> None:
        self._ended = True
        run.end(self._stopping.reason())
        self._send(run, trainer)

    def _end_again(self, run: AuditRun, trainer: Trainer, name: str = "") -> bool:
        """Write the report again if later hooks changed weights; return whether it was."""
        again = run.end_again(name)
        if again:
            self._send(run, trainer)
        return again

    def _send(self, run: AuditRun, trainer: Trainer) -> None:
        send(run, trainer.loggers, trainer.global_step, f"{self.log_prefix}/report")

    def _release(self, *, meet: bool = False) -> None:
        """Release optimizers and files; keep the report and the state for a checkpoint."""
        if (run := self._run) is None:
            return
        self._stopping.put_back()
        self._unhook(run)
        run.optimizers.close_records()  # already closed if the run ended
        self._report, self._kept = run.report, run.state()
        if meet:
            run.ranks.meet()
        if run.files is not None:
            run.files.release()
        self._run = None

    def _unhook(self, run: AuditRun) -> None:
        run.detach()
        self._boundary.remove_hooks()

    def on_init_end(self, *_: Any, **__: Any) -> None:
        """Refuse the Trainer of Hugging Face, whose event this is."""
        raise MisconfigurationException(_OF_LIGHTNING)

    on_train_begin = on_init_end
