"""Send the report to the user's loggers, and its figure to those that take figures."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

from lightning_audit.record.report_directory import FIGURE_NAME, REPORT_NAME
from lightning_audit.report.loggers import send_figure, send_files, takes_figures
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.run.report_files import ReportFiles


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
    from lightning_audit.report.plots import figure, save_drawn

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
