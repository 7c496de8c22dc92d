"""The end of an audited training: stop, log, print the report, raise the verdict's error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_audit.checks.update import NO_DP
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.hooks.boundary import Boundary, Handles, StepRefused, attempt, entry, where
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.record.report_directory import FIGURE_NAME, PAGE_NAME, REPORT_NAME
from lightning_audit.report.loggers import send_figure, send_files, takes_figures
from lightning_audit.report.text import print_report, print_summary, status_line
from lightning_audit.results.audit_report import (
    AuditReport,
    ClaimUsedUp,
    InconclusiveAudit,
    PrivacyViolation,
    UnauditableTraining,
)
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.claim_budget import ClaimBudget
from lightning_audit.run.evaluation import counts
from lightning_audit.run.facts import FrontEnd
from lightning_audit.run.preview import preview_of
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.verdict.judge import failed_report

# --- Send the report to the user's loggers, and its figure to those that take figures.


def send_report_figure(
    report: AuditReport, files: ReportFiles, name: str, loggers: Sequence[Any], step: int
) -> None:
    """Draw a report's figure once, save it and log it, if a logger takes figures.

    Without such a logger nothing is drawn and matplotlib is not loaded; without matplotlib nothing
    is sent.

    Args:
        report: what to draw.
        files: of the training.
        name: of the figure at the loggers.
        loggers: of the training.
        step: of the training.
    """
    takers = [logger for logger in loggers if takes_figures(logger)]
    if not takers or find_spec("matplotlib") is None:
        return
    from lightning_audit.report.figure import figure, save_drawn

    drawn = figure(report)
    files.write(FIGURE_NAME, partial(save_drawn, drawn), beside=True)
    send_figure(takers, drawn, name, step)


# --- Log the first violation, and stop the training if configured.

_log = logging.getLogger(__name__)


class Stopping:
    """Response to a violation during the training.

    Args:
        on_violation: "raise" and "stop" stop the training after the current step, "warn" does not.
    """

    _run: AuditRun

    def __init__(self, on_violation: str) -> None:
        self._ends = on_violation in ("raise", "stop")
        self._front = FrontEnd()  # until a training begins
        #: Whether a violation was logged.
        self.told = False
        self._budget: ClaimBudget | None = None
        # Hooks before the first step, and whether it was looked at.
        self._gates, self._looked = Handles(), False
        #: Whether a claimed epsilon may stop the training.
        self.counts = False
        #: Why the audit stopped the training, as in `Ended`; empty if it did not.
        self.why = ""

    def reason(self) -> str:
        """Return why the training ended, as in `Ended`."""
        return self.why or ("stopped" if self._front.stopped else "planned")

    def begin(self, front: FrontEnd, run: AuditRun) -> None:
        """Respond to violations known before the first step.

        Args:
            front: runs the training; at a stop it validates, saves and calls callbacks as at a
                normal end.
            run: of the audit; only its first process logs, and a fast_dev_run is not stopped.
        """
        self._front, self._run, self._budget = front, run, None
        # The present epoch is among those left.
        before = run.lints.epochs - int(run.lints.began)
        coming = front.epochs_left()
        run.course.planned_epochs = before + coming if coming else None
        self.respond(run.look())
        self.counts = run.config.claimed_epsilon is not None
        if self._ends and not run.trial and NO_DP.name not in run.config.allow:
            run.optimizers.plain.refuse = self._refuse_plain
        self.begin_steps()

    def begin_steps(self) -> None:
        """Count the steps that the claim allows, and test the first step before it is taken.

        The optimizers may have been replaced since the training began.
        """
        run = self._run
        self.keep_to_budget()
        self._gates.remove()  # optimizers may have been replaced
        self._looked = False
        if self._budget is None or not self._budget.counts or not self._ends:
            return
        self._gates = Handles()
        for session in run.sessions:
            look = self._look_at_first_step
            if isinstance(session.step, ManualStep):
                self._gates.append(session.step.inner.register_step_pre_hook(entry(look)))
            else:  # before clipping, noise and the accountant
                self._gates.append(MethodHook(session.step.optimizer, "pre_step", look))

    @property
    def warned(self) -> str:
        """The warning about planned steps or epochs, if at least the first step fits the claim."""
        budget = self._budget
        return "" if budget is None or budget.hopeless else budget.warned

    def _look_at_first_step(self, *_: Any) -> None:
        """Refuse the first step if it, or the planned epochs, would exceed the claim."""
        run = self._run
        if self._looked or not run.optimizers.looks or self._budget is None:
            return
        self._looked = True  # hooks that run cannot be removed
        run.lints.planned = self._budget.excess()
        if run.lints.planned is not None:
            self._refuse()

    def _refuse_plain(self, kind: str) -> None:
        """Refuse the step of an optimizer of class ``kind``, which is not private."""
        if self._run.optimizers.looks:
            self._run.optimizers.plain.refused = kind
            self._refuse()

    def _refuse(self) -> None:
        """Stop the training with a violation before the next step is taken."""
        self.respond(self._run.look(composed=True))
        self.refuse()

    def refuse(self) -> None:
        """Stop the training before the next step is taken."""
        for session in self._run.sessions:
            session.withdraw()
        self._front.refuse(self._run.report)

    def look(self) -> None:
        """Respond to what was found since the last look."""
        if self._run.look_is_due and not self.told:
            self.respond(self._run.look())

    def keep_to_budget(self) -> None:
        """Stop the training if its next step would exceed the claim; once for each batch."""
        if not self.counts or not self._run.sessions:  # hand-written DP-SGD has none before a batch
            return
        run = self._run
        self._budget = budget = self._budget or ClaimBudget(run, self._front, ends=self._ends)
        if budget.counts and not budget.hopeless:
            if budget.is_used_up():
                self._stop("budget")
        elif budget.counts and run.optimizers.steps:
            budget.counts = False
            self.respond(run.look(composed=True))
        self.counts = budget.counts

    def respond(self, report: AuditReport | None) -> None:
        """Show the state, log the first violation if it is not raised now, and stop if configured.

        Args:
            report: the current report; None if nothing was evaluated.
        """
        if report is None:
            return
        run = self._run
        self._front.show(report)
        if report.verdict.outcome != "VIOLATION":
            return
        if not self.told and not self._front.raises and run.ranks.is_first:
            stops = "; the training stops" if self._ends and not run.trial else ""
            _log.error("privacy audit: %s%s", status_line(report), stops)
        self.told = True
        if self._ends and not run.trial:
            self._stop("violation")

    def _stop(self, why: str) -> None:
        self.why = self.why or why
        self._run.ranks.meet()  # all processes stop, or none
        self._front.stop()

    def put_back(self) -> None:
        """Restore the training's loop, and remove the hooks."""
        self._gates.remove()
        self._front.put_back()


