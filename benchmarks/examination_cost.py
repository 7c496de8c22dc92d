"""Cost of examinations by replay: the first in step times, later ones as a share of the time."""

from __future__ import annotations

import tempfile
import time

import pytorch_lightning as pl
import torch
from overhead import BATCH_SIZES, NETS
from support import Classifier, counted_replays, quiet, trainer

from lightning_audit import AuditReport, PrivacyAudit


class _Clock(pl.Callback):
    """Measures the time from the end of the second step to the end of the training."""

    seconds = 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        if trainer.global_step == 2:
            self._start = time.perf_counter()

    def on_train_end(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start


def trained(name: str, batch_size: int, steps: int) -> tuple[AuditReport, float]:
    """Return the report of a training, and its seconds since the first examination."""
    make, data = NETS[name]
    torch.manual_seed(0)
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(report_dir=folder, on_violation="warn", seed=0)
        module = Classifier(make(), data(), batch_size=batch_size)
        trainer(steps, audit, clock).fit(module)
    assert audit.report is not None
    return audit.report, clock.seconds


def run(steps: int = 3000) -> dict[str, object]:
    """Return the cost for two nets and two batch sizes, and which questions were asked."""
    quiet()
    results: dict[str, object] = {}
    for name in NETS:
        for batch_size in BATCH_SIZES:
            with counted_replays() as replays:
                report, seconds = trained(name, batch_size, steps)
            cost = report.examination_cost
            where = f"{name}, batch {batch_size}"
            results[f"{where}, first, replays"] = replays[0]
            results[f"{where}, first, step times"] = round(cost["first_step_times"], 1)
            results[f"{where}, later, % of the time since"] = round(
                100 * cost["later"] / seconds, 2
            )
            results[f"{where}, asked"] = report.verdict.summary.partition(";")[0]
    return results
