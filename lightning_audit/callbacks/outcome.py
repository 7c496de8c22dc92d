"""The end of an audited training: stop, log, print the report, raise the verdict's error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from lightning_audit.callbacks._namespaces import MisconfigurationException
from lightning_audit.callbacks.claim_budget import ClaimBudget
from lightning_audit.callbacks.preview import preview_of
from lightning_audit.callbacks.trainer import ranks_of
from lightning_audit.checks.update import NO_DP
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.hooks.boundary import Boundary, Handles, StepRefused, attempt, entry, where
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.record.report_directory import FIGURE_NAME, REPORT_NAME
from lightning_audit.report.loggers import send_figure, send_files, takes_figures
from lightning_audit.report.text import print_report, print_summary, progress, status_line
from lightning_audit.results.audit_report import (
    AuditReport,
    ClaimUsedUp,
    InconclusiveAudit,
    PrivacyViolation,
    UnauditableTraining,
)
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.session.step import AuditSession
from lightning_audit.verdict.judge import failed_report

# --- Send the report to the user's loggers, and its figure to those that take figures.


def send_report_figure(report: AuditReport, files: ReportFiles, name: str, trainer: Any) -> None:
    """Draw a report's figure once, save it and log it, if a logger takes figures.

    Without such a logger nothing is drawn and matplotlib is not loaded; without matplotlib nothing
    is sent.

    Args:
        report: what to draw.
        files: of the training.
        name: of the figure at the loggers.
        trainer: of the training, with its loggers.
    """
    takers = [logger for logger in trainer.loggers if takes_figures(logger)]
    if not takers or find_spec("matplotlib") is None:
        return
    from lightning_audit.report.figure import figure, save_drawn

    drawn = figure(report)
    files.write(FIGURE_NAME, partial(save_drawn, drawn), beside=True)
    send_figure(takers, drawn, name, trainer.global_step)


def send_report_files(files: ReportFiles, name: str, trainer: Any) -> None:
    """Send a training's report, and its figure if it was drawn, to loggers that store files.

    Args:
        files: of the training.
        name: of the artifact at the loggers.
        trainer: of the training, with its loggers.
    """
    written = [files.shown(kind) for kind in (REPORT_NAME, FIGURE_NAME)]
    send_files(trainer.loggers, [path for path in written if path and path.exists()], name)


# --- Log the first violation, and stop the training if configured.

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
            session.withdraw()
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


# --- The end of an audited training: print the report, and raise the verdict's error.

_DELIBERATE = (
    UnauditableTraining,
    MisconfigurationException,
    PrivacyViolation,
    ClaimUsedUp,
    InconclusiveAudit,
    StepRefused,
)


def boundary() -> Boundary:
    """Return a boundary that lets the audit's deliberate exceptions pass."""
    return Boundary(*_DELIBERATE)


def view(run: AuditRun, what: str, show: Callable[[], None]) -> None:
    """Display the report; a failure adds a note to the report and does not change the verdict.

    Args:
        run: of the report.
        what: is shown, as the note names it.
        show: shows it.
    """
    try:
        show()
    except Exception as error:
        failed, line = where(error)
        _log.warning("privacy audit: %s failed (%s:%d)", what, failed, line)
        attempt(partial(_add_note, run, f"{what} failed ({failed})"))


def send(run: AuditRun, trainer: Any, name: str) -> None:
    """Write the report's page and its figure, and send the report to the loggers.

    Args:
        run: of the report.
        trainer: of the training, with its loggers.
        name: of figure and artifact at the loggers.
    """
    report, files = run.report, run.files
    if report is not None and files is not None:
        drawn = partial(send_report_figure, report, files, name, trainer)
        view(run, "drawing the report's figure", drawn)
        files.write_page(run.report or report)
        sent = partial(send_report_files, files, name, trainer)
        view(run, "sending the report to the loggers", sent)


def tell(run: AuditRun, on_violation: str, *, verbose: bool = False) -> None:
    """Print the report, and raise the error of its verdict if configured.

    All processes wait until the report is printed, because the end of one may end all of them.

    Args:
        run: of the report; a fast_dev_run raises nothing.
        on_violation: see `PrivacyAudit`.
        verbose: see `PrivacyAudit`.
    """
    report = run.report
    if report is None:
        return
    run.ranks.meet()  # detects an audit that failed after the report was written
    printed = partial(show, report, run.files, run.sessions, verbose=verbose)
    run.ranks.from_first(lambda: view(run, "printing the report", printed))
    if not run.trial:
        raise_for(report, on_violation, run.config)


def show(
    report: AuditReport,
    files: ReportFiles | None,
    sessions: Sequence[AuditSession] = (),
    *,
    verbose: bool = False,
) -> None:
    """Print a report and its path.

    Args:
        report: of the training that has ended.
        files: of the training; None in a fast_dev_run, which writes none and prints a preview of
            the audit of a whole training.
        sessions: of the private optimizers.
        verbose: whether to print every check instead of the summary.
    """
    printed = print_report if verbose else print_summary
    printed(report, files.shown(REPORT_NAME) if files else None)
    if files is None:
        print(preview_of(report, sessions, None))
        print("Report: not written, this is a fast_dev_run")


