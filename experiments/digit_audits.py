"""Audits over many trainings of a softmax regression on digits, shared by the experiments."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

from scipy import optimize
from torch import nn

from lightning_audit import audit_training
from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.many import DPSGDMany, ThisProcess, TrainingAudit
from lightning_audit.many.records import Canary
from lightning_audit.many.verdict import Claim
from lightning_audit.stats.tradeoff import gaussian_mu

DELTA = 1e-5


def known_start() -> nn.Module:
    """Return a softmax regression whose initial weights are 0, as the auditor knows."""
    model = nn.Linear(64, 10)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


#: Makes a softmax regression whose initial weights depend on the training's seed.
random_start = partial(nn.Linear, 64, 10)


def noise_for(epsilon: float, sample_rate: float, steps: int) -> float:
    """Return the noise multiplier with which the steps spend an epsilon at `DELTA`."""
    if sample_rate == 1.0:
        return math.sqrt(steps) / float(gaussian_mu(epsilon, DELTA))

    def too_much(noise: float) -> float:
        return epsilon_of_history([Phase(noise, sample_rate, steps)], DELTA) - epsilon

    return float(optimize.brentq(too_much, 0.3, 100.0, xtol=1e-3))


def audits(
    train: DPSGDMany,
    data: Any,
    canary: Canary,
    claims: Sequence[Claim],
    trainings: int,
    seed: int,
) -> list[TrainingAudit]:
    """Train once, and return an audit of each claim: all claims read the same trainings."""
    with tempfile.TemporaryDirectory() as store:
        return [
            audit_training(
                train,
                data,
                claim,
                canary=canary,
                trainings=trainings,
                stop="end",
                engine=ThisProcess(),
                store=store,
                seed=seed,
                display=False,
            )
            for claim in claims
        ]