# --- The end of an audited training: print the report, and raise the verdict's error.

_DELIBERATE = (
    UnauditableTraining,
    PrivacyViolation,
    ClaimUsedUp,
    InconclusiveAudit,
    StepRefused,
)


def boundary(*passes: type[BaseException]) -> Boundary:
    """Return a boundary that lets the audit's deliberate exceptions pass, and ``passes``."""
    return Boundary(*_DELIBERATE, *passes)


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


class MetricRows:
    """Sends a row of metrics for each epoch of a plain loop; the last one waits for the end.

    Args:
        loggers: functions of a row, or loggers of Lightning.
        prefix: of the names.
        latest: takes each metric's last value.
    """

    def __init__(self, loggers: Sequence[Any], prefix: str, latest: dict[str, float]) -> None:
        self._loggers, self._prefix, self._latest = loggers, prefix, latest
        self._row: dict[str, float] = {}

    def take(self, run: AuditRun, metrics: dict[str, float]) -> None:
        """Send the metrics of an epoch's end; if none were due, keep what costs nothing."""
        self._row = metrics or counts(run.sessions)
        if metrics:
            self.send(run)

    def send(self, run: AuditRun, last: Mapping[str, float] = {}) -> None:
        """Send the row that was kept, if there is one, or the last one instead of it."""
        found = last if self._row and last else self._row
        row, self._row = {f"{self._prefix}/{n}": value for n, value in found.items()}, {}
        self._latest.update(row)
        for logger in self._loggers if row and run.ranks.is_first else ():
            call = getattr(logger, "log_metrics", logger)
            view(run, "logging the metrics", partial(call, dict(row)))


def send(run: AuditRun, loggers: Sequence[Any], step: int, name: str) -> None:
    """Write the report's page and its figure, and send the report to the loggers.

    Args:
        run: of the report.
        loggers: of the training.
        step: of the training.
        name: of figure and artifact at the loggers.
    """
    report, files = run.report, run.files
    if report is not None and files is not None:
        drawn = partial(send_report_figure, report, files, name, loggers, step)
        view(run, "drawing the report's figure", drawn)
        files.write_page(run.report or report)
        shown = [files.shown(kind) for kind in (REPORT_NAME, FIGURE_NAME, PAGE_NAME)]
        written = [path for path in shown if path and path.exists()]
        sent = partial(send_files, loggers, written, name)
        view(run, "sending the report to the loggers", sent)


