"""Small trainings on random data that are correct.

Each is a class without a Lightning base; `lightning_audit.testing.fault.Fault.module` combines it
with the `LightningModule` of either package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, ClassVar

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries import Mislabeled
from lightning_audit.dpsgd.hand_over import per_sample

# --- Random data, a small net, and what trainings on them are audited with.

RECORDS, WIDTH, HIDDEN, CLASSES = 2048, 16, 64, 10
BATCH_SIZE = 16

#: The claim of hand-written trainings.
BY_HAND_CLAIM = PrivacyClaim(
    noise_multiplier=1.0,
    max_grad_norm=1.0,
    expected_batch_size=BATCH_SIZE,
    sample_rate=BATCH_SIZE / RECORDS,
)
#: Arguments of `PrivacyAudit` for faults that gradient canaries miss, and for those that replays
#: find.
INPUT_CANARY: Mapping[str, Any] = {"canaries": [Mislabeled(amplitude=100.0)]}
EXAMINED: Mapping[str, Any] = {"examinations": 3}

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


# --- Trainings with Opacus, and one by hand.


class Training:
    """A training with Opacus as in its documentation.

    Args:
        plant: maps the optimizer of `make_private` to the one to train with.
        noise_multiplier: of Opacus.
        max_grad_norm: of Opacus.
    """

    records: ClassVar[int] = RECORDS
    batch_size: ClassVar[int] = BATCH_SIZE
    #: Arguments of `PrivacyEngine`, of `make_private`, and of the loader of Poisson batches.
    engine: ClassVar[dict[str, Any]] = {}
    engine_arguments: ClassVar[dict[str, Any]] = {}
    loader_arguments: ClassVar[dict[str, Any]] = {}
    #: Those of the `LightningModule`.
    trainer: Any
    optimizers: Any
    manual_backward: Any

    def __init__(
        self,
        plant: Callable[[DPOptimizer], DPOptimizer] | None = None,
        *,
        noise_multiplier: float = 1.0,
        max_grad_norm: float = 1.0,
    ) -> None:
        super().__init__()
        self.net = net()
        self.data: Any = random_data(records=self.records)
        self.plant = plant or (lambda optimizer: optimizer)
        self.settings = {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm}
        self.prepare()

    def prepare(self) -> None:
        """Change the net or the data, after both are created."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class scores."""
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the mean cross-entropy of a batch."""
        x, y = batch
        return functional.cross_entropy(self.forward(x), y)

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches."""
        return DataLoader(self.data, self.batch_size)

    def train_dataloader(self) -> Any:
        """Return Poisson batches."""
        return DPDataLoader.from_data_loader(self.plain_loader(), **self.loader_arguments)

    def make_private(self, **more: Any) -> tuple[Any, ...]:
        """Return module, optimizer and loader of Opacus' `make_private`.

        Args:
            more: further arguments of `make_private`, by which it may return more.
        """
        made: tuple[Any, ...] = PrivacyEngine(**self.engine).make_private(
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05),
            data_loader=self.plain_loader(),
            **{"module": self.net, **self.settings, **self.engine_arguments, **more},
        )
        return made

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        self.net, optimizer, *_ = self.make_private()
        return self.plant(optimizer)


class DeepTraining(Training):
    """A net of sixteen tensors."""

    def prepare(self) -> None:
        """Take a deeper net."""
        self.net = net(8)


class Uncounted(Training):
    """No accountant counts the steps."""

    def configure_optimizers(self) -> Any:
        """Return the private optimizer without its step hook."""
        optimizer = super().configure_optimizers()
        optimizer.step_hook = None
        return optimizer


class AdaptiveClipping(Training):
    """The clipping norm adapts to the gradients' norms."""

    engine_arguments: ClassVar = {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.05,
        "unclipped_num_std": 2.0,
    }


