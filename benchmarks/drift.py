"""How far the audit moves the trained model: relative distance after 200 steps, same seeds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import pytorch_lightning as pl
import torch
from support import Classifier, conv_net, digits, quiet, trainer

from lightning_audit import PrivacyAudit


def trained(audited: bool, make_optimizer: Callable[..., torch.optim.Optimizer]) -> torch.Tensor:
    """All parameters after 200 steps."""
    pl.seed_everything(3, verbose=False)
    module = Classifier(conv_net(), digits(), learning_rate=0.05, make_optimizer=make_optimizer)
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [PrivacyAudit(report_dir=folder, seed=3)] if audited else []
        trainer(200, *callbacks).fit(module)
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def run() -> dict[str, object]:
    """Distance between the audited and the unaudited model over the norm of the latter."""
    quiet()
    results: dict[str, object] = {}
    for make in (torch.optim.SGD, torch.optim.Adam):
        without = trained(False, make)
        distance = (trained(True, make) - without).norm() / without.norm()
        results[f"relative distance, {make.__name__}"] = float(distance)
    return results
