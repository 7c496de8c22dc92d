"""Files, calls and crossings of one audited step: how much code a new reader must follow.

A crossing is a call from one file of the package into another. Calls from outside the package, such
as hooks called by torch, do not count. `hooks/boundary.py` wraps every hook: a call through it
counts as a call by its caller. After the first hundred steps, ten steps at a time are passed to the
checks, so a step that only waits is counted separately from one that ends a block of ten.

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
#: The 158th step of the training is buffered, and the 160th ends a block of ten. Neither is one of
#: the steps after the hundredth whose noise or weights are read, and the 158th is not one of the
#: steps, one in five, whose canaries are among the rows of the data.
STEADY, BLOCK_END = 158, 160
_BOUNDARY = "hooks/boundary.py"


class CallCount:
    """Counts of calls of the package's functions, by file."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.crossings: Counter[tuple[str, str]] = Counter()

    def count(self, frame: FrameType, event: str, _: Any) -> None:
        """Count an event of `sys.setprofile`."""
        callee = _in_package(frame)
        if event != "call" or callee is None or callee == _BOUNDARY:
            return
        self.calls[callee] += 1
        caller = _caller(frame)
        if caller is not None and caller != callee:
            self.crossings[caller, callee] += 1


def _caller(frame: FrameType) -> str | None:
    """Return the file of the package that calls, directly or through the boundary."""
    back = frame.f_back
    while back is not None and _in_package(back) == _BOUNDARY:
        back = back.f_back
    return None if back is None else _in_package(back)


def _in_package(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    return name.removeprefix(PACKAGE + "/") if name.startswith(PACKAGE) else None


class StepStart(pl.Callback):
    """Counts the calls of some steps; runs before the audit's callback, and `StepEnd` after it."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        self.counts = {step: CallCount() for step in steps}

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Start counting if this step is one of those to count."""
        count = self.counts.get(trainer.global_step + 1)
        if count is not None:
            sys.setprofile(count.count)


class StepEnd(pl.Callback):
    """Ends the counting of a step."""

    def on_train_batch_end(self, *_: Any) -> None:
        """Stop counting."""
        sys.setprofile(None)


def counted(steps: tuple[int, ...] = (STEADY, BLOCK_END)) -> dict[int, CallCount]:
    """Return the calls of some steps of a small net's training.

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
    """Return the numbers of a steady step, and of one that ends a block of ten."""
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
