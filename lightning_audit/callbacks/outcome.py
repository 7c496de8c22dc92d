"""What a Lightning training does when its audit has failed, and metrics that are monitored."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning_audit.callbacks.trainer import ranks_of
from lightning_audit.hooks.boundary import attempt
from lightning_audit.run.outcome import close_failed, left, tell_failed, warn_of_end


def monitored(trainer: Any, prefix: str) -> list[str]:
    """Return the metrics with a prefix that other callbacks or schedules monitor."""
    schedules = [config.monitor for config in trainer.lr_scheduler_configs]
    watched = [getattr(callback, "monitor", None) for callback in trainer.callbacks]
    return [name for name in map(str, (*watched, *schedules)) if name.startswith(f"{prefix}/")]


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
    attempt(partial(audit._take, trainer))  # the report is written at the end of this Trainer's fit
    if audit._ranks is None:  # it failed before the processes were connected
        attempt(lambda: ranks_of(trainer, audit._boundary).leave())
    left(audit)


def end_failed(audit: Any, trainer: Any, *_: Any) -> None:
    """Replace the training's end after a failure: write what was found before it."""
    writes = trainer.is_global_zero and not trainer.fast_dev_run
    close_failed(audit, audit._directory(trainer) if writes else None)


def fit_end_failed(audit: Any, trainer: Any, *_: Any) -> None:
    """Replace the fit's end after a failure: show the report, and raise if configured."""
    end_failed(audit, trainer)
    ends = not trainer.fast_dev_run
    if (error := tell_failed(audit, ends=ends, verbose=audit.verbose)) is not None:
        raise error


def release_failed(audit: Any, trainer: Any, *given: Any, **_: Any) -> None:
    """Replace the teardown after a failure: keep only the report."""
    end_failed(audit, trainer)
    run, audit._run, audit._kept = audit._run, None, {}
    attempt(audit._stopping.put_back)
    if run is not None and run.files is not None:
        attempt(run.files.release)
    if any(isinstance(each, BaseException) for each in given):
        warn_of_end(run, known=audit._stopping.told)
    audit._boundary.begin()
