"""What the kinds share: a private training with Opacus, one by hand, and the list of kinds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import lightning_audit
from correct_kinds.data import flat_digits
from lightning_audit import PrivacyClaim

STEPS = 60
Gradients = dict[str, torch.Tensor]


def mlp(*widths: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def row_norms(rows: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in rows]).norm(dim=0)


class Training(NamedTuple):
    """A complete training.

    Attributes:
        module: the LightningModule.
        datamodule: its data, where the module does not hold them.
        trainer: arguments of the Trainer.
        audit: arguments of `PrivacyAudit`.
    """

    module: pl.LightningModule
    datamodule: pl.LightningDataModule | None
    trainer: dict[str, Any]
    audit: dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of correct training.

    Args:
        name: of it, as test cases are named.
        module: makes its module from a seed.
        why: why it is correct, and what is unusual about it.
    """

    name: str
    module: type["Base"]
    why: str

    def build(self, seed: int) -> Training:
        pl.seed_everything(seed, verbose=False)
        made, data = self.module(seed), self.module.datamodule_class
        arguments = {"max_steps": STEPS, **self.module.trainer_arguments}
        return Training(made, data and data(seed), arguments, made.audit_arguments())


#: In the order of their classes.
REGISTERED: list[Kind] = []


class Base(pl.LightningModule):
    """Is a kind where its class has a name for it; the docstring says why it is correct."""

    trainer_arguments: ClassVar[dict[str, Any]] = {}
    datamodule_class: ClassVar[Any] = None
    Net: ClassVar[Any] = None
    #: Of a net of linear layers, where there is no other `Net`.
    widths: ClassVar[tuple[int, ...]] = (64, 16, 10)
    #: Makes the records from the seed.
    source: ClassVar[Any] = staticmethod(flat_digits)

    def __init_subclass__(cls, kind: str = "") -> None:
        super().__init_subclass__()
        if kind:
            REGISTERED.append(Kind(kind, cls, " ".join((cls.__doc__ or "").split())))

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.net = self.make_net()
        self.dataset = self.make_data()
        self.set_up()

    def make_net(self) -> nn.Module:
        return self.Net() if self.Net else mlp(*self.widths)

    def make_data(self) -> Dataset[Any]:
        return self.source(self.seed)

    def set_up(self) -> None:
        """Make generators and public things, where there are any."""


class Private(Base):
    """Opacus as its documentation has it; a kind gives the data, the net and the loss."""

    batch_size: ClassVar[int] = 24
    sigma: ClassVar[float] = 1.0
    clip: ClassVar[Any] = 1.0
    rate: ClassVar[float] = 0.1
    engine: ClassVar[dict[str, Any]] = {}
    accountant: ClassVar[str] = "prv"
    private: ClassVar[type[DPOptimizer] | None] = None
    collate: ClassVar[Any] = None

    def audit_arguments(self) -> dict[str, Any]:
        return {}

    def loader(self) -> DataLoader[Any]:
        return DataLoader(self.dataset, batch_size=self.batch_size, collate_fn=self.collate)

    def train_dataloader(self) -> DataLoader[Any]:
        return DPDataLoader.from_data_loader(self.loader())

    def inner(self, params: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=self.rate)

    def configure_optimizers(self) -> Any:
        self.net, optimizer, _ = PrivacyEngine(accountant=self.accountant).make_private(
            module=self.net,
            optimizer=self.inner(p for p in self.net.parameters() if p.requires_grad),
            data_loader=self.loader(),
            noise_multiplier=self.sigma,
            max_grad_norm=self.clip,
            **self.engine,
        )
        if self.private is not None:
            optimizer.__class__ = self.private
        return optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return functional.cross_entropy(self.net(batch[0]), batch[1])


class Manual(Private):
    """Manual optimization with Opacus; a kind gives the `loss` of a batch."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.automatic_optimization = False

    def loss(self, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


class ByHand(Base):
    """DP-SGD by hand, per-sample gradients by vmap; a kind gives the loss of one record."""

    batch_size: ClassVar[int] = 25
    sigma: ClassVar[float] = 1.0
    clip: ClassVar[float] = 1.0
    rate: ClassVar[float] = 0.1
    randomness: ClassVar[str] = "error"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.automatic_optimization = False

    def audit_arguments(self) -> dict[str, Any]:
        claim = PrivacyClaim(
            noise_multiplier=self.sigma,
            max_grad_norm=self.clip,
            expected_batch_size=self.batch_size,
            sample_rate=self.batch_size / len(self.dataset),
        )
        return {"claim": claim}

    def train_dataloader(self) -> DataLoader[Any]:
        assert len(self.dataset) % self.batch_size == 0  # so that the rate is the one claimed
        return DPDataLoader.from_data_loader(DataLoader(self.dataset, batch_size=self.batch_size))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=self.rate)

    def params(self) -> Gradients:
        return {name: p.detach() for name, p in self.net.named_parameters()}

    def call(self, params: Gradients, *x: torch.Tensor) -> torch.Tensor:
        """The net's answer on one record, without the batch's dimension."""
        return functional_call(self.net, params, tuple(part[None] for part in x))[0]

    def loss(self, params: Gradients, *record: torch.Tensor) -> torch.Tensor:
        x, y = record
        return functional.cross_entropy(self.call(params, x), y)

    def sample_gradients(self, *batch: torch.Tensor) -> Gradients:
        dims = (None, *(0 for _ in batch))
        return vmap(grad(self.loss), dims, randomness=self.randomness)(self.params(), *batch)

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return (self.clip / (norms + 1e-9)).clamp(max=1.0)

    def clipped_sums(self, grads: Gradients) -> Gradients:
        factors = self.factors(row_norms(grads.values()))
        return {name: torch.einsum("i,i...", factors, g) for name, g in grads.items()}

    def noise(self, total: torch.Tensor) -> torch.Tensor:
        return self.sigma * self.clip * torch.randn_like(total)

    def noisy(self, sums: Gradients) -> Gradients:
        return {name: (s + self.noise(s)) / self.batch_size for name, s in sums.items()}

    def write(self, sums: Gradients) -> None:
        noisy = self.noisy(sums)
        for name, p in self.net.named_parameters():
            p.grad = noisy[name]

    def rows_of(self, *batch: torch.Tensor) -> Gradients:
        return lightning_audit.per_sample(self.sample_gradients(*batch), module=self)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.write(self.clipped_sums(self.rows_of(*batch)))
        self.optimizers().step()


class NoCall(ByHand):
    """By hand as public code has it: nothing of lightning_audit in the module."""

    def rows_of(self, *batch: torch.Tensor) -> Gradients:
        return self.sample_gradients(*batch)
