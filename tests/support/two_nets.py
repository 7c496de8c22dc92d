"""A training of two nets with a private optimizer each."""

from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from training_support import ManualModule, mlp, random_data, replace_optimizer

HIDDEN = 128
RECORDS = 1600
RATE = 0.01
STEPS = 100  # of an epoch


def two_nets(hidden: int = HIDDEN) -> nn.ModuleDict:
    return nn.ModuleDict({"actor": mlp(hidden=hidden), "critic": mlp(hidden=hidden)})


class TwoNets(ManualModule):
    """Two nets with an optimizer each, two noise multipliers and norms, and so many accountants."""

    noise: tuple[float, float] = (1.0, 1.5)
    norms: tuple[float, float] = (1.0, 0.4)
    records = RECORDS

    def __init__(
        self,
        net: nn.ModuleDict | None = None,
        *,
        faults: tuple[type[DPOptimizer] | None, type[DPOptimizer] | None] = (None, None),
        engines: int = 1,
        generators: tuple[torch.Generator | None, torch.Generator | None] = (None, None),
        hidden: int = 32,
        **kwargs: Any,
    ) -> None:
        dataset = kwargs.pop("dataset", random_data(self.records))
        super().__init__(net or two_nets(hidden), dataset=dataset, **kwargs)
        self.faults = faults
        self.generators = generators
        self.engines = [PrivacyEngine(accountant="rdp") for _ in range(engines)]

    def configure_optimizers(self) -> Any:
        optimizers = []
        for j, (name, net) in enumerate(self.net.items()):
            self.engine = self.engines[j % len(self.engines)]
            self.net[name], optimizer, _ = self.make_private(
                module=net,
                optimizer=self.inner(net.parameters()),
                noise_multiplier=self.noise[j],
                max_grad_norm=self.norms[j],
                noise_generator=self.generators[j],
            )
            fault = self.faults[j]
            optimizers.append(replace_optimizer(optimizer, fault) if fault else optimizer)
        return optimizers

    def loss(self, name: str, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(self.net[name](batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for name, optimizer in zip(self.net, self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(self.loss(name, batch))
            optimizer.step()


class TwoOptimizers(TwoNets):
    """The same with one noise multiplier and norm."""

    noise = norms = (1.0, 1.0)
    records = 512