def warn_of_end(
    report: AuditReport | None, files: ReportFiles | None, *, known: bool = False
) -> None:
    """Log the verdict on a training that broke off, and the report's path, as a warning.

    Args:
        report: of the training; None if there is none.
        files: of the training; None if it writes none.
        known: whether a violation was logged before, which is not logged again.
    """
    if report is None or files is None:
        return
    path = files.shown(REPORT_NAME) or "not written"
    verdict = "the training broke off" if known else status_line(report)
    _log.warning("privacy audit: %s; report: %s", verdict, path)


def raise_for(report: AuditReport, on_violation: str, config: AuditConfig) -> None:
    """Raise the error of a verdict, or of a claim that is used up, if its setting is "raise".

    Raises:
        PrivacyViolation: the verdict is VIOLATION.
        ClaimUsedUp: the claim ended the training.
        InconclusiveAudit: the verdict is INCONCLUSIVE.
    """
    outcome = report.verdict.outcome
    if outcome == "VIOLATION" and on_violation == "raise":
        raise PrivacyViolation(report)
    if report.claim_ended_it and config.on_budget == "raise":
        raise ClaimUsedUp(report)
    if outcome == "INCONCLUSIVE" and config.on_inconclusive == "raise":
        raise InconclusiveAudit(report)


def _add_note(run: AuditRun, sentence: str) -> None:
    """Add a note to the last report, and write the report again."""
    if run.report is not None and sentence not in run.report.notes:
        run.report = replace(run.report, notes=(*run.report.notes, sentence))
        _save(run.report, run.files)


def _save(report: AuditReport, files: ReportFiles | None) -> None:
    if files is not None:
        files.write(REPORT_NAME, report.save, beside=True)
        files.write_page(report)


# ------------------------------------------------------------------ the audit has failed


def left(audit: Any, *_: Any, **__: Any) -> None:
    """Replace a hook after a failure: remove all hooks, unless a canary is still in a step.

    Args:
        audit: the `PrivacyAudit`.
    """
    run = audit._run
    if run is not None and any(session.in_transit for session in run.sessions):
        return
    audit._boundary.remove_hooks()


def epoch_left(audit: Any, trainer: Any, pl_module: Any) -> None:
    """Replace the epoch's end after a failure: metrics that callbacks monitor keep their value."""
    left(audit)
    attempt(partial(_keep_monitored, audit.log_prefix, trainer, pl_module))


def _keep_monitored(prefix: str, trainer: Any, pl_module: Any) -> None:
    """Log the last value, or 0.0, for callbacks only: they raise if the metric is missing."""
    known = trainer.callback_metrics
    values = {name: float(known.get(name, 0.0)) for name in monitored(trainer, prefix)}
    pl_module.log_dict(values, logger=False)


def not_begun(audit: Any, trainer: Any, *_: Any, **__: Any) -> None:
    """Replace the setup after a failure: inform the other processes of it."""
    attempt(partial(audit.take, trainer))  # the report is written at the end of this Trainer's fit
    if audit._ranks is None:  # it failed before the processes were connected
        attempt(lambda: ranks_of(trainer, audit._boundary).leave())
    left(audit)


def end_failed(audit: Any, trainer: Any, *_: Any) -> None:
    """Replace the training's end after a failure: write what was found before it."""
    left(audit)
    run, audit._ended = audit._run, True
    config = audit.config if run is None else run.config
    report = failed_report(audit.report, config, config.settings(), audit._boundary.failure)
    if run is not None:
        attempt(run.optimizers.close_records)
    audit._report, own = report, None
    if run is not None:
        run.report = report
    elif trainer.is_global_zero and not trainer.fast_dev_run:
        own = ReportFiles(audit.directory(trainer))  # the audit failed before it made one
    attempt(partial(_save, report, own if run is None else run.files))
    if own is not None:
        attempt(own.release)


def fit_end_failed(audit: Any, trainer: Any, *_: Any) -> None:
    """Replace the fit's end after a failure: show the report, and raise if configured."""
    end_failed(audit, trainer)
    report, run = audit.report, audit._run
    if run is not None and run.ranks.is_first:
        printed = partial(show, report, run.files, run.sessions, verbose=audit.verbose)
        view(run, "printing the report", printed)
    if not trainer.fast_dev_run:
        raise_for(report, audit.on_violation, audit.config)


def release_failed(audit: Any, trainer: Any, *given: Any, **_: Any) -> None:
    """Replace the teardown after a failure: keep only the report."""
    end_failed(audit, trainer)
    run, audit._run, audit._kept = audit._run, None, {}
    attempt(audit._stopping.put_back)
    if run is not None and run.files is not None:
        attempt(run.files.release)
    if any(isinstance(each, BaseException) for each in given):
        files = None if run is None else run.files
        warn_of_end(audit.report, files, known=audit._stopping.told)
    audit._boundary.begin()
