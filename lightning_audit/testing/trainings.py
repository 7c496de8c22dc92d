"""Small trainings on random data, including those for faults outside of the optimizer.

Each is a class without a Lightning base; `lightning_audit.testing.faults.Fault.module` combines it
with the `LightningModule` of either package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from lightning_audit.dpsgd.hand_over import per_sample, released
from lightning_audit.testing.faulty import BandedDraws

# --- Small trainings on random data, including those for faults outside of the optimizer.

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


class OptimizerOfItsOwn(PlainBeside):
    """The head's optimizer is none of those that `configure_optimizers` returns."""

    def configure_optimizers(self) -> Any:
        """Return the private optimizer alone."""
        private, self.__dict__["own"] = super().configure_optimizers()
        return private

    def optimizers(self) -> Any:
        """Return both."""
        return [super().optimizers(), self.__dict__["own"]]  # type: ignore[misc]


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


class MeanOverFixedBatches(MeanOverBatch):
    """Divides by the size that all batches have, so that no division depends on the records."""

    def train_dataloader(self) -> DataLoader[Any]:
        """Return shuffled batches, without a smaller last one."""
        return DataLoader(self.data, BATCH_SIZE, shuffle=True, drop_last=True)


class Uncounted(Training):
    """No accountant counts the steps."""

    def configure_optimizers(self) -> Any:
        """Return the private optimizer without its step hook."""
        optimizer = super().configure_optimizers()
        optimizer.step_hook = None
        return optimizer


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


# --- Steps that are not DP-SGD, although most of them give the same result on the current batch.

Rows = torch.Tensor


class OwnFactors(DPOptimizer):
    """Clips by the factors of `factors`; this base class is correct."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Return the factor of each per-sample gradient, ``[n, d]`` to ``[n]``."""
        return (self.max_grad_norm / (rows.norm(dim=1) + 1e-6)).clamp(max=1.0)

    def clip_and_accumulate(self) -> None:
        """Sum the clipped per-sample gradients."""
        if self.params[0].grad_sample.numel() == 0:
            super().clip_and_accumulate()
            return
        rows = torch.cat([p.grad_sample.flatten(1) for p in self.params], 1)
        factors = self.factors(rows)
        for p in self.params:
            total = torch.einsum("i,i...", factors.to(p.grad_sample), p.grad_sample)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            p.grad_sample._processed = True


class ClipByMedianNorm(OwnFactors):
    """Clips at the median norm of the batch, which depends on its records."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        norms = rows.norm(dim=1)
        return (norms.median() / (norms + 1e-6)).clamp(max=1.0)


class FirstRowNotClipped(OwnFactors):
    """Does not clip the first record of each batch."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        factors = super().factors(rows).clone()
        factors[:1] = 1.0
        return factors


class ClipByThreeNorm(OwnFactors):
    """Clips by the 3-norm, which is smaller than the 2-norm that the noise is calibrated to."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        return (self.max_grad_norm / (rows.norm(p=3, dim=1) + 1e-6)).clamp(max=1.0)


class OnlyOutliersClipped(OwnFactors):
    """Clips gradients above ten times the clipping norm, but not those between."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        norms = rows.norm(dim=1)
        kept = torch.ones_like(norms)
        return torch.where(norms > 10 * self.max_grad_norm, super().factors(rows), kept)


class TwoClippedTogether(OwnFactors):
    """Clips the first two records of each batch by the norm of their sum."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        factors = super().factors(rows).clone()
        together = self.max_grad_norm / (rows[:2].sum(0).norm() + 1e-6)
        factors[:2] = together.clamp(max=1.0)
        return factors


class MomentumOfRawGradients(DPOptimizer):
    """Updates the weights with an average of raw gradients in addition to the private ones."""

    _raw: list[torch.Tensor] | None = None

    def pre_step(self, closure: Any = None) -> bool | None:
        """Clip and add noise, and update with the raw gradients."""
        raw = [p.grad_sample.sum(0) for p in self.params]
        steps: bool | None = super().pre_step(closure)
        if steps:
            held = self._raw or [torch.zeros_like(r) for r in raw]
            self._raw = [0.9 * h + r for h, r in zip(held, raw, strict=True)]
            for p, own in zip(self.params, self._raw, strict=True):
                p.data.add_(own, alpha=-1e-4)
        return steps


class LearningRateByRawNorm(DPOptimizer):
    """Computes the learning rate of each step from the norm of its raw gradients."""

    def pre_step(self, closure: Any = None) -> bool | None:
        """Set the learning rate, clip and add noise."""
        norm = sum(float(p.grad_sample.sum(0).norm()) for p in self.params)
        for group in self.original_optimizer.param_groups:
            group["lr"] = 0.05 / (1.0 + norm)
        steps: bool | None = super().pre_step(closure)
        return steps


class ChangedAfterStep(Training):
    """The batch's inputs change weights after its step."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Change the weights."""
        x, _ = batch
        if len(x):
            with torch.no_grad():
                next(self.net.parameters()).add_(x.mean(), alpha=1e-3)


