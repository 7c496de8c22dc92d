"""A generator that is trained against a private discriminator, as in Opacus' GAN example."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from training_support import ManualModule, random_data

from lightning_audit import Allow

REASON = "sees only the private discriminator and noise"
GENERATOR = Allow("no_dp", optimizer="G", reason=REASON)
_LATENT = 4


class Gan(ManualModule):
    """The discriminator is ``net``, with a private optimizer; ``G`` has Adam."""

    def __init__(self, **kwargs: Any) -> None:
        dataset = kwargs.pop("dataset", None) or random_data(512)
        width = dataset.tensors[0].shape[1]
        net = nn.Sequential(nn.Linear(width, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
        super().__init__(net, dataset=dataset, **kwargs)
        self.G = nn.Sequential(nn.Linear(_LATENT, 32), nn.ReLU(), nn.Linear(32, width))

    def configure_optimizers(self) -> Any:
        private = super().configure_optimizers()
        return [private, torch.optim.Adam(self.G.parameters(), lr=1e-3)]

    def _latent(self, count: int) -> torch.Tensor:
        return torch.randn(count, _LATENT, device=self.device)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        discriminator, generator = self.optimizers()[:2]
        records = batch[0]
        discriminator.zero_grad()
        fakes = self.G(self._latent(len(records))).detach()
        # One backward pass: a record and a fake make one per-sample gradient.
        self.manual_backward(_loss(self.net(records), 1.0) + _loss(self.net(fakes), 0.0))
        discriminator.step()
        self.net.disable_hooks()
        self.net.requires_grad_(False)
        generator.zero_grad()
        fakes = self.G(self._latent(self.batch_size))
        self.manual_backward(_loss(self.net(fakes), 1.0))
        generator.step()
        self.net.requires_grad_(True)
        self.net.enable_hooks()


class GanWithEncoder(Gan):
    """A third optimizer trains on the records themselves."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        width = self.dataset.tensors[0].shape[1]
        self.encoder = nn.Linear(width, width)

    def configure_optimizers(self) -> Any:
        return [*super().configure_optimizers(), torch.optim.SGD(self.encoder.parameters(), lr=0.1)]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        encoder = self.optimizers()[2]
        encoder.zero_grad()
        self.manual_backward(functional.mse_loss(self.encoder(batch[0]), batch[0]))
        encoder.step()
        super().training_step(batch, batch_idx)


def _loss(scores: torch.Tensor, label: float) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))


class Dcgan(Gan):
    """Opacus' dcgan.py: one lot of fakes, as many as the records, for either of the two steps."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        discriminator, generator = self.optimizers()[:2]
        records = batch[0]
        discriminator.zero_grad(set_to_none=True)
        fakes = self.G(self._latent(len(records)))
        real = _loss(self.net(records), 1.0)
        self.manual_backward(real + _loss(self.net(fakes.detach()), 0.0))
        discriminator.step()
        discriminator.zero_grad(set_to_none=True)
        generator.zero_grad()
        self.manual_backward(_loss(self.net(fakes), 1.0))
        generator.step()