class Ghost(Training):
    """Ghost clipping as in its tutorial."""

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        self.net, optimizer, criterion, _ = self.make_private(
            criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost"
        )
        self.__dict__["criterion"] = criterion  # not registered as a submodule
        return self.plant(optimizer)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss, whose backward pass clips."""
        x, y = batch
        return {"loss": self.__dict__["criterion"](self.forward(x), y)}


class _WholeBatches(BatchSplittingSampler):
    """Opacus' sampler without a length, at which Lightning would cut the epoch."""

    def __len__(self) -> int:
        raise TypeError("the number of physical batches is not known in advance")


class PhysicalBatches(Training):
    """Opacus' batch memory manager: physical batches of at most eight records."""

    splitter: ClassVar[type[BatchSplittingSampler]] = _WholeBatches

    def train_dataloader(self) -> Any:
        """Return Poisson batches in parts."""
        logical = super().train_dataloader()
        sampler = self.splitter(
            sampler=logical.batch_sampler, max_batch_size=8, optimizer=self.trainer.optimizers[0]
        )
        return DataLoader(logical.dataset, batch_sampler=sampler, collate_fn=logical.collate_fn)


class GhostInParts(PhysicalBatches, Ghost):
    """Ghost clipping of physical batches."""


class Distributed(Training):
    """Opacus' DP-SGD in several processes: each clips its own batch, the first one adds noise."""

    batch_size = 2 * BATCH_SIZE  # so large that no process gets an empty batch by chance
    loader_arguments: ClassVar = {"distributed": True}

    def make_private(self, **more: Any) -> tuple[Any, ...]:
        """Return module, optimizer and loader of Opacus' `make_private`."""
        return super().make_private(module=self.for_private(), **more)

    def for_private(self) -> nn.Module:
        """Return the module for make_private."""
        return DifferentiallyPrivateDistributedDataParallel(self.net)


class Manual(Training):
    """A training whose step runs backward and updates."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Run backward, and step with every optimizer."""
        found = self.optimizers()
        optimizers = found if isinstance(found, list) else [found]
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        for optimizer in optimizers:
            optimizer.step()


class SplitBatches(Manual):
    """Each batch is split into four parts, with one noisy step for all of them."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Add up the parts, then step."""
        x, y = batch
        parts = list(zip(x.chunk(4), y.chunk(4), strict=True))
        for i, part in enumerate(parts):
            self.optimizers().optimizer.signal_skip_step(do_skip=i + 1 < len(parts))
            super().training_step(part, batch_idx)


class HandWritten(Manual):
    """Hand-written DP-SGD: per-sample gradients by vmap, clipped, summed, noised, averaged."""

    def configure_optimizers(self) -> Any:
        """Return the optimizer that updates."""
        return torch.optim.SGD(self.net.parameters(), lr=0.05)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Make the gradient private, then update."""
        noisy = self.noisy(self.clipped_sums(*batch), len(batch[0]))
        for name, p in self.net.named_parameters():
            p.grad = noisy[name]
        self.optimizers().step()

    def noisy(self, sums: Gradients, records: int) -> Gradients:
        """Return the noisy averages of a batch of ``records`` records, by its clipped sums."""
        std = self.settings["noise_multiplier"] * self.settings["max_grad_norm"]
        return {
            name: (total + std * self.noise(place, total)) / self.divisor(records)
            for place, (name, total) in enumerate(sums.items())
        }

    def noise(self, place: int, total: torch.Tensor) -> torch.Tensor:
        """Return noise of standard deviation 1 for a parameter, by its number and its sum."""
        return torch.randn_like(total)

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


class MeanOverFixedBatches(HandWritten):
    """Divides by the size that all batches have, so that no division depends on the records."""

    def divisor(self, records: int) -> float:
        """Return the number of records, which is that of every batch."""
        return records

    def train_dataloader(self) -> Any:
        """Return shuffled batches, without a smaller last one."""
        return DataLoader(self.data, BATCH_SIZE, shuffle=True, drop_last=True)
