"""CPU time of audited over unaudited trainings, in a plain loop and in Lightning's Trainer."""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile

import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from support import Classifier, digits, medium_conv_net, quiet
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lightning_audit import PrivacyAudit, attach

BATCH_SIZE = 64


def _cpu() -> float:
    return sum(os.times()[:4])  # with the forks of the replays


def _by_lightning(epochs: int, folder: str, audited: bool, more: dict[str, int]) -> float:
    module = Classifier(_net(), digits(), batch_size=BATCH_SIZE, learning_rate=0.05)
    audit = PrivacyAudit(report_dir=folder, on_violation="warn", seed=0, **more)
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[audit] * audited,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    begun = _cpu()
    trainer.fit(module)
    return _cpu() - begun


def _by_loop(epochs: int, folder: str, audited: bool, more: dict[str, int]) -> float:
    net = _net()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
        data_loader=DataLoader(digits(), BATCH_SIZE),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    begun = _cpu()
    context = (
        attach(model, optimizer, loader, report_dir=folder, on_violation="warn", seed=0, **more)
        if audited
        else contextlib.nullcontext()
    )
    with context:
        _train(model, optimizer, loader, epochs)
    return _cpu() - begun


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, n: int) -> None:
    model.train()
    for _ in range(n):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def _net() -> nn.Module:
    return nn.Sequential(nn.Upsample(28), medium_conv_net())


WAYS = {"lightning": _by_lightning, "loop": _by_loop}


def trained(way: str, audited: bool, epochs: int, examinations: str) -> float:
    """Return the CPU seconds of one training.

    Args:
        way: of `WAYS`.
        audited: whether it is audited.
        epochs: of 29 steps.
        examinations: "auto" or "0".
    """
    quiet()
    torch.manual_seed(0)
    more = {"examinations": 0} if examinations == "0" else {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return WAYS[way](epochs, folder, audited, more)


def _in_a_process(*arguments: object) -> float:
    command = [sys.executable, "-W", "ignore", __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def run(pairs: int = 5, epochs: int = 10) -> dict[str, object]:
    """Return median CPU ratios of both front ends, and their difference.

    Args:
        pairs: how often each training runs in each way, in alternating processes.
        epochs: of 29 steps.
    """
    results: dict[str, object] = {}
    for examinations in ("auto", "0"):
        ratios: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(pairs):
            for way, found in ratios.items():
                off, on = (_in_a_process(way, n, epochs, examinations) for n in (0, 1))
                found.append(on / off)
        medians = {way: statistics.median(found) for way, found in ratios.items()}
        name = f"examinations={examinations}"
        results |= {f"{name}: {way}": round(ratio, 2) for way, ratio in medians.items()}
        results[f"{name}: loop - lightning"] = round(medians["loop"] - medians["lightning"], 2)
        results[f"{name}: all ratios"] = {w: [round(r, 2) for r in f] for w, f in ratios.items()}
    return results


if __name__ == "__main__":
    if len(sys.argv) == 5:
        print(trained(sys.argv[1], sys.argv[2] == "1", int(sys.argv[3]), sys.argv[4]))
    else:
        print(json.dumps(run(*map(int, sys.argv[1:])), indent=1))
