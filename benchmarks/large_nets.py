"""Time and memory of four trainings of the size that is trained on a GPU.

python benchmarks/large_nets.py [--accelerator cuda] [--small] [--only NAME]

Each trains three times in one process: without the audit, with it and no examinations, and with
the defaults. The records are random numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from opacus import PrivacyEngine
from support import now, quiet
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit import attach


class Block(nn.Module):
    """A residual block with GroupNorm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)])
        same = stride == 1 and inputs == outputs
        self.beside = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, ``[n, c, h, w]``."""
        hidden = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(hidden)) + self.beside(x))


def resnet(width: int) -> nn.Module:
    """Return ResNet-18 with GroupNorm for 32 x 32 pixels: 11.2 million parameters at width 64."""
    blocks: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    for stage in range(4):
        wide = width * 2**stage
        before = wide if stage == 0 else wide // 2
        blocks += [Block(before, wide, 1 + (stage > 0)), Block(wide, wide, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


def conv_net(width: int) -> nn.Module:
    """Return a small conv net for 32 x 32 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * width, 10)),
    )


class Layer(nn.Module):
    """A layer of GPT-2; ``rank`` adapts its attention and freezes the rest."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.requires_grad_(not rank)
        self.down = nn.Linear(width, rank, bias=False) if rank else None
        self.up = nn.Linear(rank, 3 * width, bias=False) if rank else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, ``[n, t, width]``."""
        normal = self.norms[0](x)
        mixed = self.qkv(normal)
        if self.down is not None and self.up is not None:
            mixed = mixed + self.up(self.down(normal))
        heads = x.shape[-1] // 64
        q, k, v = (m.unflatten(-1, (heads, 64)).transpose(1, 2) for m in mixed.chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.norms[1](x))))


class Gpt(nn.Module):
    """GPT-2 as a classifier: 124 million parameters at width 768, of 12 layers."""

    def __init__(self, width: int, layers: int, rank: int = 0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50257, width), nn.Embedding(1024, width)
        if rank:
            self.requires_grad_(False)
        self.layers = nn.Sequential(*(Layer(width, rank) for _ in range(layers)))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of token sequences, ``[n, t]`` to ``[n, 2]``."""
        places = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
        return self.head(self.layers(self.tokens(tokens) + self.places(places))[:, -1])


@dataclass(frozen=True)
class Training:
    """What is trained: net, steps, batch size, and a small version of them."""

    net: Callable[[bool], nn.Module]
    steps: int
    batch: int
    tokens: int = 0
    mode: str = "hooks"

    def data(self, small: bool) -> TensorDataset:
        """Return records of random numbers."""
        count = 10 * (8 if small else self.batch)
        inputs = torch.randn(count, 3, 32, 32)
        if self.tokens:
            inputs = torch.randint(0, 50257, (count, 16 if small else self.tokens))
        return TensorDataset(inputs, torch.arange(count) % 2)


TRAININGS = {
    "conv": Training(lambda small: conv_net(8 if small else 32), 300, 256),
    "ResNet-18": Training(lambda small: resnet(8 if small else 64), 40, 256),
    "GPT-2, ghost": Training(
        lambda small: Gpt(*((64, 1) if small else (768, 12))), 30, 8, 128, "ghost"
    ),
    "GPT-2, LoRA": Training(
        lambda small: Gpt(*((64, 1, 2) if small else (768, 12, 8))), 20, 16, 128
    ),
}


def trained(one: Training, device: str, small: bool, audit: dict[str, Any] | None) -> Any:
    """Return the seconds of each step and of the run, the first examination's, and peak MiB."""
    torch.manual_seed(0)
    gc.collect()
    cuda = device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    net, loss_of = one.net(small).to(device), nn.CrossEntropyLoss()
    loader = DataLoader(one.data(small), 8 if small else one.batch)
    net, optimizer, *criterion, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-4),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=one.mode,
        **({"criterion": loss_of} if one.mode == "ghost" else {}),
    )
    loss_of = criterion[0] if criterion else loss_of
    given, steps = {"delta": 1e-5, "on_violation": "warn"}, list[float]()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        began = now()
        if audit is not None:
            attached = attach(net, optimizer, loader, report_dir=folder, **given, **audit)
        while len(steps) < (4 if small else one.steps):
            for inputs, labels in loader:
                start = now()
                optimizer.zero_grad()
                loss_of(net(inputs.to(device)), labels.to(device)).backward()
                optimizer.step()
                if cuda:
                    torch.cuda.synchronize()
                steps.append(now() - start)
                if len(steps) >= (4 if small else one.steps):
                    break
        whole = now() - began
        peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else float("nan")
        examined: tuple[Any, ...] = ()
        if audit is not None:
            attached.close()
            examined = attached.report.examinations
    seconds = [round(each.seconds, 2) for each in examined]
    return statistics.median(steps[len(steps) // 4 :]), whole, seconds, peak


def run(accelerator: str = "cpu", small: bool = False, only: str = "") -> dict[str, Any]:
    """Return, for each training, the times over those of the unaudited one, and peak memory."""
    quiet()
    found: dict[str, Any] = {}
    for name, one in TRAININGS.items():
        if only and only != name:
            continue
        off, none, whole = (
            trained(one, accelerator, small, audit) for audit in (None, {"examinations": 0}, {})
        )
        found[name] = {
            "step off, ms": round(1e3 * off[0], 1),
            "step on, no examinations": round(none[0] / off[0], 2),
            "whole run, default": round(whole[1] / off[1], 2),
            "examinations, s": whole[2],
            "peak, MiB": [off[3], whole[3]],
        }
        print(name, json.dumps(found[name]), flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--accelerator", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    run(given.accelerator, given.small, given.only)
