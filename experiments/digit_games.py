"""Membership games on digits, which several experiments play: three trainings of a small network.

A game trains models on random halves of the records. An attack states for each model whether a
challenge point was among its records. Shadow models, which select the challenge points and fit the
attack, are others than the attacked models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from common import digits
from numpy.typing import NDArray
from torch import nn

from lightning_audit import PrivacyClaim
from lightning_audit.many import (
    DPSGDMany,
    ThisProcess,
    challenge_points,
    challenges_of,
    shadow_models,
)

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

DELTA, SAMPLE_RATE, NOISE, DP_STEPS = 1e-5, 0.1, 0.94, 100


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def trainings(records: int) -> dict[str, DPSGDMany]:
    """Return plain SGD, clipping alone, and DP-SGD, on half of this number of records.

    DP-SGD stops earlier: its epsilon is `accounted_epsilon`.
    """
    shared = {
        "sample_rate": SAMPLE_RATE,
        "expected_batch_size": SAMPLE_RATE * records / 2,
        "learning_rate": 0.5,
    }
    plain = {"noise_multiplier": 0.0, "steps": 3 * DP_STEPS}
    return {
        "plain SGD": DPSGDMany(network, max_grad_norm=math.inf, **plain, **shared),
        "clipping alone": DPSGDMany(network, max_grad_norm=1.0, **plain, **shared),
        "DP-SGD": DPSGDMany(
            network, noise_multiplier=NOISE, max_grad_norm=1.0, steps=DP_STEPS, **shared
        ),
    }


def accounted_epsilon() -> float:
    """Return the epsilon of the DP-SGD training at `DELTA`, by composition of its steps."""
    claim = PrivacyClaim(
        delta=DELTA, noise_multiplier=NOISE, sample_rate=SAMPLE_RATE, steps=DP_STEPS
    )
    return claim.composed_epsilon()


@dataclass(frozen=True)
class Size:
    """Size of a game: records, shadow models, attacked models, and challenge points."""

    records: int
    shadows: int
    models: int
    points: int


@dataclass(frozen=True)
class Game:
    """Log likelihood ratios of one challenge a model, and the truth, ``[models]``.

    ``accuracy`` is that of models on records that no model is trained on.
    """

    log_ratios: Floats
    members: Flags
    accuracy: float


def play(train: DPSGDMany, size: Size, seed: int) -> Game:
    """Train shadow models, select challenge points, train models, and attack each at one point."""
    inputs, targets = digits()
    order = np.random.default_rng(seed).permutation(len(targets))
    audited, others = order[: size.records], order[size.records :]
    data = (inputs[audited], targets[audited])
    engine = ThisProcess()
    shadows = shadow_models(train, data, models=size.shadows, engine=engine, seed=2 * seed)
    attacked = shadow_models(
        train, data, models=size.models, engine=engine, seed=2 * seed + 1, pairs=False
    )
    points = challenge_points(shadows, size.points)
    challenges = challenges_of(attacked, points, shadows).one_a_model(seed)
    half = tuple(column[: size.records // 2] for column in data)
    models = train.many([half] * 4, range(4))
    with torch.no_grad():
        right = [(model(inputs[others]).argmax(1) == targets[others]).double() for model in models]
    return Game(
        challenges.scores[:, 0], challenges.membership[:, 0], float(torch.stack(right).mean())
    )
