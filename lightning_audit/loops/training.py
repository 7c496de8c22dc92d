"""A plain training as its user states it to `attach`, and as far as it has come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from lightning_audit.lints.own_code import of_frame
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import PLAIN_LOOP, CodePlace
from lightning_audit.run.facts import FrontEnd, TrainingInfo, device_name

_BY_DTYPE = {torch.bfloat16: "bf16-true", torch.float64: "64-true", torch.float16: "16-true"}

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
        self.optimizers = listed(given["optimizer"])
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


def named(name: str, frame: Any) -> dict[str, CodePlace]:
    """Return the place of the user's code in a frame by its name; empty if there is none."""
    return dict(zip((name,), of_frame(frame), strict=False))


def params_of(optimizers: Iterable[Any]) -> set[int]:
    """Return the identities of the parameters that optimizers train."""
    return {id(p) for one in optimizers for g in one.param_groups for p in g["params"]}
