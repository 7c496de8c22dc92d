"""Tells of a violation once, where it is found, and ends a training that is to end for it."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from lightning_audit.callbacks.claim_budget import ClaimBudget
from lightning_audit.checks.update.no_dp import NO_DP
from lightning_audit.dpsgd.manual import ManualStep
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.taps.boundary import Handles, StepRefused, entry
from lightning_audit.taps.method_hook import MethodHook

_log = logging.getLogger(__name__)


def monitored(trainer: Any, prefix: str) -> list[str]:
    """What another callback or a schedule goes by of what is logged under a prefix."""
    schedules = [config.monitor for config in trainer.lr_scheduler_configs]
    watched = [getattr(callback, "monitor", None) for callback in trainer.callbacks]
    return [name for name in map(str, (*watched, *schedules)) if name.startswith(f"{prefix}/")]


def ends_with_this_epoch(trainer: Any) -> bool:
    """Whether a training ends with the epoch that ends now, as far as is known by now."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    by_epochs = epochs not in (None, -1) and trainer.current_epoch + 1 >= epochs
    by_steps = steps not in (None, -1) and trainer.global_step >= steps
    return bool(trainer.should_stop or by_epochs or by_steps)


class Stopping:
    """What is done about a violation while the training goes on.

    Args:
        on_violation: "raise" and "stop" end the training behind the present step, "warn" does not.
    """

    def __init__(self, on_violation: str) -> None:
        self._ends = on_violation in ("raise", "stop")
        #: Whether a violation was told of.
        self.told = False
        # Of which loop, and its least epochs and steps before they were set aside.
        self._least: tuple[Any, Any, Any] | None = None
        self._budget: ClaimBudget | None = None
        # Look at the first step of all.
        self._gates = Handles()
        #: Whether a claimed epsilon may end the training.
        self.counts = False

    def begin(self, trainer: Any, run: AuditRun) -> None:
        """Respond to what is known before the first step; arguments as of `respond`."""
        self.respond(run.look(), trainer, run)
        self.counts = run.config.claimed_epsilon is not None
        if self._ends and not run.trial and NO_DP.name not in run.config.allow:
            run.optimizers.plain.refuse = partial(self._refuse_plain, trainer, run)
        self.begin_steps(trainer, run)

    def begin_steps(self, trainer: Any, run: AuditRun) -> None:
        """Count what the claim leaves, and look at the first step before it is taken.

        Args:
            trainer: of the training.
            run: of the audit; its optimizers may be others than when it began.
        """
        self._keep_to_budget(trainer, run)
        self._gates.remove()  # of optimizers that may have been made anew
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
        """What was said of the steps or epochs that are planned, where the first keep to it."""
        budget = self._budget
        return "" if budget is None or budget.hopeless else budget.warned

    def _look_at_first_step(self, trainer: Any, run: AuditRun, *_: Any) -> None:
        """Refuse a step with which, or with those that are planned, the claim is false."""
        if not run.optimizers.looks or self._budget is None:
            return
        self._gates.remove()
        run.lints.planned = self._budget.excess()
        if run.lints.planned is not None:
            self._refuse(trainer, run)

    def _refuse_plain(self, trainer: Any, run: AuditRun, kind: str) -> None:
        """Refuse the step of an optimizer that is not private, of this class."""
        if run.optimizers.looks:
            run.optimizers.plain.refused = kind
            self._refuse(trainer, run)

    def _refuse(self, trainer: Any, run: AuditRun) -> None:
        """End the training with a violation, before the step that is about to be taken."""
        self.respond(run.look(composed=True), trainer, run)
        for session in run.sessions:
            session.source.retract(behind=False)
        raise StepRefused

    def end_batch(self, trainer: Any, run: AuditRun) -> None:
        """Respond to what was found behind a batch; arguments as of `respond`."""
        if run.look_is_due and not self.told:
            self.respond(run.look(), trainer, run)
        self._keep_to_budget(trainer, run)

    def _keep_to_budget(self, trainer: Any, run: AuditRun) -> None:
        if not self.counts or not run.sessions:  # of DP-SGD by hand there is none before a batch
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
            self._stop(trainer, run)
        self.counts = budget.counts

    def respond(self, report: AuditReport | None, trainer: Any, run: AuditRun) -> None:
        """Log a violation if it is the first, and ask the training to stop.

        Args:
            report: by now; None where nothing was found.
            trainer: of the training; it validates, saves and calls other callbacks as at any end.
            run: of the audit; its first process logs, and a fast_dev_run is not stopped.
        """
        if report is None or report.verdict.outcome != "VIOLATION":
            return
        if not self.told and run.ranks.is_first:
            _log.error("privacy audit: %s", report.verdict.summary)
        self.told = True
        if self._ends and not run.trial:
            self._stop(trainer, run)

    def _stop(self, trainer: Any, run: AuditRun) -> None:
        run.ranks.meet()  # all processes stop, or none
        trainer.should_stop = True
        loop = trainer.fit_loop
        if self._least is None:  # what the training was to last at least is set aside
            self._least = (loop, loop.min_epochs, loop.epoch_loop.min_steps)
            loop.min_epochs = loop.epoch_loop.min_steps = None

    def put_back(self) -> None:
        """Give the training's loop its least epochs and steps back, and take the hooks off."""
        self._gates.remove()
        if self._least is not None:
            loop, epochs, steps = self._least
            loop.min_epochs, loop.epoch_loop.min_steps, self._least = epochs, steps, None
