"""Time of an audited step over an unaudited one, the two trainings taking turns."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time

import pytorch_lightning as pl
import torch
from support import Classifier, conv_net, digits, mlp, quiet, trainer

from lightning_audit import PrivacyAudit


class _Clock(pl.Callback):
    """Seconds of each step, from the start of one batch to the start of the next."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_batch_start(self, *_) -> None:
        self.starts.append(time.perf_counter())


def seconds(net: torch.nn.Module, batch_size: int, audited: bool, steps: int) -> list[float]:
    """Seconds of each step of one short training."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        audit = [PrivacyAudit(report_dir=folder, on_violation="warn", seed=0)] if audited else []
        trainer(steps, clock, *audit).fit(Classifier(net, digits(), batch_size=batch_size))
    return [b - a for a, b in itertools.pairwise(clock.starts)][3:]


def run(rounds: int = 6, steps: int = 40) -> dict[str, object]:
    """Ratio of median step times, for two nets and two batch sizes."""
    quiet()
    results: dict[str, object] = {}
    for name, make in (("mlp of 85k", lambda: mlp(hidden=256)), ("conv net of 6k", conv_net)):
        for batch_size in (64, 256):
            times: dict[bool, list[float]] = {False: [], True: []}
            for number in range(2 * rounds):
                pl.seed_everything(number // 2, verbose=False)
                times[bool(number % 2)] += seconds(make(), batch_size, bool(number % 2), steps)
            ratio = statistics.median(times[True]) / statistics.median(times[False])
            results[f"{name}, batch {batch_size}"] = round(ratio, 2)
    return results
