"""Audits over many trainings: CPU time and memory of real Opacus trainings, one worker and two."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from support import digits, quiet
from torch import nn

from lightning_audit.many.driver import Driver
from lightning_audit.many.engines import LocalProcesses
from lightning_audit.many.records import Blank
from lightning_audit.many.store import Outcome, Plan, TrainingStore, block_size
from lightning_audit.many.worlds import Work, opacus_training, worlds_of

TRAININGS, STEPS, BATCH_SIZE, RECORDS = 60, 100, 64, 1797
#: Trainings that the docs state the time of, and the seconds of CPU that they may take.
STATED, MOST_SECONDS = 1000, 300
_MIB = 2**20 if sys.platform == "darwin" else 2**10


class Measured:
    """A training that returns its score, and writes its worker's memory and CPU time to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.train = opacus_training(
            softmax_regression,
            sgd,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            sample_rate=BATCH_SIZE / RECORDS,
            expected_batch_size=BATCH_SIZE,
            steps=STEPS,
        )

    def __call__(self, dataset: Any, seed: int) -> nn.Module:
        """Train, and append what the worker used so far."""
        before = time.process_time()
        model: nn.Module = self.train(dataset, seed)
        spent = time.process_time() - before
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MIB
        with open(self.folder / f"{os.getpid()}.txt", "a") as file:
            file.write(f"{spent} {memory}\n")
        return model


def softmax_regression() -> nn.Module:
    return nn.Linear(64, 10)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def driven(workers: int, trainings: int) -> tuple[float, list[Outcome], list[list[list[float]]]]:
    """Return seconds from the first result to the last, the rows, and the workers' own figures."""
    images, labels = digits().tensors
    worlds = worlds_of((images.flatten(1), labels), Blank(label=1), "add_remove")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        block = block_size(trainings)
        store = TrainingStore(folder / "store", Plan(0, trainings, block), {"train": "benchmark"})
        times: list[float] = []
        add = store.add
        store.add = lambda rows: (add(rows), times.append(time.perf_counter()))[0]  # type: ignore
        work = Work(Measured(folder), worlds)
        settings = LocalProcesses(workers)
        Driver(work, settings, store, line=lambda text: None).run()
        figures = [
            [[float(value) for value in line.split()] for line in path.read_text().splitlines()]
            for path in folder.glob("*.txt")
        ]
        rows = store.rows()
        store.close()
    return times[-1] - times[0], rows, figures


def run(trainings: int = TRAININGS) -> dict[str, object]:
    """Return CPU seconds a training, the growth of memory, and the gain by a second worker."""
    quiet()
    load = os.getloadavg()[0]
    one, rows, figures = driven(1, trainings)
    [worker] = figures
    spent = [cpu for cpu, _ in worker]
    usual = statistics.mean(spent[1:])
    start = time.process_time()
    two, *_ = driven(2, trainings)
    driver = time.process_time() - start
    failed = sum(row.scores is None for row in rows)
    half = len(worker) // 2
    return {
        "trainings": trainings,
        "failed": failed,
        "CPU s a training (Opacus, 100 steps of batch 64)": round(usual, 3),
        f"CPU s of {STATED:,} trainings, at most {MOST_SECONDS}": round(STATED * usual),
        "driver, CPU s": round(driver, 2),
        "worker, MiB after the first training": round(worker[0][1]),
        "worker, MiB more in the second half of the trainings": round(
            worker[-1][1] - worker[half][1], 1
        ),
        "two workers against one": round(one / two, 2),
        "load before": round(load, 1),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "note": note(one / two, load),
    }


def note(gain: float, load: float) -> str:
    """Return why the gain is what it is, where it is below 1.5."""
    if gain >= 1.5:
        return ""
    if load >= 1.0:
        return f"other programs use the cores: the load was {load:.1f} before the start"
    return "the last block and the second worker's start take a large part of so few trainings"
