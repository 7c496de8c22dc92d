"""Files, calls and crossings of one audited step: how much code a stranger reads to follow it.

A crossing is a call from one file of the package into another. A call from elsewhere, as a hook's
from torch, is none, and none either where it enters through `taps/boundary.py`, which wraps every
hook: a call through it counts as one of its caller's. After the first hundred steps ten at a time
go to the checks, so that a step that only waits is counted beside one that ends a block of ten.

python benchmarks/step_crossings.py
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from support import Classifier, digits, mlp, quiet, trainer

import lightning_audit
from lightning_audit import PrivacyAudit

PACKAGE = str(Path(lightning_audit.__file__).parent)
#: The 158th step of the training waits to be taken in, and the 160th ends a block of ten. Neither
#: is one of the steps after the hundredth whose noise or weights are read, nor is the first one of
#: those, one in five, whose canaries stand among the rows of the data.
STEADY, BLOCK_END = 158, 160
_BOUNDARY = "taps/boundary.py"


class CallCount:
    """Counts the calls of functions of the package, by the files that they are in."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.crossings: Counter[tuple[str, str]] = Counter()

    def count(self, frame: FrameType, event: str, _: Any) -> None:
        """Take in an event of `sys.setprofile`."""
        callee = _in_package(frame)
        if event != "call" or callee is None or callee == _BOUNDARY:
            return
        self.calls[callee] += 1
        caller = _caller(frame)
        if caller is not None and caller != callee:
            self.crossings[caller, callee] += 1


def _caller(frame: FrameType) -> str | None:
    """The file of the package that calls, through the boundary or not."""
    back = frame.f_back
    while back is not None and _in_package(back) == _BOUNDARY:
        back = back.f_back
    return None if back is None else _in_package(back)


def _in_package(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    return name.removeprefix(PACKAGE + "/") if name.startswith(PACKAGE) else None


class StepStart(pl.Callback):
    """Counts the calls of some steps; it stands before the audit, and `StepEnd` behind it."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        self.counts = {step: CallCount() for step in steps}

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Begin to count, if this step is to be counted."""
        count = self.counts.get(trainer.global_step + 1)
        if count is not None:
            sys.setprofile(count.count)


class StepEnd(pl.Callback):
    """Ends the counting of a step."""

    def on_train_batch_end(self, *_: Any) -> None:
        """Count no more."""
        sys.setprofile(None)


def counted(steps: tuple[int, ...] = (STEADY, BLOCK_END)) -> dict[int, CallCount]:
    """The calls of some steps of a small net's training.

    Args:
        steps: their numbers, from 1.
    """
    start = StepStart(steps)
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(report_dir=folder, on_violation="warn", seed=0)
        callbacks = (start, audit, StepEnd())
        trainer(max(steps), *callbacks).fit(Classifier(mlp(), digits()))
    return start.counts


def run() -> dict[str, object]:
    """The numbers of a steady step, and of one that ends a block of ten."""
    quiet()
    results: dict[str, object] = {}
    for step, count in counted().items():
        results |= {
            f"step {step}: files": len(count.calls),
            f"step {step}: calls": count.calls.total(),
            f"step {step}: crossings": count.crossings.total(),
        }
    return results


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name}: {value}")
