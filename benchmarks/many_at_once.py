"""Audits over many trainings: CPU time of small models that are trained many at once."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from support import digits, quiet
from torch import nn

from lightning_audit import audit_training
from lightning_audit.many.driver import Driver
from lightning_audit.many.engines import ThisProcess
from lightning_audit.many.records import Blank
from lightning_audit.many.store import Plan, TrainingStore, block_size
from lightning_audit.many.vectorised import DPSGDMany
from lightning_audit.many.worlds import Work, worlds_of

STEPS, BATCH_SIZE = 100, 64
#: Seconds that 1,000 trainings may take, and milliseconds that a training of the MLP may take.
MOST_SECONDS, MOST_MILLISECONDS = 100, 40
#: CPU milliseconds that driver, store and looks may take for a training.
MOST_OVERHEAD = 0.6


def softmax_regression() -> nn.Module:
    return nn.Linear(64, 10)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def per_sample_mlp() -> nn.Module:
    """Return the same MLP, with an activation that has no ghost norms here."""
    return nn.Sequential(nn.Linear(64, 64), nn.Hardsigmoid(), nn.Linear(64, 10))


def flat_digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = digits().tensors
    return images.flatten(1), labels


def training(model: Callable[[], nn.Module], records: int) -> DPSGDMany:
    return DPSGDMany(
        model,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        sample_rate=BATCH_SIZE / records,
        expected_batch_size=BATCH_SIZE,
        steps=STEPS,
        learning_rate=0.5,
    )


def stored(trainings: int) -> tuple[float, int]:
    """Return the CPU seconds of a driver with all of its trainings, and how many failed."""
    data = flat_digits()
    worlds = worlds_of(data, Blank(label=1), "add_remove")
    work = Work(training(softmax_regression, len(data[1])), worlds)
    block = block_size(trainings)
    with tempfile.TemporaryDirectory() as folder:
        store = TrainingStore(folder, Plan(0, trainings, block), {"train": "benchmark"})
        start = time.process_time()
        Driver(work, ThisProcess(), store, line=lambda text: None).run()
        spent = time.process_time() - start
        failed = sum(row.scores is None for row in store.rows())
        store.close()
    return spent, failed


class AtOnce:
    """Trainings that return a number at once."""

    def many(self, data_sets: list[Any], seeds: list[int]) -> list[float]:
        """Return a number for each training."""
        return [seed % 1000 / 1000 for seed in seeds]


def overhead(trainings: int) -> tuple[float, float]:
    """Return the CPU ms a training of driver and store, and of a whole audit with its looks."""
    data = flat_digits()
    worlds, block = worlds_of(data, Blank(label=1), "add_remove"), block_size(trainings)
    spent = []
    with tempfile.TemporaryDirectory() as folder:
        store = TrainingStore(f"{folder}/driver", Plan(0, trainings, block), {"train": "benchmark"})
        start = time.process_time()
        Driver(Work(AtOnce(), worlds), ThisProcess(), store, line=lambda text: None).run()
        spent.append(time.process_time() - start)
        store.close()
        start = time.process_time()
        audit_training(
            AtOnce(),
            data,
            (4.0, 1e-5),
            canary=Blank(label=1),
            trainings=trainings,
            engine=ThisProcess(),
            store=f"{folder}/audit",
            display=False,
        )
        spent.append(time.process_time() - start)
    return 1e3 * spent[0] / trainings, 1e3 * spent[1] / trainings


def milliseconds(model: Callable[[], nn.Module], trainings: int) -> float:
    """Return the CPU time of a training."""
    data = flat_digits()
    train = training(model, len(data[1]))
    train(data, 0)
    start = time.process_time()
    train.many([data] * trainings, list(range(trainings)))
    return 1e3 * (time.process_time() - start) / trainings


def run(trainings: int = 1000, mlps: int = 40, planned: int = 10_000) -> dict[str, Any]:
    """Return CPU times of trainings of 100 steps with Poisson batches of 64 on 1,797 digits."""
    quiet()
    load = os.getloadavg()[0]
    seconds, failed = stored(trainings)
    driver, audit = overhead(planned)
    ghost, per_sample = milliseconds(mlp, mlps), milliseconds(per_sample_mlp, mlps)
    return {
        "trainings": trainings,
        "failed": failed,
        f"softmax regression: CPU s of {trainings:,} trainings, stored": round(seconds, 1),
        f"CPU s of 1,000 trainings, at most {MOST_SECONDS}": round(1000 * seconds / trainings),
        f"driver and store, CPU ms for each of {planned:,} trainings, at most .3": round(driver, 3),
        f"the same with looks and report, at most {MOST_OVERHEAD}": round(audit, 3),
        f"MLP 64-64-10, ghost norms: ms a training, at most {MOST_MILLISECONDS}": round(ghost, 1),
        "MLP 64-64-10, per-sample gradients: ms a training": round(per_sample, 1),
        "per-sample gradients against ghost norms": round(per_sample / ghost, 1),
        "load before": round(load, 1),
    }