class ViewsClippedApart(Training):
    """Clips two views of each record as two records."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the mean cross-entropy of both views."""
        x, y = batch
        return super().training_step((torch.cat([x, 0.9 * x]), torch.cat([y, y])), batch_idx)


class KeepsStatistics(HandWritten):
    """Batch normalization keeps statistics of the records, which are saved in checkpoints."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statistics = nn.BatchNorm1d(self.data.tensors[0].shape[1], affine=False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Update the statistics with the batch, and train."""
        x, _ = batch
        if len(x) > 1:
            self.statistics(x)
        return super().training_step(batch, batch_idx)


# --- Small trainings with other features of Opacus, on the random data of `trainings`.


class Configured(Training):
    """A training whose class states the arguments of `PrivacyEngine` and `make_private`."""

    engine: ClassVar[dict[str, Any]] = {}
    engine_arguments: ClassVar[dict[str, Any]] = {}

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        self.net, optimizer, *_ = self._private()
        return self.plant(optimizer)

    def _private(self, **more: Any) -> tuple[Any, ...]:
        made: tuple[Any, ...] = PrivacyEngine(**self.engine).make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05),
            data_loader=self.plain_loader(),
            **{**self.settings, **self.engine_arguments, **more},
        )
        return made


class AdaptiveClipping(Configured):
    """The clipping norm adapts to the gradients' norms."""

    engine_arguments: ClassVar = {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.05,
        "unclipped_num_std": 2.0,
    }


class LittleCountNoise(AdaptiveClipping):
    """The count to which the norm adapts has little noise."""

    engine_arguments: ClassVar = {**AdaptiveClipping.engine_arguments, "unclipped_num_std": 0.6}


class MadeUpRecords(Training):
    """Batches are small, and an empty one gets a record of random numbers."""

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches of two."""
        return DataLoader(self.data, 2)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return Poisson batches that are never empty."""
        return DPDataLoader.from_data_loader(self.plain_loader(), rand_on_empty=True)


class RecordsIgnored(Training):
    """One record in four has the label that the loss ignores, as if it were not there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data.tensors[1][3::4] = -100


class Ghost(Configured):
    """Ghost clipping as in its tutorial."""

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        self.net, optimizer, criterion, _ = self._private(
            criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost"
        )
        self.__dict__["criterion"] = criterion  # not registered as a submodule
        return self.plant(optimizer)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss, whose backward pass clips."""
        x, y = batch
        return {"loss": self.__dict__["criterion"](self.forward(x), y)}


class GhostOfAnotherLoss(Ghost):
    """Ghost clipping, and the loss that runs backward is not that of its criterion."""

    training_step = Training.training_step


class NormNotPassedOn(Ghost):
    """Halves the clipping norm of the optimizer after some steps, but not that of the module."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Halve the optimizer's norm at step 4, and return the loss, whose backward pass clips."""
        if batch_idx == 4:
            self.trainer.optimizers[0].max_grad_norm /= 2.0  # type: ignore[attr-defined]
        return super().training_step(batch, batch_idx)


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
            sampler=logical.batch_sampler,
            max_batch_size=8,
            optimizer=self.trainer.optimizers[0],  # type: ignore[attr-defined]  # Lightning's
        )
        return DataLoader(logical.dataset, batch_sampler=sampler, collate_fn=logical.collate_fn)


class GhostInParts(PhysicalBatches, Ghost):
    """Ghost clipping of physical batches."""


# --- Small trainings of several processes, on the random data of `trainings`.


