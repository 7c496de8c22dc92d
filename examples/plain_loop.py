"""A plain PyTorch loop on scikit-learn's digits, audited by two lines; about ten seconds.

    python examples/plain_loop.py [--half-noise] [--report-dir demo/plain-loop]

``train`` is an ordinary loop with Opacus and knows of no audit. With ``--half-noise`` the training
adds half the noise that it states. The exit code is 0 if the audit passes, else 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lightning_audit
from lightning_audit import PrivacyViolation

EPOCHS, BATCH_SIZE = 10, 64


class HalfNoise(DPOptimizer):
    """A fault: half the noise that is stated."""

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            p.grad = 0.5 * (p.grad + p.summed_grad.view_as(p))


def records() -> TensorDataset:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(digits.target))


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> None:
    for epoch in range(1, EPOCHS + 1):
        model.train()
        right = seen = 0
        for images, labels in loader:
            optimizer.zero_grad()
            scores = model(images)
            loss = functional.cross_entropy(scores, labels)
            loss.backward()
            optimizer.step()
            right += int((scores.argmax(1) == labels).sum())
            seen += len(labels)
        print(f"epoch {epoch}: {right / seen:.0%} of the training records right")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half-noise", action="store_true", help="plant a fault")
    parser.add_argument("--report-dir", default="demo/plain-loop")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", module="opacus|torch")
    logging.getLogger("lightning_audit").setLevel(logging.CRITICAL)  # the report says it
    torch.manual_seed(1)
    model = net()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(records(), BATCH_SIZE),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    if options.half_noise:
        optimizer.__class__ = HalfNoise
    try:
        with lightning_audit.attach(
            model, optimizer, loader, claimed_epsilon=8.0, report_dir=options.report_dir
        ) as audit:
            train(model, optimizer, loader)
    except PrivacyViolation as violation:  # from the `optimizer.step()` that shows it
        print(f"stopped after {violation.report.steps} steps")
        return 1
    return int(audit.report.verdict.outcome != "PASS")


if __name__ == "__main__":
    sys.exit(main())
