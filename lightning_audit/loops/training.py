"""A plain training as its user states it to `attach`, and as far as it has come."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lightning_audit import _validate
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.hooks.boundary import attempt, where
from lightning_audit.lints.own_code import of_frame
from lightning_audit.loops.events import listeners
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.results.audit_report import AuditReport, UnauditableTraining
from lightning_audit.results.report_details import PLAIN_LOOP, CodePlace
from lightning_audit.run.facts import FrontEnd, TrainingInfo, device_name
from lightning_audit.run.outcome import error_of
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.verdict.judge import failed_report

_log = logging.getLogger(__name__)

_BY_DTYPE = {torch.bfloat16: "bf16-true", torch.float64: "64-true", torch.float16: "16-true"}

_PRECISIONS = ("32-true", "64-true", "bf16-true", "bf16-mixed")
#: Precisions that are refused with what to do.
_FP16_NAMES = ("16-true", "16-mixed")
_ORDER = ": attach(model, optimizer, loader)"
#: Why a precision is refused.
FP16 = (
    "attach cannot audit fp16: a gradient scaler multiplies per-sample gradients before they are "
    "clipped; train in float32 or with torch.autocast(dtype=torch.bfloat16)."
)
#: Why an input canary is refused.
AHEAD = (
    "an input canary joins each batch when it is fetched, and this loop fetches the next batch "
    "before it trains on the last one; fetch one at a time, or use gradient canaries."
)


class Loop(FrontEnd):
    """A plain training as a `FrontEnd`.

    Args:
        given: the arguments of `attach`, by name.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.model, self.loader, self._epochs = given["model"], given["loader"], given["epochs"]
        self.root = self.model if given["root"] is None else given["root"]
        self.raises = given["on_violation"] == "raise"
        self.optimizers = optimizers_of(given["optimizer"])
        self.read = given["precision"] is None
        self.param = next(iter(self.root.parameters()), torch.zeros(0))
        self.precision = given["precision"] or _BY_DTYPE.get(self.param.dtype, "32-true")
        #: Number of passes that have ended, of steps that were taken, and whether it has ended.
        self.epoch = self.steps = 0
        self.over = False
        #: Called before a step that is refused.
        self.refuses: Callable[[], None] = lambda: None
        #: See `TrainingInfo.loop`.
        self.places: dict[str, CodePlace] = {}

    @property
    def planned(self) -> int | None:
        """Steps of the whole training; None if unknown."""
        try:
            return None if self._epochs is None else self._epochs * len(self.loader)
        except TypeError:  # no loader, or one without a length
            return None

    def steps_left(self) -> int | None:
        """Return how many steps each optimizer is planned to take from now on."""
        left = (self.planned or 0) - self.steps
        return left if left > 0 else None

    def epochs_left(self) -> int | None:
        """Return how many passes will begin from now on."""
        return None if self._epochs is None else max(self._epochs - self.epoch, 0)

    def is_over(self) -> bool:
        """Return whether the batch that has ended is the last one."""
        return self.over

    def stop(self) -> None:
        """Note that the training should stop."""
        self.stopped = True

    def refuse(self, report: AuditReport | None) -> None:
        """Raise before the step that is about to be taken, if configured."""
        self.refuses()

    def info(self, processes: int) -> TrainingInfo:
        """Return what the audit reads of the training."""
        return TrainingInfo(
            module=self.root,
            loaders=[] if self.loader is None else self.loader,
            precision=self.precision,
            device=device_name(self.param.device),
            strategy=PLAIN_LOOP,
            processes=processes,
            epoch_batches=math.inf,
            planned_steps=self.planned,
            loop=self.places,
        )


def listed(given: Any) -> list[Any]:
    """Return a list or tuple as a list, and one object as the only item."""
    return list(given) if isinstance(given, list | tuple) else [given]


def optimizers_of(given: Any) -> list[Any]:
    """Return an optimizer or several as a list, without what Accelerate puts around them."""
    of_accelerate = "accelerate.optimizer"
    return [o.optimizer if type(o).__module__ == of_accelerate else o for o in listed(given)]


def named(name: str, frame: Any) -> dict[str, CodePlace]:
    """Return the place of the user's code in a frame by its name; empty if there is none."""
    return dict(zip((name,), of_frame(frame), strict=False))


def params_of(optimizers: Iterable[Any]) -> set[int]:
    """Return the identities of the parameters that optimizers train."""
    return {id(p) for one in optimizers for g in one.param_groups for p in g["params"]}


