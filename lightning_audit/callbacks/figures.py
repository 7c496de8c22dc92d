"""Send the report and its figure to the user's loggers; save the figure next to the report."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

from lightning_audit.record.report_directory import FIGURE_NAME, REPORT_NAME
from lightning_audit.report.loggers import send_figure, send_files
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.run.report_files import ReportFiles


def send_report_figure(report: AuditReport, files: ReportFiles, name: str, trainer: Any) -> None:
    """Draw a report's figure, save it and log it; do nothing without matplotlib.

    Args:
        report: what to draw.
        files: of the training.
        name: of the figure at the loggers.
        trainer: of the training, with its loggers.
    """
    if find_spec("matplotlib") is None:
        return
    from lightning_audit.report.plots import figure, save_figure

    files.write(FIGURE_NAME, partial(save_figure, report), beside=True)
    if trainer.loggers:
        send_figure(trainer.loggers, figure(report), name, trainer.global_step)


def send_report_files(files: ReportFiles, name: str, trainer: Any) -> None:
    """Send a training's report and its figure to the loggers.

    Args:
        files: of the training.
        name: of the artifact at the loggers.
        trainer: of the training, with its loggers.
    """
    written = [files.shown(kind) for kind in (REPORT_NAME, FIGURE_NAME)]
    send_files(trainer.loggers, [path for path in written if path and path.exists()], name)
