"""Faults in the audit of one of two processes: faults_in_one.py FOLDER CASE...

A case is RANK:FUNCTION:NUMBER, the call of a function of the package at which an exception is
raised in one process, or RANK:random:SEED for any call of any function.
"""

import json
import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from injected_faults import Faults, hooks_left
from training_support import random_data
from two_processes import RANK, TwoProcesses, save_weights, start, trainer_of_both

from lightning_audit import PrivacyAudit


class Once(Faults):
    """Raises at one call of the functions of a name, or at one of all calls."""

    def __init__(self, named: str, number: int) -> None:
        super().__init__(at=number if named == "random" else None)
        self.sought, self.number = named, number

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.place:
            return
        self.named = ""
        if frame.f_code.co_name == self.sought:
            self.number -= 1
            self.named = self.sought if self.number == 0 else ""
        super()._trace(frame, event, argument)


def train(folder: Path, audit: PrivacyAudit | None, faults: Faults | None) -> None:
    """Train, and write what this process has of weights, report and hooks."""
    module = TwoProcesses(dataset=random_data(256))
    trainer = trainer_of_both(folder, *([] if audit is None else [audit]), max_epochs=2)
    if faults is None:
        trainer.fit(module)
    else:
        with faults:
            trainer.fit(module)
    save_weights(folder, module)
    report = audit.report if audit is not None else None
    told = {
        "outcome": report.verdict.outcome if report else "",
        "summary": report.verdict.summary if report else "",
        "notes": list(report.notes) if report else [],
        "place": faults.place if faults is not None else "",
        "hooks": hooks_left(module),
    }
    (folder / f"told-{RANK}.json").write_text(json.dumps(told))


def main(folder: Path, cases: list[str]) -> None:
    train(folder / "plain", None, None)
    train(folder / "first", PrivacyAudit(seed=1), None)  # it fills caches, with calls of their own
    counted = Faults()
    train(folder / "whole", PrivacyAudit(seed=1), counted)
    for case in cases:
        rank, name, number = case.split(":")
        faults = None
        if int(rank) == RANK:
            at = int(number)
            faults = Once(name, counted.choose(random.Random(at)) if name == "random" else at)
        print(case, flush=True)
        train(folder / case.replace(":", "-"), PrivacyAudit(seed=1), faults)


if __name__ == "__main__":
    start()
    main(Path(sys.argv[1]), sys.argv[2:])
