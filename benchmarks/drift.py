"""How far the audit moves the trained model: relative distance after 200 steps, same seeds.

Subtracting a canary from a gradient leaves a rounding error on its coordinates. In a smooth net the
error keeps its size. In a net with ReLU and max-pooling, an error of the last bit sometimes flips
a comparison. So the distance is compared with that of a training whose first weight starts one unit
in the last place higher.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping

import pytorch_lightning as pl
import torch
from support import Classifier, conv_net, digits, mlp, quiet, trainer
from torch import nn

from lightning_audit import PrivacyAudit

OPTIMIZERS = {"SGD": (torch.optim.SGD, 0.05), "Adam": (torch.optim.Adam, 0.005)}


class _Nudge(pl.Callback):
    """Changes one weight by its last bit."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        first = next(pl_module.parameters()).data.view(-1)
        first[0] = torch.nextafter(first[0], torch.tensor(torch.inf))


NETS = {"smooth net": lambda: mlp(activation=nn.Tanh), "conv net": conv_net}


def trained(
    make_net: Callable[[], nn.Module],
    make_optimizer: Callable[..., torch.optim.Optimizer],
    learning_rate: float,
    seed: int,
    *callbacks: pl.Callback,
) -> torch.Tensor:
    """Return all parameters after 200 steps."""
    pl.seed_everything(seed, verbose=False)
    module = Classifier(
        make_net(), digits(), learning_rate=learning_rate, make_optimizer=make_optimizer
    )
    trainer(200, *callbacks).fit(module)
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def run(seeds: int = 3, nets: Mapping[str, Callable[[], nn.Module]] = NETS) -> dict[str, object]:
    """Return the largest relative distances from the unaudited model: audited, and nudged."""
    quiet()
    results: dict[str, object] = {}
    for (net, make_net), (name, options) in itertools.product(nets.items(), OPTIMIZERS.items()):
        distances: dict[str, list[float]] = {"audited": [], "one last bit changed": []}
        for seed in range(seeds):
            plain = trained(make_net, *options, seed)
            with tempfile.TemporaryDirectory() as folder:
                audit = PrivacyAudit(report_dir=folder, on_violation="warn", seed=seed)
                others = [trained(make_net, *options, seed, extra) for extra in (audit, _Nudge())]
            for kind, other in zip(distances, others, strict=True):
                distances[kind].append(float((other - plain).norm() / plain.norm()))
        for kind, values in distances.items():
            results[f"{net}, {name}, {kind}: largest of {seeds}"] = max(values)
    return results
