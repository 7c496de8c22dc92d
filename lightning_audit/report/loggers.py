"""Figures for the loggers of a training, whichever they are."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["send_figure"]

_log = logging.getLogger(__name__)


def send_figure(loggers: Iterable[Any], figure: Figure, tag: str, step: int) -> None:
    """Send a figure to each logger that takes pictures; the others are passed over.

    Known by what they offer: Weights & Biases (``logger.log_image``), TensorBoard
    (``experiment.add_image`` or ``add_figure``), MLflow and Comet (``experiment.log_figure``).
    A logger that fails costs its picture and a warning in the log, never the training.

    Args:
        loggers: Lightning's loggers, as in ``trainer.loggers``.
        figure: what to send.
        tag: name of the picture, such as "audit/report".
        step: optimizer step that it belongs to.
    """
    for logger in loggers:
        try:
            _send(logger, figure, tag, step)
        except Exception as error:
            _log.warning(
                "the figure %r was not logged by %s (%s: %s)",
                tag,
                type(logger).__name__,
                type(error).__name__,
                error,
            )


def _send(logger: Any, figure: Figure, tag: str, step: int) -> None:
    if hasattr(logger, "log_image"):
        logger.log_image(key=tag, images=[_pixels(figure)], step=step)
        return
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_image"):
        # TensorBoard's add_figure would load pyplot, and with it the user's backend.
        experiment.add_image(tag, _pixels(figure), step, dataformats="HWC")
    elif hasattr(experiment, "add_figure"):
        experiment.add_figure(tag, figure, step)
    elif hasattr(experiment, "log_figure"):
        _send_to_log_figure(logger, experiment, figure, tag, step)


def _send_to_log_figure(logger: Any, experiment: Any, figure: Figure, tag: str, step: int) -> None:
    run_id = getattr(logger, "run_id", None)
    if run_id is not None:  # MLflow keeps files of a run
        experiment.log_figure(run_id, figure, f"{tag}/{step:08d}.png")
    else:  # Comet
        experiment.log_figure(figure_name=tag, figure=figure, step=step)


def _pixels(figure: Figure) -> NDArray[np.uint8]:
    """The figure as red, green and blue in [height, width, 3]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(np.asarray(canvas.buffer_rgba())[..., :3])
