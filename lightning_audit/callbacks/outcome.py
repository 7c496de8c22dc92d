"""The end of an audited training: print the report, and raise the verdict's error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lightning_audit.callbacks._namespaces import MisconfigurationException
from lightning_audit.callbacks.figures import send_report_figure, send_report_files
from lightning_audit.callbacks.preview import preview_of
from lightning_audit.callbacks.stopping import monitored
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.report.console import print_report, print_summary
from lightning_audit.report.in_words import status_line
from lightning_audit.results.audit_report import (
    AuditReport,
    InconclusiveAudit,
    PrivacyViolation,
)
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.ranks import Ranks
from lightning_audit.taps.boundary import Boundary, StepRefused, attempt, where
from lightning_audit.verdict.failed_audit import failed_report

_log = logging.getLogger(__name__)
_DELIBERATE = (
    UnauditableTraining,
    MisconfigurationException,
    PrivacyViolation,
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
        raise_for(report, on_violation, run.config.on_inconclusive)


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


def raise_for(report: AuditReport, on_violation: str, on_inconclusive: str) -> None:
    """Raise the error of a verdict if its setting is "raise".

    Raises:
        PrivacyViolation: the verdict is VIOLATION.
        InconclusiveAudit: the verdict is INCONCLUSIVE.
    """
    outcome = report.verdict.outcome
    if outcome == "VIOLATION" and on_violation == "raise":
        raise PrivacyViolation(report)
    if outcome == "INCONCLUSIVE" and on_inconclusive == "raise":
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
    if run is not None and any(session.rescue.in_transit for session in run.sessions):
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


def not_begun(audit: Any, trainer: Any, *_: Any) -> None:
    """Replace the setup after a failure: inform the other processes of it."""
    if audit._ranks is None:  # it failed before the processes were connected
        attempt(lambda: Ranks.of(trainer, audit._boundary).leave())
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
        raise_for(report, audit.on_violation, audit.config.on_inconclusive)


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