def refuse_second(optimizers: Sequence[Any]) -> None:
    """Raise if another open audit trains the same parameters."""
    for other in (one._loop for one in listeners()):
        if params_of(other.optimizers) & params_of(optimizers):
            place = other.places.get("attach")
            raise UnauditableTraining(
                f"these parameters are audited already, by the audit of {place or 'this process'}: "
                "each would report the other's canaries as a fault. Close it first, "
                "audit.close(), or use `with attach(...)`."
            )


def check_arguments(given: dict[str, Any]) -> None:
    """Raise if an argument that only `attach` has is of another kind."""
    if given["epochs"] is not None:
        advice = "these are whole passes over the loader; leave it out if their number is unknown"
        given["epochs"] = _validate.positive_int("epochs", given["epochs"], advice)
    if given["report_dir"] is None:
        raise ValueError("report_dir=None must be the path of a directory, such as 'audit'.")
    if given["precision"] is not None and given["precision"] not in _FP16_NAMES:
        advice = "leave it out to read it from the training"
        _validate.one_of("precision", given["precision"], _PRECISIONS, advice)
    trains = all(hasattr(one, "param_groups") for one in listed(given["optimizer"]))
    iterates = given["loader"] is None or hasattr(given["loader"], "__iter__")
    loggers = [] if given["log"] is None else listed(given["log"])
    logs = all(callable(one) or hasattr(one, "log_metrics") for one in loggers)
    for name, fits, allowed in (
        ("model", isinstance(given["model"], torch.nn.Module), "a torch.nn.Module" + _ORDER),
        ("optimizer", trains, "an optimizer, or a list" + _ORDER),
        ("loader", iterates, "what the training iterates, the loader of make_private" + _ORDER),
        ("log", logs, "a function of metrics, such as wandb.log, or a logger, or a list of these"),
        ("root", isinstance(given["root"], torch.nn.Module | None), "a torch.nn.Module"),
        ("step", given["step"] is None or callable(given["step"]), "a function of a batch"),
        ("state", isinstance(given["state"], Mapping | None), "that of Audit.state_dict()"),
    ):
        _validate.fitting(name, given[name], allowed, fits=fits)
    private = [o for o in optimizers_of(given["optimizer"]) if private_optimizer(o) is not None]
    root = given["model"] if given["root"] is None else given["root"]
    fits = not private or not params_of(private).isdisjoint(map(id, root.parameters()))
    _validate.fitting("model", given["model"], "what the optimizer trains" + _ORDER, fits=fits)


def config_anyhow(front: Callable[..., Any], given: Mapping[str, Any]) -> AuditConfig:
    """Return the configuration of an audit that failed, by defaults if reading it is what failed.

    Args:
        front: the function that takes the arguments.
        given: the arguments by name.
    """
    try:
        return AuditConfig.of_arguments(front, given)
    except Exception:
        usual = {name: one.default for name, one in inspect.signature(front).parameters.items()}
        kept = {"on_inconclusive": given["on_inconclusive"]}
        return AuditConfig.of_arguments(front, {**usual, **kept})


class Unattached:
    """What `attach` returns where an audit failed before it began: the loop runs as without it.

    Args:
        config: of the audit.
        directory: of its report.
        error: with which it failed.
    """

    def __init__(self, config: AuditConfig, directory: Path, error: Exception) -> None:
        self._failure, line = where(error)
        _log.error("privacy audit: attach failed (%s:%d); nothing is audited", self._failure, line)
        #: INCONCLUSIVE; the rest is as `Audit` has it.
        self.report = failed_report(None, config, config.settings(), self._failure)
        self.metrics, self.should_stop, self._replays = dict[str, float](), False, False
        self._config, files = config, ReportFiles(directory)
        attempt(partial(files.write, REPORT_NAME, self.report.save, beside=True))
        attempt(files.release)

    def close(self, error: BaseException | None = None) -> AuditReport:
        """Return the report; see `Audit.close`."""
        if error is None and (ends := error_of(self.report, self._config)):
            raise ends
        return self.report

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def step(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Run a step."""
        return function(batch)

    def batches(self, iterable: Iterable[Any]) -> Iterable[Any]:
        """Return the batches."""
        return iterable

    def follow(self, *_: Any, **__: Any) -> None:
        """Do nothing, as the others."""

    end_epoch = _add_lost = _note = _asks = _ends_pass = _couples = follow

    def __enter__(self) -> Unattached:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close(error)