class Distributed(Training):
    """Opacus' DP-SGD in several processes: each clips its own batch, the first one adds noise."""

    #: Whether the records are split among the processes.
    dealt: ClassVar = True

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches, large enough that no process gets an empty one by chance."""
        return DataLoader(self.data, 2 * BATCH_SIZE)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return Poisson batches for each process."""
        return DPDataLoader.from_data_loader(self.plain_loader(), distributed=self.dealt)

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.for_private(),
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05),
            data_loader=self.plain_loader(),
            **self.settings,
        )
        return self.plant(optimizer)

    def for_private(self) -> torch.nn.Module:
        """Return the module for make_private."""
        return DifferentiallyPrivateDistributedDataParallel(self.net)


class NotSynchronised(Distributed):
    """``make_private`` gets a plain module, and Lightning's DDP does not sync Opacus' gradients."""

    def for_private(self) -> torch.nn.Module:
        """Return the net, which only Lightning wraps."""
        return self.net


class DrawnAlike(Distributed):
    """The generators of all processes' loaders have one seed."""

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches with a generator."""
        seeded = torch.Generator().manual_seed(0)
        return DataLoader(self.data, 2 * BATCH_SIZE, generator=seeded)


class DrawnByAll(Distributed):
    """Every process draws from all records."""

    dealt = False


# --- Trainings whose batches, records or accountant differ from what is accounted for.

#: Records that `FavouredRecords` adds to each batch.
FAVOURED = (3, 5, 8)


class SameBatchesInEveryEpoch(Training):
    """Seeds the Poisson sampler at each epoch's start; the first epoch may have begun before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data = random_data(records=RECORDS // 4)

    def on_train_epoch_start(self) -> None:
        """Make epochs reproducible, and thereby equal."""
        self.order.manual_seed(1)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return Poisson batches from their own generator."""
        self.order = torch.Generator()
        return DPDataLoader.from_data_loader(self.plain_loader(), generator=self.order)


class FavouringSampler(UniformWithReplacementSampler):
    """Poisson batches to which some records are always added."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yield Poisson batches with the favored records."""
        for batch in super().__iter__():
            yield sorted({*batch, *FAVOURED})


class FavouredRecords(Training):
    """Some records are in every batch."""

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a loader with the favoring sampler."""
        loader = super().train_dataloader()
        loader.batch_sampler.__class__ = FavouringSampler
        return loader


class RecordsTwice(Training):
    """The data set holds half of the records twice."""

    data: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        data: TensorDataset = self.data
        half = Subset(data, range(RECORDS // 2))
        self.data = ConcatDataset([half, Subset(data, range(RECORDS // 2))])


class TwoStepsOnABatch(Training):
    """Takes two steps on each batch."""

    automatic_optimization = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Train on the batch twice."""
        module: Any = self
        for _ in range(2):
            optimizer = module.optimizers()
            optimizer.zero_grad()
            module.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()


class KeptBatches(Training):
    """Trains on an earlier batch at every fourth step, instead of the drawn one."""

    kept: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Keep a batch, and train on it again later."""
        if batch_idx % 4 == 0:
            self.kept = batch
        return super().training_step(self.kept if batch_idx % 4 == 3 else batch, batch_idx)


class OwnPool(Training):
    """Trains on records that the step draws itself, instead of the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Train on records of a pool."""
        x, y = self.data.tensors
        rows = torch.randint(RECORDS // 8, (BATCH_SIZE,))
        return super().training_step((x[rows], y[rows]), batch_idx)


class RateByLastLoss(Training):
    """The learning rate of a step is computed from the raw loss of the last one."""

    last = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Set the rate, and keep the loss."""
        module: Any = self
        for group in module.optimizers().param_groups:
            group["lr"] = 0.05 / (1.0 + self.last)
        loss = super().training_step(batch, batch_idx)
        self.last = float(loss.detach())
        return loss


class HookWrapped(Training):
    """Wraps the accountant's hook, as for logging."""

    calls = 0

    def tells(self) -> bool:
        """Return whether to call the accountant for this step."""
        return True

    def configure_optimizers(self) -> Any:
        """Return the optimizer, with another hook."""
        optimizer = super().configure_optimizers()
        own = optimizer.step_hook

        def hook(stepping: Any) -> None:
            self.calls += 1
            if self.tells():
                own(stepping)

        optimizer.step_hook = lambda stepping: hook(stepping)
        return optimizer


class EverySecondStepTold(HookWrapped):
    """Calls the accountant at every second step only."""

    def tells(self) -> bool:
        """Return whether to call the accountant for this step."""
        return self.calls % 2 == 1


