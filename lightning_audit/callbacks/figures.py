"""The report's figure: saved beside the report, and sent to the user's loggers."""

from __future__ import annotations

import logging
from functools import partial
from importlib.util import find_spec
from typing import Any

from lightning_audit.record.report_directory import FIGURE_NAME
from lightning_audit.report.loggers import send_figure
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.run.report_files import ReportFiles

_log = logging.getLogger(__name__)


def send_report_figure(
    report: AuditReport | None, files: ReportFiles | None, name: str, trainer: Any
) -> None:
    """Draw a report, save it and log it; without matplotlib nothing is drawn.

    A picture that cannot be drawn or saved costs a warning in the log, never the training.

    Args:
        report: what to draw; None for nothing.
        files: of the training; None to draw nothing.
        name: the picture's name at the loggers.
        trainer: of the training, with its loggers.
    """
    if report is None or files is None or find_spec("matplotlib") is None:
        return
    from lightning_audit.report.plots import figure, save_figure

    try:
        files.write(FIGURE_NAME, partial(save_figure, report), beside=True)
        if trainer.loggers:
            send_figure(trainer.loggers, figure(report), name, trainer.global_step)
    except Exception:  # matplotlib's settings are the user's, and may be anything
        _log.warning("the report's figure could not be drawn", exc_info=True)
