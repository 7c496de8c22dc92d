"""Correct and faulty first steps that are examined on 16 of their records, and on all of them."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from support import quiet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_audit
from lightning_audit.checks.replay import REPLAY_CHECKS
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.replay import examiner
from lightning_audit.testing import faulty

RECORDS, BATCH = 1024, 64
FAULTS: dict[str, type[DPOptimizer]] = {
    kind.__name__: kind
    for kind in (
        faulty.NoClipping,
        faulty.ClipAtTwice,
        faulty.ClipPerTensor,
        faulty.NormMissesBiases,
        faulty.ClipAfterAverage,
        faulty.ClipsNotAlways,
        faulty.HalfNoise,
        faulty.NoNoiseOnBiases,
        faulty.LessNoiseOnLargest,
        faulty.NoiseByBatch,
    )
}


def found(kind: type[DPOptimizer] | None, seed: int) -> list[str]:
    """Return the checks by replay that the first step of a training violates.

    Args:
        kind: of the optimizer; None for Opacus' own.
        seed: of data, training and audit.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    data = TensorDataset(torch.randn(RECORDS, 16), torch.randint(0, 4, (RECORDS,)))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(data, BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    if kind is not None:
        optimizer.__class__ = kind

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    given = {"seed": seed, "step": step, "on_violation": "warn", "source_in_report": False}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        lightning_audit.attach(model, optimizer, loader, 50.0, report_dir=folder, **given) as audit,
    ):
        for batch in loader:
            step(batch)
            break
    assert audit.report is not None
    names = {*REPLAY_CHECKS, REPLAY_NOISE.name}
    return [c.name for c in audit.report.checks if c.status == "violated" and c.name in names]


def run(correct: int = 1000, seeds: int = 20, faults: int = len(FAULTS)) -> dict[str, object]:
    """Return how many correct steps were accused, and the share of faulty ones that was found."""
    quiet()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    whole, results = examiner._FROM, dict[str, object]()
    for records in ("16", "all"):
        examiner._FROM = whole if records == "16" else RECORDS  # a part of no batch
        accused = sum(bool(found(None, seed)) for seed in range(correct // 2))
        results[f"correct, {records} records"] = f"{accused} of {correct // 2} accused"
        for name, kind in list(FAULTS.items())[:faults]:
            share = sum(bool(found(kind, seed)) for seed in range(seeds)) / seeds
            results[f"{name}, {records} records"] = f"{share:.2f} found"
    examiner._FROM = whole
    return results


if __name__ == "__main__":
    for key, value in run().items():
        print(key, value)
