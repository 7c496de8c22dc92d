"""Files, calls and crossings of audited steps: how much code a new reader must follow.

A crossing is a call from one file of the package into another. Calls from outside the package, such
as hooks called by torch, do not count. `hooks/boundary.py` wraps every hook, and `torch.no_grad`
some functions: a call through them counts as a call by its caller. All steps 1 to 200 count,
without examinations: in the first hundred every step goes to the checks, later ten at a time.

python benchmarks/step_crossings.py
"""

from __future__ import annotations

import statistics
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
STEPS = 200
_BOUNDARY = "hooks/boundary.py"
_NO_GRAD = "torch/utils/_contextlib.py"


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
    """Return the file of the package that calls, directly or through what wraps the call."""
    back = frame.f_back
    while back is not None and _wraps(back):
        back = back.f_back
    return None if back is None else _in_package(back)


def _wraps(frame: FrameType) -> bool:
    return _in_package(frame) == _BOUNDARY or frame.f_code.co_filename.endswith(_NO_GRAD)


def _in_package(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    return name.removeprefix(PACKAGE + "/") if name.startswith(PACKAGE) else None


class StepStart(pl.Callback):
    """Counts the calls of every step; runs before the audit's callback, and `StepEnd` after it."""

    def __init__(self) -> None:
        self.counts: list[CallCount] = []

    def on_train_batch_start(self, *_: Any) -> None:
        """Start counting."""
        self.counts.append(CallCount())
        sys.setprofile(self.counts[-1].count)


class StepEnd(pl.Callback):
    """Ends the counting of a step."""

    def on_train_batch_end(self, *_: Any) -> None:
        """Stop counting."""
        sys.setprofile(None)


def counted(steps: int = STEPS) -> list[CallCount]:
    """Return the calls of the first steps of a small net's training.

    Args:
        steps: their number.
    """
    start = StepStart()
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(report_dir=folder, on_violation="warn", seed=0, examinations=0)
        trainer(steps, start, audit, StepEnd()).fit(Classifier(mlp(), digits()))
    return start.counts


def run() -> dict[str, object]:
    """Return means over the steps, and the median of the crossings."""
    quiet()
    counts = counted()
    crossings = [count.crossings.total() for count in counts]
    return {
        "files, mean": statistics.mean(len(count.calls) for count in counts),
        "files, median": statistics.median(len(count.calls) for count in counts),
        "calls, mean": statistics.mean(count.calls.total() for count in counts),
        "crossings, mean": statistics.mean(crossings),
        "crossings, median": statistics.median(crossings),
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name}: {value:.1f}")
