"""`PrivacyAudit`: audits the DP-SGD of an ordinary Lightning training, from inside."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_audit import _validate
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.callbacks._namespaces import Callback, refused_as_lightning_does
from lightning_audit.callbacks.audit_arguments import (
    ON_INCONCLUSIVE,
    ON_VIOLATION,
    allowed_of,
    bounds_of,
    canaries_of,
    claimed_of,
    delta_of,
    every_of,
    flag_of,
    given,
    oversize_of,
    seed_of,
    terms_of,
)
from lightning_audit.callbacks.figures import send_report_figure
from lightning_audit.callbacks.held_audit import HeldAudit
from lightning_audit.callbacks.outcome import is_trial, raise_for, show, warn_of_break_off
from lightning_audit.callbacks.trainer_refusals import refuse_trainer
from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.results.audit_report import (
    AuditReport,
)
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.session.ranks import Ranks
from lightning_audit.verdict.pass_blockers import Resolution

if TYPE_CHECKING:
    import pytorch_lightning as pl

_log = logging.getLogger(__name__)


class PrivacyAudit(Callback):
    """Audits the privacy of a DP-SGD training while it runs.

    Each step carries canary gradients through the user's own clipping and noise; what comes out
    is read before the update, and the canaries are taken out again, so that the trained model is
    what it would have been. At each epoch's end lower bounds on epsilon are logged; when the
    training ends, a verdict is given: PASS, VIOLATION or INCONCLUSIVE.

    Without arguments everything is read off the optimizer and its accountant, and the claim is
    the accountant's own epsilon.

    It is a callback of `pytorch_lightning` and of `lightning.pytorch`. In the YAML of a
    LightningCLI its ``class_path`` is ``lightning_audit.PrivacyAudit``; ``claim`` and
    ``resolution`` take their arguments with a ``class_path`` or without, and each of the
    ``canaries`` has one, such as ``lightning_audit.canaries.Dirac`` or ``Dirac``.

    Args:
        claimed_epsilon: the epsilon that the whole training must not exceed, > 0; None for the
            accountant's own.
        delta: the delta of all epsilons, in (0, 1); None for the claim's, or 1e-5.
        claim: what cannot be read off the optimizer, or shall be tested instead of what it states.
            For hand-written DP-SGD ``noise_multiplier``, ``max_grad_norm`` and
            ``expected_batch_size`` must be stated; they hold for every step.
        canaries: the canaries of an audited step, or one input canary alone; None for the default
            mix.
        num_canaries: size of the default mix, >= 1; not used where ``canaries`` are given.
        oversize: norm of the canaries over the clipping norm, >= 1. A canary of norm 1 is blind
            to clipping faults. Not used for an input canary, whose amplitude decides its norm.
        every_n_steps: canaries enter each n-th step; None for every step, and for fewer after the
            first 500 where per-sample gradients must be copied for it.
        significance: probability of a false alarm over the whole run, in (0, 1).
        bound_significance: probability that a logged lower bound is wrong, in (0, 1).
        bounds: names of the literature's bounds to compute at each epoch's end, such as
            ["fdp_cp"]; None for all, [] for none, which takes little time of an epoch's end. The
            verdict does not rest on them.
        resolution: what the audit must be able to see before it may pass; None for noise of 0.8
            times the claim and a clipping norm twice too large.
        allow: names of findings that shall not fail the run; they are still shown.
        on_violation: "raise" `PrivacyViolation` when the training has ended (it is asked to stop
            at the end of the epoch), "stop" the training only, or "warn" only.
        on_inconclusive: "warn", or "raise" `InconclusiveAudit` when the training has ended.
        report_dir: where report and observations go; None for ``default_root_dir/audit``. While
            another training has the directory, they go to ``run-2`` in it, or ``run-3``...
        log_prefix: first part of the names of the logged metrics.
        seed: of the audit's own coins, written to the report; None to draw one.
        replay_neighbours: at the first batch of the training and of each epoch, run
            ``training_step`` twice more, without an update, on batches that share a record beside
            different others: its gradient must be the same (`coupling`). It costs these passes, and
            leaves model, optimizers and random numbers as they were; what ``training_step`` writes
            elsewhere, to a file or an object of its own, is written again. In one process, for one
            optimizer, and not for ghost clipping.

    Raises:
        ValueError: an argument is outside its range, or, when training starts, a canary names a
            tensor that is not trained.
        MisconfigurationException: when training starts, if this Trainer or optimizer cannot be
            audited.
        PrivacyViolation: from ``Trainer.fit``, after the last checkpoint, if the claim is false.

    Example:
        >>> PrivacyAudit(claimed_epsilon=8.0, delta=1e-5).claimed_epsilon
        8.0
    """

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
        allow: Sequence[str] = (),
        on_violation: Literal["raise", "stop", "warn"] = "raise",
        on_inconclusive: Literal["raise", "warn"] = "warn",
        report_dir: str | Path | None = None,
        log_prefix: str = "audit",
        seed: int | None = None,
        replay_neighbours: bool = False,
        bounds: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        given("claim", claim, PrivacyClaim)
        self.claimed_epsilon = claimed_of(claimed_epsilon, claim)
        self.delta = delta_of(delta, claim)
        self.claim = claim
        self.canaries = canaries_of(canaries, num_canaries)
        self.oversize = oversize_of(oversize)
        self.every_n_steps = every_of(every_n_steps)
        self.significance = _validate.open_unit("significance", significance, "e.g. 0.001")
        self.bound_significance = _validate.open_unit(
            "bound_significance", bound_significance, "e.g. 0.05"
        )
        self.bounds = bounds_of(bounds)
        self.resolution = given("resolution", resolution, Resolution) or Resolution()
        self.replay_neighbours = flag_of("replay_neighbours", replay_neighbours)
        self.allow = allowed_of(allow)
        self.on_violation = _validate.one_of("on_violation", on_violation, ON_VIOLATION)
        self.on_inconclusive = _validate.one_of("on_inconclusive", on_inconclusive, ON_INCONCLUSIVE)
        self.report_dir = report_dir
        self.log_prefix = log_prefix
        self.seed = seed_of(seed)
        self._ended = self._told = False
        self._held = HeldAudit()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: the report and the audit's state, not the training."""
        # The module's own, which Lightning puts there.
        held = {k: v for k, v in vars(self).items() if k not in ("log", "log_dict")}
        return held | {"_held": copy(self._held)}

    @property
    def report(self) -> AuditReport | None:
        """The report of the latest training; None before the first epoch has ended."""
        return self._held.report

    @property
    def _run(self) -> AuditRun | None:
        return self._held.run

    # ------------------------------------------------------------------ set-up

    @refused_as_lightning_does
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse what cannot be audited, before anything is trained."""
        if stage != "fit":
            return
        held = self._held
        held.let_go()
        again = held.stays(trainer, pl_module)
        self._ended = self._told = False
        audits = [callback for callback in trainer.callbacks if isinstance(callback, PrivacyAudit)]  # type: ignore[attr-defined]
        refuse_trainer(trainer, len(audits))
        ranks = Ranks.of(trainer)
        terms = replace(terms_of(self), seed=ranks.shared(self.seed))
        files = None
        if ranks.is_first and not is_trial(trainer):
            files = ReportFiles(self.report_dir or Path(trainer.default_root_dir) / "audit")
        held.take(AuditRun(terms, files, str(trainer.precision), ranks), again=again)
        if not ranks.several:  # each process would see its own share of the records
            held.watch_loaders(trainer)

    @refused_as_lightning_does
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Go on in the directory of the run that a checkpoint is of."""
        if self._run is not None:  # the checkpoint has been loaded by now
            self._run.go_on_in_its_directory()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of the audit; it loads under ``weights_only=True``."""
        return self._held.state()

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let go of what was held of this training: the checkpoint's steps are others."""
        others = self._held.leave_for(checkpoint["callbacks"].get(self.state_key))
        if others and self._run is not None and not is_trial(trainer):
            self._run.make_room()

    @refused_as_lightning_does
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the optimizers are there.

        Raises:
            MisconfigurationException: it is not as an audit of this version saved it.
        """
        self._held.load(state_dict)

    @refused_as_lightning_does
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach to the optimizers and read how the loader samples."""
        if self._run is not None:
            self._run.start(trainer.train_dataloader, trainer.global_step)
            self._run.follow(trainer.optimizers, pl_module)
            self._run.remark(trainer)
            self._held.watch_batches(trainer, pl_module)

    # ------------------------------------------------------------------ each step and epoch

    @refused_as_lightning_does
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Follow optimizers that were made anew."""
        if self._run is None:
            return
        self._run.follow(trainer.optimizers, pl_module)
        if batch_idx == 0:
            self._run.start_epoch()
        if self._run.session is None:
            # Not before the first batch: a callback may make the training private until then.
            self._run.follow_hand_written(pl_module)
        self._run.start_batch(trainer.current_epoch)

    @refused_as_lightning_does
    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Any
    ) -> None:
        """Lay the canaries' rows out before Opacus fills in the others, which spares a copy."""
        if self._run is not None:
            # The module, and callbacks after this one, had their on_train_batch_start since.
            self._run.follow(trainer.optimizers, pl_module)
            self._run.lints.look_at_loss(pl_module, loss)
            self._run.prepare(loss, trainer.accumulate_grad_batches)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hide the canaries' rows from code that looks at the gradients before the step."""
        if self._run is not None:
            self._run.conceal()

    @refused_as_lightning_does
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """Put the canaries in: after backward, before clipping."""
        if self._run is not None:
            self._run.inject(optimizer)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Hand out no canaries until the next batch: validation is not training."""
        if self._run is not None:
            self._run.end_batch(batch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the bounds; ask the training to stop when the claim is false."""
        if self._run is None:
            return
        metrics = self._run.end_epoch(trainer.current_epoch, pl_module)
        named = {f"{self.log_prefix}/{name}": value for name, value in metrics.items()}
        pl_module.log_dict(named, sync_dist=self._run.ranks.several)
        report = self._run.report
        if report is not None and report.verdict.outcome == "VIOLATION":
            if not self._told and self._run.ranks.is_first:
                _log.error("privacy audit: %s", report.verdict.summary)
                self._told = True
            if self.on_violation in ("raise", "stop") and not is_trial(trainer):
                trainer.should_stop = True

    # ------------------------------------------------------------------ the end

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the report; raising waits until every other callback has had its end."""
        self._end(trainer)

    @refused_as_lightning_does
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the report, and raise if the verdict asks for it."""
        if self._run is None:
            return
        if not self._ended:  # nothing was trained, so that the training had no end either
            self._run.take_up(trainer, pl_module)
            if self._run.report is None:
                self._end(trainer)
        self._held.detach()
        report = self._run.report
        if report is None:
            return
        # No process ends before the report is shown: the end of one may be the end of all.
        self._run.ranks.from_first(partial(show, self._run))
        if not is_trial(trainer):
            raise_for(report, self.on_violation, self.on_inconclusive)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Leave the user's training as it was found, and what was recorded readable."""
        run = self._run
        if run is not None and run.attached and not self._ended:
            run.facts.break_off = f"the training broke off with {type(exception).__name__}"
            run.ranks.part()
            try:
                self._end(trainer)
                warn_of_break_off(run)
            except Exception:  # the user must see the training's own exception, not this one
                _log.exception("the audit's report could not be written")
        self._held.release(trainer, pl_module)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take all hooks off and let go of the training; the report stays."""
        if stage == "fit":
            self._held.release(trainer, pl_module)

    def _end(self, trainer: pl.Trainer) -> None:
        self._ended, run = True, self._run
        if run is not None:
            run.end()
            name, step = f"{self.log_prefix}/report", trainer.global_step
            send_report_figure(run.report, run.files, trainer.loggers, name, step)
