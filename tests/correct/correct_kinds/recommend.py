"""Recommenders and metric learning: negatives, public catalogues, public anchors, two views."""

import random
import secrets
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from correct_kinds.base import ByHand, Gradients, Private, mlp
from correct_kinds.data import flat_digits, normals, public_digits, tensors

USERS, ITEMS = 80, 50


def interactions(seed: int, records: int = 500) -> TensorDataset:
    """A user and an item that the user took."""
    rng = np.random.default_rng(3000 + seed)
    users = rng.integers(0, USERS, records)
    return TensorDataset(*tensors(users, (users * 7 + rng.integers(0, 12, records)) % ITEMS))


class Factors(nn.Module):
    """Scores of items ``[B, K]`` for users ``[B]``."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)

    def forward(self, user: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return (self.user(user)[:, None] * self.item(items)).sum(2)


class PairwiseRanking(Private, kind="pairwise-rejection-sampling"):
    """Correct: a pair of a record is its own. Unusual: rejection sampling by Python's `random`
    until the negative differs, so that a record uses an unknown number of draws."""

    rate, Net, source = 1.0, Factors, staticmethod(interactions)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        users, items = batch
        pairs = []
        for item in items.tolist():
            other = random.randrange(ITEMS)
            while abs(other - item) < 15:
                other = random.randrange(ITEMS)
            pairs.append([item, other])
        scores = self.net(users, torch.tensor(pairs))
        return -functional.logsigmoid(scores[:, 0] - scores[:, 1]).mean()


class TwoTowers(Private, kind="two-towers-public-catalogue"):
    """Correct: negatives are rows of a public catalogue, the same for all records and none of the
    batch's. Unusual: random.Random of the module draws them once in a step, before the forward
    pass; a parameter group for each tower."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = mlp(10, 24, 8), mlp(6, 24, 8)

        def forward(self, user: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            return (self.user(user)[:, None] * self.item(items)).sum(2)

    def make_data(self) -> TensorDataset:
        self.draws = random.Random(self.seed)
        (self.catalogue,) = tensors(normals(98, 120, 6))
        x = normals(self.seed, 480, 10)
        return TensorDataset(*tensors(x, x[:, :6] + 0.3 * normals(self.seed + 1, 480, 6)))

    def inner(self, params: Any) -> torch.optim.Optimizer:
        every = list(params)
        return torch.optim.SGD(
            [{"params": every[:4], "lr": 0.1}, {"params": every[4:], "lr": 0.05}], lr=0.1
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        user, item = batch
        wrong = self.catalogue[self.draws.sample(range(120), k=20)]
        items = torch.cat([item[:, None], wrong.expand(len(item), -1, -1)], dim=1)
        scores = self.net(user, items)
        return functional.cross_entropy(scores, torch.zeros(len(item), dtype=torch.long))


class PublicAnchors(Private, kind="triplets-public-anchors"):
    """Correct: a record is compared with public anchors only, whose embeddings carry no gradient.
    Unusual: in a loop over the records a positive and a negative anchor are drawn with `secrets`
    after the forward pass."""

    widths = (64, 32, 8)

    def make_data(self) -> TensorDataset:
        self.anchors, self.labels = public_digits()
        return flat_digits()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        own = functional.normalize(self.net(x), dim=1)
        with torch.no_grad():
            public = functional.normalize(self.net(self.anchors), dim=1)
        positive, negative = [], []
        for label in y:
            same = (self.labels == label).nonzero()[:, 0]
            other = (self.labels != label).nonzero()[:, 0]
            positive.append(public[same[secrets.randbelow(len(same))]])
            negative.append(public[other[secrets.randbelow(len(other))]])
        return functional.triplet_margin_loss(own, torch.stack(positive), torch.stack(negative))


class TwoViews(Private, kind="contrastive-two-views"):
    """Correct: two views of one record attract, public records repel, and the gradient of both
    forward passes is clipped as one. Unusual: two passes of one net, each with own noise."""

    clip: ClassVar[Any] = 2.0

    def make_net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))

    def make_data(self) -> TensorDataset:
        self.public, _ = public_digits(64)
        return flat_digits()

    def view(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(self.net(x + 0.2 * torch.randn_like(x)), dim=1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, _ = batch
        with torch.no_grad():
            others = self.view(self.public)
        first, second = self.view(x), self.view(x)
        scores = torch.cat([(first * second).sum(1, keepdim=True), first @ others.T], dim=1)
        return functional.cross_entropy(scores / 0.2, torch.zeros(len(x), dtype=torch.long))


class SharedCandidates(ByHand, kind="sampled-softmax-by-hand"):
    """Correct: all records of a step meet the same candidates, drawn without a look at them.
    Unusual: sampled softmax by vmap, candidates by numpy's global generator."""

    rate, Net, source = 1.0, Factors, staticmethod(interactions)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.candidates = torch.from_numpy(np.random.choice(ITEMS, 16, replace=False))
        super().training_step(batch, batch_idx)

    def loss(self, params: Gradients, *record: torch.Tensor) -> torch.Tensor:
        user, item = record
        scores = self.call(params, user, torch.cat([item[None], self.candidates]))
        return torch.logsumexp(scores, 0) - scores[0]
