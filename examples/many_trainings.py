"""Audits the final models of many trainings with Opacus, of which only the models are released.

python examples/many_trainings.py [--noise 2.5] [--trainings 200] [--workers 2] [--store audit-many]
"""

from __future__ import annotations

import argparse
import sys
import warnings

import torch
from sklearn.datasets import load_digits
from torch import nn

from lightning_audit import PrivacyClaim, audit_training
from lightning_audit.many import LocalProcesses, ThisProcess, opacus_training

# Secure random numbers, and hooks on the first layer: remarks of Opacus in each worker.
warnings.filterwarnings("ignore", module="opacus|torch")
CLAIMED_NOISE, STEPS, RECORDS = 5.0, 20, 100


def make_model() -> nn.Module:
    model = nn.Linear(64, 10)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # a known start: random initial weights would hide the canary
    return model


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=float, default=CLAIMED_NOISE, help="noise that is added")
    parser.add_argument("--trainings", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2, help="processes; 0 for this one alone")
    parser.add_argument("--store", default="audit-many", help="folder; the same one continues")
    options = parser.parse_args()
    digits = load_digits()
    inputs = torch.tensor(digits.data[:RECORDS] / 16, dtype=torch.float32)
    train = opacus_training(
        make_model,
        make_optimizer,
        noise_multiplier=options.noise,
        max_grad_norm=1.0,
        sample_rate=1.0,
        expected_batch_size=RECORDS,
        steps=STEPS,
    )
    audit = audit_training(
        train,
        (inputs, torch.tensor(digits.target[:RECORDS])),
        PrivacyClaim(noise_multiplier=CLAIMED_NOISE, sample_rate=1.0, steps=STEPS, delta=1e-5),
        trainings=options.trainings,
        engine=LocalProcesses(options.workers) if options.workers else ThisProcess(),
        store=options.store,
    )
    sys.exit(0 if audit.verdict.outcome != "VIOLATION" else 1)


if __name__ == "__main__":
    main()
