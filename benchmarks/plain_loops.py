"""CPU time of audited over unaudited plain loops, with the import of the package."""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

import torch
from opacus import PrivacyEngine
from support import digits, medium_conv_net, quiet
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def _tiny() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def _conv() -> nn.Module:
    return nn.Sequential(nn.Upsample(28), medium_conv_net())


#: By name: the net, the number of records, the batch size and the number of epochs.
LOOPS: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "tiny net, plain loop of 120 steps": (_tiny, 1920, 64, 4),
    "conv net, plain loop of 300 steps": (_conv, 25_600, 256, 3),
}


def _cpu() -> float:
    return sum(os.times()[:4])  # with the forks of the replays


def trained(name: str, audited: bool) -> float:
    """Return the CPU seconds of one training, from its loop's first line to its last."""
    quiet()
    torch.manual_seed(0)
    make, count, batch_size, epochs = LOOPS[name]
    images, labels = digits().tensors
    chosen = torch.arange(count) % len(labels)
    moved = images[chosen] + 0.02 * torch.randn(count, *images.shape[1:])
    net = make()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
        data_loader=DataLoader(TensorDataset(moved, labels[chosen]), batch_size),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    model.train()
    begun = _cpu()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if audited:
            from lightning_audit import attach

            audit = attach(model, optimizer, loader, report_dir=folder, on_violation="warn", seed=0)
            stack.enter_context(audit)
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    return _cpu() - begun


def run(pairs: int = 3, only: str = "") -> dict[str, object]:
    """Return, of each loop, medians of the CPU seconds without and with an audit, and their ratio.

    Args:
        pairs: how often each runs in each way, in alternating processes.
        only: part of the names of the loops to run; empty for all.
    """
    results: dict[str, object] = {}
    for name in (each for each in LOOPS if only in each):
        runs = []
        for _ in range(pairs):
            commands = ([sys.executable, "-W", "ignore", __file__, name, n] for n in "01")
            done = [subprocess.run(c, capture_output=True, text=True, check=True) for c in commands]
            runs.append([float(each.stdout.splitlines()[-1]) for each in done])
        off, on = (statistics.median(each) for each in zip(*runs, strict=True))
        results[f"{name}: unaudited, s"] = round(off, 2)
        results[f"{name}: audited, s"] = round(on, 2)
        results[f"{name}: ratio"] = round(statistics.median(b / a for a, b in runs), 2)
    return results


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(trained(sys.argv[1], sys.argv[2] == "1"))
    else:
        print(json.dumps(run(), indent=1))
