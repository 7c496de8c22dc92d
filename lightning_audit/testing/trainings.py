"""Small trainings on random data, including those for faults outside of the optimizer.

Each is a class without a Lightning base; `lightning_audit.testing.faults.Fault.module` combines it
with the `LightningModule` of either package.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.dpsgd.hand_over import per_sample, released
from lightning_audit.testing.faulty.faulty_correlation import BandedDraws

RECORDS, WIDTH, HIDDEN, CLASSES = 2048, 16, 64, 10
BATCH_SIZE = 16

Gradients = dict[str, torch.Tensor]


def random_data(seed: int = 0, records: int = RECORDS) -> TensorDataset:
    """Return random features and labels, from their own generator."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(records, WIDTH, generator=generator)
    return TensorDataset(features, torch.randint(0, CLASSES, (records,), generator=generator))


def net(depth: int = 3) -> nn.Module:
    """Return linear layers, of two tensors each, with ReLU between them."""
    widths = [WIDTH, *[HIDDEN] * (depth - 1), CLASSES]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Training:
    """A training with Opacus as in its documentation.

    Args:
        plant: maps the optimizer of `make_private` to the one to train with.
        noise_multiplier: of Opacus.
        max_grad_norm: of Opacus.
    """

    def __init__(
        self,
        plant: Callable[[DPOptimizer], DPOptimizer] | None = None,
        *,
        noise_multiplier: float = 1.0,
        max_grad_norm: float = 1.0,
    ) -> None:
        super().__init__()
        self.net = net()
        self.data = random_data()
        self.plant = plant or (lambda optimizer: optimizer)
        self.settings = {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class scores."""
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the mean cross-entropy of a batch."""
        x, y = batch
        return functional.cross_entropy(self.forward(x), y)

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches."""
        return DataLoader(self.data, BATCH_SIZE)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return Poisson batches."""
        return DPDataLoader.from_data_loader(self.plain_loader())

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05),
            data_loader=self.plain_loader(),
            **self.settings,
        )
        return self.plant(optimizer)


class DeepTraining(Training):
    """A net of sixteen tensors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net = net(8)


class FixedSizeBatches(Training):
    """The loader draws batches of a fixed size, but the accountant assumes Poisson batches."""

    def train_dataloader(self) -> DataLoader[Any]:
        """Return shuffled batches."""
        return DataLoader(self.data, BATCH_SIZE, shuffle=True)


class SummedLoss(Training):
    """The loss is a sum, but Opacus assumes a mean: gradients are too large by the batch size."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the summed cross-entropy of a batch."""
        x, y = batch
        return functional.cross_entropy(self.forward(x), y, reduction="sum")


class NotANumber(Training):
    """One record in eight has a feature that is not a number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data.tensors[0][::8, 0] = torch.nan


class PlainBeside(Training):
    """A head outside of the private network, with its own optimizer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False
        self.head = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class scores of the head."""
        return self.head(self.net(x))

    def configure_optimizers(self) -> Any:
        """Return the private optimizer, and one that Opacus does not wrap."""
        return [super().configure_optimizers(), torch.optim.Adam(self.head.parameters(), lr=1e-3)]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Step with both."""
        optimizers = self.optimizers()  # type: ignore[attr-defined]  # of the LightningModule
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))  # type: ignore[attr-defined]
        for optimizer in optimizers:
            optimizer.step()


class SplitBatches(Training):
    """Each batch is split into four parts, with one noisy step for all of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Add up the parts, then step."""
        optimizer = self.optimizers()  # type: ignore[attr-defined]  # of the LightningModule
        private = optimizer.optimizer
        x, y = batch
        parts = list(zip(x.chunk(4), y.chunk(4), strict=True))
        for i, part in enumerate(parts):
            private.signal_skip_step(do_skip=i + 1 < len(parts))
            optimizer.zero_grad()
            self.manual_backward(super().training_step(part, batch_idx))  # type: ignore[attr-defined]
            optimizer.step()


class HandWritten(Training):
    """Hand-written DP-SGD: per-sample gradients by vmap, clipped, summed, noised, averaged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        """Return the optimizer that updates."""
        return torch.optim.SGD(self.net.parameters(), lr=0.05)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Make the gradient private, then update."""
        sums = self.clipped_sums(*batch)
        std = self.settings["noise_multiplier"] * self.settings["max_grad_norm"]
        for name, p in self.net.named_parameters():
            p.grad = (sums[name] + std * torch.randn_like(p)) / self.divisor(len(batch[0]))
        self.optimizers().step()  # type: ignore[attr-defined]  # of the LightningModule

    def divisor(self, records: int) -> float:
        """Return the divisor of the noisy sum over a batch of ``records`` records."""
        return BATCH_SIZE

    def clipped_sums(self, x: torch.Tensor, y: torch.Tensor) -> Gradients:
        """Clip each sample's gradient, and return the sums."""
        return self.clipped(self.sample_gradients(self.net, x, y))

    def sample_gradients(self, network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Gradients:
        """Return the gradients of each sample by name, ``[n, *shape]``."""

        def loss(params: Gradients, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(functional_call(network, params, x[None]), y[None])

        params = {name: p.detach() for name, p in network.named_parameters()}
        return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)

    def clipped(self, grads: Gradients) -> Gradients:
        """Clip the samples' gradients, and return their sums."""
        grads = per_sample(grads, module=self.net)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factors = (self.settings["max_grad_norm"] / (norms + 1e-9)).clamp(max=1.0)
        return {name: torch.einsum("i,i...", factors, g) for name, g in grads.items()}


class MeanOverBatch(HandWritten):
    """Divides the noisy sum by the actual size of the batch."""

    def divisor(self, records: int) -> float:
        """Return the number of drawn records."""
        return max(records, 1)


class FourViews(HandWritten):
    """Four views of a record use the same weights, and each is clipped as a separate sample."""

    def clipped_sums(self, x: torch.Tensor, y: torch.Tensor) -> Gradients:
        """Clip each view, although a record is the sum of its four views."""
        views = torch.cat([factor * x for factor in (1.0, 1.01, 1.02, 1.03)])
        return self.clipped(self.sample_gradients(self.net, views, y.repeat(4)))


class NormalisedOverBatch(HandWritten):
    """Features are centered by the batch's mean, so that each gradient depends on all records."""

    def clipped_sums(self, x: torch.Tensor, y: torch.Tensor) -> Gradients:
        """Center, then clip."""
        return super().clipped_sums(x - x.mean(0), y)


class BandedByHand(HandWritten):
    """Hand-written banded noise, passed to `lightning_audit.released`: correct if it is claimed."""

    factor: float = 1.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.draws = BandedDraws(factor=self.factor)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Make the gradient private, pass it to the audit, then update."""
        sums = self.clipped_sums(*batch)
        std = self.settings["noise_multiplier"] * self.settings["max_grad_norm"]
        places = {name: place for place, name in enumerate(sums)}
        noisy = {
            name: (total + std * self.draws.noise(places[name], total)) / self.divisor(0)
            for name, total in sums.items()
        }
        noisy = released(noisy, module=self.net)
        for name, p in self.net.named_parameters():
            p.grad = noisy[name]
        self.optimizers().step()  # type: ignore[attr-defined]  # of the LightningModule


class HalfBandedByHand(BandedByHand):
    """Half of the hand-written banded noise."""

    factor = 0.5
