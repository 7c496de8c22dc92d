"""Log the first violation, and stop the training if configured."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from lightning_audit.callbacks.claim_budget import ClaimBudget
from lightning_audit.checks.update.no_dp import NO_DP
from lightning_audit.dpsgd.manual import ManualStep
from lightning_audit.report.in_words import progress, status_line
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.taps.boundary import Handles, StepRefused, entry
from lightning_audit.taps.method_hook import MethodHook

_log = logging.getLogger(__name__)
#: Name of the audit's item of a progress bar.
ITEM = "audit"


def monitored(trainer: Any, prefix: str) -> list[str]:
    """Return the metrics with a prefix that other callbacks or schedules monitor."""
    schedules = [config.monitor for config in trainer.lr_scheduler_configs]
    watched = [getattr(callback, "monitor", None) for callback in trainer.callbacks]
    return [name for name in map(str, (*watched, *schedules)) if name.startswith(f"{prefix}/")]


def ends_with_this_epoch(trainer: Any) -> bool:
    """Return whether the training is known to end with the current epoch."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    by_epochs = epochs not in (None, -1) and trainer.current_epoch + 1 >= epochs
    by_steps = steps not in (None, -1) and trainer.global_step >= steps
    return bool(trainer.should_stop or by_epochs or by_steps)


class _Words(str):
    """Text that a progress bar may format as a number, as it may do with all its items."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str(self)


def show_progress(trainer: Any, report: AuditReport) -> None:
    """Show the state of the audit in the progress bar, among the metrics of the training."""
    trainer.progress_bar_metrics[ITEM] = _Words(progress(report))


class Stopping:
    """Response to a violation during the training.

    Args:
        on_violation: "raise" and "stop" stop the training after the current step, "warn" does not.
    """

    def __init__(self, on_violation: str) -> None:
        self._ends = on_violation in ("raise", "stop")
        #: Whether a violation was logged.
        self.told = False
        # The training's loop, and its min_epochs and min_steps before they were set to None.
        self._least: tuple[Any, Any, Any] | None = None
        self._budget: ClaimBudget | None = None
        # Hooks before the first step.
        self._gates = Handles()
        #: Whether a claimed epsilon may stop the training.
        self.counts = False
        #: Why the audit stopped the training, as in `Ended`; empty if it did not.
        self._why = ""

    def reason(self, trainer: Any) -> str:
        """Return why the training ended, as in `Ended`."""
        return self._why or ("stopped" if trainer.should_stop else "planned")

    def begin(self, trainer: Any, run: AuditRun) -> None:
        """Respond to violations known before the first step; see `respond` for the arguments."""
        self.respond(run.look(), trainer, run)
        self.counts = run.config.claimed_epsilon is not None
        if self._ends and not run.trial and NO_DP.name not in run.config.allow:
            run.optimizers.plain.refuse = partial(self._refuse_plain, trainer, run)
        self.begin_steps(trainer, run)

    def begin_steps(self, trainer: Any, run: AuditRun) -> None:
        """Count the steps that the claim allows, and test the first step before it is taken.

        Args:
            trainer: of the training.
            run: of the audit; its optimizers may have been replaced since it began.
        """
        self._keep_to_budget(trainer, run)
        self._gates.remove()  # optimizers may have been replaced
        if self._budget is None or not self._budget.counts or not self._ends:
            return
        self._gates = Handles()
        for session in run.sessions:
            look = partial(self._look_at_first_step, trainer, run)
            if isinstance(session.step, ManualStep):
                self._gates.append(session.step.inner.register_step_pre_hook(entry(look)))
            else:  # before clipping, noise and the accountant
                self._gates.append(MethodHook(session.step.optimizer, "pre_step", look))

    @property
    def warned(self) -> str:
        """The warning about planned steps or epochs, if at least the first step fits the claim."""
        budget = self._budget
        return "" if budget is None or budget.hopeless else budget.warned

    def _look_at_first_step(self, trainer: Any, run: AuditRun, *_: Any) -> None:
        """Refuse the first step if it, or the planned epochs, would exceed the claim."""
        if not run.optimizers.looks or self._budget is None:
            return
        self._gates.remove()
        run.lints.planned = self._budget.excess()
        if run.lints.planned is not None:
            self._refuse(trainer, run)

    def _refuse_plain(self, trainer: Any, run: AuditRun, kind: str) -> None:
        """Refuse the step of an optimizer of class ``kind``, which is not private."""
        if run.optimizers.looks:
            run.optimizers.plain.refused = kind
            self._refuse(trainer, run)

    def _refuse(self, trainer: Any, run: AuditRun) -> None:
        """Stop the training with a violation before the next step is taken."""
        self.respond(run.look(composed=True), trainer, run)
        for session in run.sessions:
            session.source.retract(behind=False)
        raise StepRefused

    def end_batch(self, trainer: Any, run: AuditRun) -> None:
        """Respond to what was found in a batch; see `respond` for the arguments."""
        if run.look_is_due and not self.told:
            self.respond(run.look(), trainer, run)
        self._keep_to_budget(trainer, run)

    def _keep_to_budget(self, trainer: Any, run: AuditRun) -> None:
        if not self.counts or not run.sessions:  # hand-written DP-SGD has none before a batch
            return
        self._count_steps(trainer, run)

    def _count_steps(self, trainer: Any, run: AuditRun) -> None:
        if self._budget is None:
            self._budget = ClaimBudget(run, trainer, ends=self._ends)
        budget = self._budget
        if not budget.counts:
            pass
        elif budget.hopeless:
            if run.optimizers.steps:
                budget.counts = False
                self.respond(run.look(composed=True), trainer, run)
        elif budget.is_used_up():
            self._why = self._why or "budget"
            self._stop(trainer, run)
        self.counts = budget.counts

    def respond(self, report: AuditReport | None, trainer: Any, run: AuditRun) -> None:
        """Show the state in the progress bar, log the first violation, and stop if configured.

        Args:
            report: the current report; None if nothing was evaluated.
            trainer: of the training; it validates, saves and calls callbacks as at a normal end.
            run: of the audit; only its first process logs, and a fast_dev_run is not stopped.
        """
        if report is None:
            return
        show_progress(trainer, report)
        if report.verdict.outcome != "VIOLATION":
            return
        if not self.told and run.ranks.is_first:
            stops = "; the training stops" if self._ends and not run.trial else ""
            _log.error("privacy audit: %s%s", status_line(report), stops)
        self.told = True
        if self._ends and not run.trial:
            self._why = self._why or "violation"
            self._stop(trainer, run)

    def _stop(self, trainer: Any, run: AuditRun) -> None:
        run.ranks.meet()  # all processes stop, or none
        trainer.should_stop = True
        loop = trainer.fit_loop
        if self._least is None:  # min_epochs and min_steps would delay the stop
            self._least = (loop, loop.min_epochs, loop.epoch_loop.min_steps)
            loop.min_epochs = loop.epoch_loop.min_steps = None

    def put_back(self) -> None:
        """Restore the loop's min_epochs and min_steps, and remove the hooks."""
        self._gates.remove()
        if self._least is not None:
            loop, epochs, steps = self._least
            loop.min_epochs, loop.epoch_loop.min_steps, self._least = epochs, steps, None