class MoreNoiseTold(Training):
    """Reports twice the optimizer's noise multiplier to the accountant."""

    def configure_optimizers(self) -> Any:
        """Return the optimizer, with a hook that states another noise multiplier."""
        optimizer = super().configure_optimizers()
        own, stated = optimizer.step_hook, optimizer.noise_multiplier

        def hook(stepping: Any) -> None:
            stepping.noise_multiplier = 2.0 * stated
            own(stepping)
            stepping.noise_multiplier = stated

        optimizer.step_hook = hook
        return optimizer


# --- Small trainings with a fault of the run: accountant, loader, resume, network.


class GdpAccountant(Configured):
    """The accountant of Gaussian DP, whose central limit theorem needs many steps."""

    engine: ClassVar = {"accountant": "gdp"}


class Accumulated(Configured):
    """With ``poisson_sampling=False``, Opacus lets a Trainer accumulate batches."""

    engine_arguments: ClassVar = {"poisson_sampling": False}


class MergedBatches(PhysicalBatches):
    """Lightning ends each epoch at the length that Opacus' splitting sampler estimates."""

    splitter = BatchSplittingSampler

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data = random_data(records=256)


class SkipsEmptyBatches(Training):
    """The expected batch size is two, and empty batches are skipped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def plain_loader(self) -> DataLoader[Any]:
        """Return batches of two."""
        return DataLoader(self.data, 2)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Step only on a batch with records."""
        if len(batch[0]):
            optimizer = self.optimizers()  # type: ignore[attr-defined]  # of the LightningModule
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))  # type: ignore[attr-defined]
            optimizer.step()


class BackwardAfterNoise(Configured):
    """A regularizer's backward pass runs after noise was added, and adds to the gradient."""

    engine_arguments: ClassVar = {"poisson_sampling": False}  # or Opacus refuses a second backward

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Clip and add noise, run backward again, then update."""
        private = self.optimizers().optimizer  # type: ignore[attr-defined]  # of the LightningModule
        private.zero_grad()
        for again in (False, True):
            self.manual_backward(super().training_step(batch, batch_idx))  # type: ignore[attr-defined]
            if not again and not private.pre_step():
                return
        private.original_optimizer.step()


class SeededNoise(Configured):
    """The noise generator is seeded when a training begins, also a resumed one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net, self._optimizer, _ = self._private()  # a checkpoint has its names of parameters

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with a generator on the device of its weights."""
        device = next(self.net.parameters()).device
        self._optimizer.generator = torch.Generator(device).manual_seed(5)
        return self._optimizer


class PackedSequences(Training):
    """Sequences of several lengths, which `pack_padded_sequence` sorts for Opacus' `DPLSTM`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net = _Recurrent()


class PaddedTexts(Training):
    """Texts that are padded to the longest one of their batch, and averaged with the padding."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net = _Pooled()

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches of padded texts."""
        return DataLoader(self.data, BATCH_SIZE, collate_fn=padded)


def padded(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut features to lengths of their own, and pad them to the longest one."""
    texts = [x[: 1 + int(100.0 * x.abs().sum()) % WIDTH] for x, _ in items]
    return pad_sequence(texts, batch_first=True), torch.stack([y for _, y in items])


class _Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention: Any = None
        self.words, self.head = nn.Linear(1, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = self.words(x.unsqueeze(-1)).relu()
        pooled = words.mean(1)
        if self.attention is not None:
            words, _ = self.attention(words, words, words, key_padding_mask=x == 0.0)
            pooled = (words * (x != 0.0).unsqueeze(-1)).sum(1)
        scores: torch.Tensor = self.head(pooled)
        return scores


class PaddedAttention(PaddedTexts):
    """Padded texts whose padding is masked, with Opacus' attention."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net.attention = DPMultiheadAttention(HIDDEN, 4, batch_first=True)


class NormOfTheFirstBatch(Training):
    """The clipping norm is calibrated on the first batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Calibrate the norm once."""
        optimizer: Any = self.optimizers().optimizer  # type: ignore[attr-defined]
        if not hasattr(self, "calibrated"):
            self.calibrated = optimizer.max_grad_norm = float(batch[0].norm(dim=1).median()) / 4.0
        return super().training_step(batch, batch_idx)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = DPLSTM(2, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequences = x.view(len(x), -1, 2)
        lengths = 1 + (100.0 * x.abs().sum(1)).long() % sequences.shape[1]
        packed = pack_padded_sequence(
            sequences, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        scores: torch.Tensor = self.head(hidden[-1])
        return scores
