"""Membership games on digits, which several experiments play: three trainings of a small network.

A game trains models on random halves of the records. An attack states for each model whether a
challenge point was among its records. Shadow models, which select the challenge points and fit the
attack, are others than the attacked models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from common import digits
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_audit import PrivacyClaim
from lightning_audit.many import DPSGDMany

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

DELTA, SAMPLE_RATE, NOISE, DP_STEPS = 1e-5, 0.1, 0.94, 100
#: A norm at which no gradient of these models is clipped.
UNCLIPPED = 1e9


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def trainings(records: int) -> dict[str, DPSGDMany]:
    """Return plain SGD, clipping alone, and DP-SGD, on half of so many records.

    DP-SGD stops earlier: its epsilon is `accounted_epsilon`.
    """
    shared = {
        "sample_rate": SAMPLE_RATE,
        "expected_batch_size": SAMPLE_RATE * records / 2,
        "learning_rate": 0.5,
    }
    plain = {"noise_multiplier": 0.0, "steps": 3 * DP_STEPS}
    return {
        "plain SGD": DPSGDMany(network, max_grad_norm=UNCLIPPED, **plain, **shared),
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
    """Log likelihood ratios of the attack on each model and point, and the truth, ``[m, p]``."""

    log_ratios: Floats
    members: Flags
    accuracy: float

    def one_point_a_model(self) -> tuple[Floats, Flags]:
        """Return the challenges of one point in each model, in turn, which are independent."""
        rows = np.arange(len(self.members))
        points = rows % self.members.shape[1]
        return self.log_ratios[rows, points], self.members[rows, points]


def play(train: DPSGDMany, size: Size, seed: int) -> Game:
    """Train shadow models, select challenge points, train models, and attack them."""
    rng = np.random.default_rng(seed)
    inputs, targets = digits()
    order = rng.permutation(len(targets))
    data = (inputs[order[: size.records]], targets[order[: size.records]])
    others = (inputs[order[size.records :]], targets[order[size.records :]])
    halves = np.empty((size.shadows, size.records), dtype=bool)
    for row in range(0, size.shadows, 2):
        half = rng.permutation(size.records) < size.records // 2
        halves[row], halves[row + 1] = half, ~half
    coins = rng.random((size.models, size.records)) < 0.5
    seeds = [int(s) for s in rng.integers(2**32, size=size.shadows + size.models)]
    members = np.concatenate([halves, coins])
    models = train.many([(data[0][m], data[1][m]) for m in members], seeds)
    scores = margins(models, data)
    split = size.shadows
    points = most_separated(scores[:split], halves, size.points)
    return Game(
        lira(scores[:split, points], halves[:, points], scores[split:, points]),
        coins[:, points],
        float(np.mean([accuracy(model, others) for model in models[split:]])),
    )


def margins(models: list[nn.Module], data: tuple[Tensor, Tensor]) -> Floats:
    rows = []
    with torch.no_grad():
        for model in models:
            logits = model(data[0]).double()
            own = logits.gather(1, data[1][:, None])[:, 0]
            rest = logits.scatter(1, data[1][:, None], -torch.inf).logsumexp(1)
            rows.append((own - rest).numpy())
    return np.stack(rows)


def most_separated(scores: Floats, members: Flags, k: int) -> NDArray[np.int64]:
    a, b = np.where(members, scores, np.nan), np.where(members, np.nan, scores)
    spread = np.sqrt((np.nanvar(a, 0) + np.nanvar(b, 0)) / 2)
    return np.argsort(-(np.nanmean(a, 0) - np.nanmean(b, 0)) / spread)[:k]


def lira(shadows: Floats, members: Flags, scores: Floats) -> Floats:
    a, b = np.where(members, shadows, np.nan), np.where(members, np.nan, shadows)
    mi, mo = np.nanmean(a, 0), np.nanmean(b, 0)
    vi, vo = np.nanmean((a - mi) ** 2), np.nanmean((b - mo) ** 2)
    return (scores - mo) ** 2 / (2 * vo) - (scores - mi) ** 2 / (2 * vi) + np.log(vo / vi) / 2


def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).double().mean())