def tell(run: AuditRun, *, verbose: bool = False, ends: bool = True) -> Exception | None:
    """Print the report, unless the error of its verdict says the same, and return that error.

    All processes wait until the report is printed, because the end of one may end all of them.

    Args:
        run: of the report; a fast_dev_run has no error.
        verbose: see `PrivacyAudit`.
        ends: whether the error ends the training, which may have ended by another one.
    """
    if run.report is None:
        return None
    run.ranks.meet()  # detects an audit that failed after the report was written
    ends = ends and not run.trial
    error = error_of(run.report, run.config, run.files) if ends else None
    run.ranks.from_first(lambda: show(run, error, verbose=verbose))
    return error


def tell_failed(audit: Any, *, ends: bool, verbose: bool = False) -> Exception | None:
    """Do the same after a failure of the audit, of whose processes the others may have left.

    Args:
        audit: the front end's object, after `close_failed`.
        ends: see `tell`.
        verbose: see `PrivacyAudit`.
    """
    run, report = audit._run, audit.report
    error = error_of(report, audit.config, run and run.files) if ends else None
    if run is not None and run.ranks.is_first:
        show(run, error, verbose=verbose)
    return error


def show(run: AuditRun, error: Exception | None = None, *, verbose: bool = False) -> None:
    """Print the report and its path; a fast_dev_run writes none and previews a whole training.

    Args:
        run: of the report.
        error: that is raised next; one of a verdict says what a summary would.
        verbose: whether to print every check instead of the summary.
    """
    if isinstance(error, PrivacyViolation | InconclusiveAudit) and not verbose:
        return

    def printed() -> None:
        report, files = run.report, run.files
        assert report is not None
        path = files.shown(REPORT_NAME) if files else None
        (print_report if verbose else print_summary)(report, path)
        if files is None:
            print(preview_of(report, run.sessions, None))
            print("Report: not written, this is a fast_dev_run")

    view(run, "printing the report", printed)


def warn_of_end(run: AuditRun | None, *, known: bool = False) -> None:
    """Log the verdict on a training that broke off, and the report's path, as a warning.

    Args:
        run: of the training; None if the audit failed before there was one.
        known: whether a violation was logged before, which is not logged again.
    """
    if run is None or run.report is None or run.files is None:
        return
    path = run.files.shown(REPORT_NAME) or "not written"
    verdict = "the training broke off" if known else status_line(run.report)
    _log.warning("privacy audit: %s; report: %s", verdict, path)


def error_of(
    report: AuditReport, config: AuditConfig, files: ReportFiles | None = None
) -> Exception | None:
    """Return the error of a verdict, or of a claim that is used up, if its setting is "raise".

    Args:
        report: of the training.
        config: of the audit.
        files: of the training; None if they are not known.

    Returns:
        `PrivacyViolation`, `ClaimUsedUp` or `InconclusiveAudit`; None if nothing is to be raised.
    """
    outcome, path = report.verdict.outcome, files.shown(REPORT_NAME) if files else None
    if outcome == "VIOLATION" and config.on_violation == "raise":
        return PrivacyViolation(report, path)
    if report.claim_ended_it and config.on_budget == "raise":
        return ClaimUsedUp(report)
    if outcome == "INCONCLUSIVE" and config.on_inconclusive == "raise":
        return InconclusiveAudit(report, path)
    return None


def _add_note(run: AuditRun, sentence: str) -> None:
    """Add a note to the last report, and write the report again."""
    if run.report is not None and sentence not in run.report.notes:
        run.report = replace(run.report, notes=(*run.report.notes, sentence))
        _save(run.report, run.files)


def _save(report: AuditReport, files: ReportFiles | None) -> None:
    if files is not None:
        files.write(REPORT_NAME, report.save, beside=True)
        files.write_page(report)


# --- The audit has failed.


def left(audit: Any, *_: Any, **__: Any) -> None:
    """Replace a hook after a failure: remove all hooks, unless a canary is still in a step.

    Args:
        audit: the front end's object, such as `PrivacyAudit`.
    """
    run = audit._run
    if run is not None and any(session.in_transit for session in run.sessions):
        return
    audit._boundary.remove_hooks()


def close_failed(audit: Any, directory: Path | None) -> None:
    """Write what was found before a failure of the audit.

    Args:
        audit: the front end's object, such as `PrivacyAudit`.
        directory: of the report, if the audit failed before it took one; None to write none then.
    """
    left(audit)
    run, audit._ended = audit._run, True
    config = audit.config if run is None else run.config
    report = failed_report(audit.report, config, config.settings(), audit._boundary.failure)
    audit._report = report
    if run is not None:
        attempt(run.optimizers.close_records)
        run.report = report
        attempt(partial(_save, report, run.files))
    elif directory is not None:
        own = ReportFiles(directory)
        attempt(partial(_save, report, own))
        attempt(own.release)
