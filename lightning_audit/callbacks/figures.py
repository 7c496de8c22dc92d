"""The report's figure: saved beside the report, and sent to the user's loggers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_audit.report.loggers import send_figure
from lightning_audit.results import AuditReport
from lightning_audit.store import FIGURE_NAME

_log = logging.getLogger(__name__)


def send_report_figure(
    report: AuditReport | None,
    directory: Path | None,
    loggers: Iterable[Any],
    name: str,
    step: int,
) -> None:
    """Draw a report, save it and log it; without matplotlib nothing is drawn.

    A picture that cannot be drawn or saved costs a warning in the log, never the training.

    Args:
        report: what to draw; None for nothing.
        directory: where the report lies; None to draw nothing.
        loggers: Lightning's loggers.
        name: the picture's name there.
        step: optimizer step that it belongs to.
    """
    if report is None or directory is None or find_spec("matplotlib") is None:
        return
    from lightning_audit.report.plots import figure, save_figure

    try:
        save_figure(report, directory / FIGURE_NAME)
        if receivers := list(loggers):
            send_figure(receivers, figure(report), name, step)
    except Exception:  # matplotlib's settings are the user's, and may be anything
        _log.warning("the report's figure could not be drawn", exc_info=True)
