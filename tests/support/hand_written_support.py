"""DP-SGD written by hand, in the ways that people write it, and the faults that they make."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from training_support import mlp, random_data

import lightning_audit
from lightning_audit import PrivacyClaim

SIGMA, CLIP, BATCH, RECORDS = 1.0, 1.0, 16, 4096
CLAIM = PrivacyClaim(
    noise_multiplier=SIGMA,
    max_grad_norm=CLIP,
    expected_batch_size=BATCH,
    sample_rate=BATCH / RECORDS,
)

Gradients = dict[str, torch.Tensor]


def sample_norms(grads: Gradients) -> torch.Tensor:
    return torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)


class HandWritten(pl.LightningModule):
    """Manual optimization, per-sample gradients by vmap; the parts are what faults override."""

    def __init__(self, *, ask: bool = True, dataset: TensorDataset | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net: nn.Module = mlp()
        self.ask = ask
        self.dataset = dataset or random_data(RECORDS)

    def train_dataloader(self) -> DataLoader:
        return DPDataLoader.from_data_loader(DataLoader(self.dataset, batch_size=BATCH))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.write_gradient(self.sample_gradients(batch))
        self.optimizers().step()

    def sample_gradients(self, batch: Any) -> Gradients:
        def loss(params: Gradients, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(functional_call(self.net, params, x[None]), y[None])

        params = {name: p.detach() for name, p in self.net.named_parameters()}
        grads = vmap(grad(loss), in_dims=(None, 0, 0))(params, *batch)
        return lightning_audit.per_sample(grads, module=self) if self.ask else grads

    def write_gradient(self, grads: Gradients) -> None:
        sums = self.clipped_sums(grads)
        for name, p in self.net.named_parameters():
            p.grad = (sums[name] + self.noise(p)) / BATCH

    def clipped_sums(self, grads: Gradients) -> Gradients:
        factors = (CLIP / (sample_norms(grads) + 1e-9)).clamp(max=1.0)
        return {name: torch.einsum("i,i...", factors, g) for name, g in grads.items()}

    def noise(self, p: torch.Tensor) -> torch.Tensor:
        return SIGMA * CLIP * torch.randn_like(p)


class OneByOne(HandWritten):
    """A loop over the samples of a batch."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        params = dict(self.net.named_parameters())
        sums = {name: torch.zeros_like(p) for name, p in params.items()}
        for x, y in zip(*batch, strict=True):
            loss = functional.cross_entropy(self.net(x[None]), y[None])
            found = torch.autograd.grad(loss, list(params.values()))
            self._add(sums, dict(zip(params, found, strict=True)))
        for canary in lightning_audit.rows(module=self.net) if self.ask else ():
            self._add(sums, canary)
        for name, p in params.items():
            p.grad = (sums[name] + self.noise(p)) / BATCH
        self.optimizers().step()

    def _add(self, sums: Gradients, sample: Gradients) -> None:
        norm = torch.stack([g.norm() for g in sample.values()]).norm()
        for name, g in sample.items():
            sums[name] += g * (CLIP / (norm + 1e-9)).clamp(max=1.0)


class InHook(HandWritten):
    """Automatic optimization; the gradient is made private in a hook of the module."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = True

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.kept = HandWritten.sample_gradients(self, batch)
        return sum(p.sum() * 0 for p in self.parameters())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.write_gradient(self.kept)


class PrivateSGD(torch.optim.SGD):
    """Clips and noises what it finds in ``grad_sample``, then updates as SGD does."""

    module: HandWritten

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.make_private()
        super().step()
        for p in self.module.parameters():
            p.grad = None
        return loss

    def make_private(self) -> None:
        grads = {n: p.grad_sample for n, p in self.module.net.named_parameters()}
        if self.module.ask:
            grads = lightning_audit.per_sample(grads, module=self.module)
        self.module.write_gradient(grads)


class OwnOptimizer(HandWritten):
    """Automatic optimization with an optimizer of one's own."""

    optimizer_class: type[torch.optim.Optimizer] = PrivateSGD

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = True

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer_class(self.parameters(), lr=0.05)
        optimizer.module = self
        return optimizer

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ask, self.ask = self.ask, False
        grads = self.sample_gradients(batch)
        self.ask = ask
        for name, p in self.net.named_parameters():
            p.grad_sample = grads[name]
        return sum(p.sum() * 0 for p in self.parameters())


class Holding(torch.optim.Optimizer):
    """Keeps one of torch's optimizers, which updates."""

    module: HandWritten

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.updates = torch.optim.SGD(self.param_groups, lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        PrivateSGD.make_private(self)
        self.updates.step()
        return loss


class HoldingOptimizer(OwnOptimizer):
    optimizer_class = Holding


class SelfContained(Holding):
    """Updates the parameters itself, from a gradient that it shows nobody."""

    def __init__(self, params: Any, lr: float) -> None:
        torch.optim.Optimizer.__init__(self, params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        PrivateSGD.make_private(self)
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad
        return loss


class SelfContainedOptimizer(OwnOptimizer):
    optimizer_class = SelfContained
