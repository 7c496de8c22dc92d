"""Sends the report and its figure to a training's loggers of any kind."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["send_figure", "send_files", "takes_figures"]

_log = logging.getLogger(__name__)


def takes_figures(logger: Any) -> bool:
    """Return whether a logger accepts figures, or stores files of a run, such as a figure's.

    Loggers are recognized by their methods, as in `send_figure` and `send_files`. One that raises
    an exception counts as one that does not; the exception is logged as a warning.
    """
    found: list[bool] = []
    _spare(logger, "the figure", lambda: found.append(_takes(logger)))
    return found == [True]


def send_figure(loggers: Iterable[Any], figure: Figure, tag: str, step: int) -> None:
    """Send a figure to each logger that accepts figures; skip the others.

    Loggers are recognized by their methods: Weights & Biases (``logger.log_image``), TensorBoard
    (``experiment.add_image`` or ``add_figure``), and Comet (``experiment.log_figure``). MLflow gets
    the figure's file from `send_files`. An exception of a logger is logged as a warning and does
    not stop the training.

    Args:
        loggers: Lightning's loggers, as in ``trainer.loggers``.
        figure: the figure.
        tag: name of the figure, such as "audit/report".
        step: optimizer step of the figure.
    """
    for logger in loggers:
        _spare(logger, f"the figure {tag!r}", partial(_send, logger, figure, tag, step))


def send_files(loggers: Iterable[Any], files: Sequence[Path], tag: str) -> None:
    """Send files to each logger that stores files of a run; skip the others.

    MLflow gets them as artifacts of the run below ``tag`` (``experiment.log_artifact``), or below
    ``tag-2``, ``tag-3``... if an earlier training of the same run has used that. Weights & Biases
    gets one artifact of type "privacy-audit", with a new version for each training. Nothing is
    imported: a training with such a logger has already loaded its package.

    Args:
        loggers: Lightning's loggers, as in ``trainer.loggers``.
        files: existing files.
        tag: name of the artifact, such as "audit/report".
    """
    for logger in loggers:
        _spare(logger, f"the artifact {tag!r}", partial(_send_files, logger, files, tag))


def _spare(logger: Any, what: str, send: Callable[[], None]) -> None:
    """Log a warning if a logger fails, and continue."""
    try:
        send()
    except Exception as error:
        _log.warning(
            "%s was not logged by %s (%s: %s)",
            what,
            type(logger).__name__,
            type(error).__name__,
            error,
        )


def _takes(logger: Any) -> bool:
    experiment: Any = getattr(logger, "experiment", None)
    by_method = any(hasattr(experiment, name) for name in ("add_image", "add_figure", "log_figure"))
    return hasattr(logger, "log_image") or by_method or _is_mlflow(logger, experiment)


def _is_mlflow(logger: Any, experiment: Any) -> bool:
    return getattr(logger, "run_id", None) is not None and hasattr(experiment, "log_artifact")


def _send_files(logger: Any, files: Sequence[Path], tag: str) -> None:
    experiment: Any = getattr(logger, "experiment", None)
    wandb = sys.modules.get("wandb")
    if _is_mlflow(logger, experiment):
        below = _free_path(experiment, logger.run_id, tag)
        for file in files:
            experiment.log_artifact(logger.run_id, str(file), below)
    elif wandb is not None and isinstance(experiment, wandb.sdk.wandb_run.Run):
        artifact = wandb.Artifact(f"{tag.replace('/', '-')}-{experiment.id}", "privacy-audit")
        for file in files:
            artifact.add_file(str(file))
        experiment.log_artifact(artifact)
        for page in (file for file in files if file.suffix == ".html"):
            experiment.log({tag: wandb.Html(str(page), inject=False)})


def _free_path(client: Any, run_id: str, tag: str) -> str:
    """Return ``tag``, or ``tag`` with the first number from 2 that no artifact has."""
    names = (tag if number == 1 else f"{tag}-{number}" for number in itertools.count(1))
    return next(name for name in names if not client.list_artifacts(run_id, name))


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
    elif hasattr(experiment, "log_figure") and not _is_mlflow(logger, experiment):  # Comet
        experiment.log_figure(figure_name=tag, figure=figure, step=step)


def _pixels(figure: Figure) -> NDArray[np.uint8]:
    """Return the figure as RGB, ``[height, width, 3]``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(np.asarray(canvas.buffer_rgba())[..., :3])
