"""Diffusion and other generative models."""

import torch
from correct_kinds.base import STEPS, ByHand, Manual, Private
from correct_kinds.data import diabetes, digits, flat_digits, public_digits, tensors
from sklearn.datasets import make_moons
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from lightning_audit import Allow
from public_kinds.base import NoCall, mlp


class DPDM(Private, kind="dpdm-noise-multiplicity"):
    """Correct: K times and noises of a record lie in the middle dimension, their losses are
    averaged in the record's own loss. Like nv-tlabs/DPDM (noise multiplicity)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(65, 32, 64)

        def forward(self, x, t):
            return self.body(torch.cat([x, t], dim=-1))

    def make_data(self):
        return flat_digits()

    def training_step(self, batch, batch_idx):
        x = 2 * batch[0][:, None].expand(-1, 4, -1) - 1
        t, noise = torch.rand(len(x), 4, 1), torch.randn(len(x), 4, 64)
        told = self.net((1 - t).sqrt() * x + t.sqrt() * noise, t)
        return (told - noise).square().mean((1, 2)).mean()


class ScoreMatching(ByHand, kind="score-matching-moons"):
    """Correct: denoising score matching of single points at random scales by vmap, with an average
    of released weights. Like yang-song/score_sde on toy data with DP-SGD by hand."""

    randomness, clip = "different", 0.5

    def make_net(self):
        return mlp(3, 32, 2, act=nn.SiLU)

    def make_data(self):
        return TensorDataset(*tensors(make_moons(500, noise=0.05, random_state=self.seed)[0]))

    def set_up(self):
        self.ema = {n: p.detach().clone() for n, p in self.net.named_parameters()}

    def loss(self, params, x):
        scale, noise = 0.05 + torch.rand(1), torch.randn(2)
        told = self.call(params, torch.cat([x + scale * noise, scale]))
        return (told + noise).square().sum()

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        for n, p in self.net.named_parameters():
            self.ema[n].mul_(0.95).add_(p.detach(), alpha=0.05)


class LatentFlow(NoCall, kind="latent-flow-matching"):
    """Correct: a frozen encoder of public digits, then flow matching of latents; a record's path
    uses its own noise. Like DP-LDM (SaiyueLyu/DP-LDM) with a public autoencoder, no call."""

    randomness = "different"

    def make_net(self):
        return mlp(9, 24, 8, act=nn.GELU)

    def make_data(self):
        return flat_digits()

    def set_up(self):
        self.register_buffer("encoder", torch.pca_lowrank(public_digits()[0], q=8)[2])

    def loss(self, params, x, y):
        z, e, t = x @ self.encoder, torch.randn(8), torch.rand(1)
        return (self.call(params, torch.cat([t * z + (1 - t) * e, t])) - (z - e)).square().mean()


class MaskedLinear(nn.Linear):
    def __init__(self, inputs, outputs, mask):
        super().__init__(inputs, outputs)
        self.mask = mask.float()  # constant; a buffer is refused by Opacus

    def forward(self, x):
        return functional.linear(x, self.weight * self.mask, self.bias)


class MADE(Private, kind="made-masked-linear"):
    """Correct: an autoregressive model of binary pixels; the masked layer is a subclass for which
    Opacus takes functorch, entries under the mask get noise alone. Like karpathy/pytorch-made."""

    def make_net(self):
        order, hidden = torch.arange(64), torch.arange(96) % 63
        return nn.Sequential(
            MaskedLinear(64, 96, hidden[:, None] >= order[None]),
            nn.ReLU(),
            MaskedLinear(96, 64, order[:, None] > hidden[None]),
        )

    def make_data(self):
        x, y = digits()
        return TensorDataset((x > 0.5).float(), y)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        return functional.binary_cross_entropy_with_logits(self.net(x), x)


class Energy(Private, kind="noise-contrastive-energy"):
    """Correct: each record is told from one draw of a public noise distribution, two passes of one
    row. Like noise-contrastive estimation examples of energy models under Opacus."""

    def make_net(self):
        return mlp(10, 24, 1, act=nn.Softplus)

    def make_data(self):
        return TensorDataset(diabetes()[0])

    def training_step(self, batch, batch_idx):
        x = batch[0]
        noise = 1.2 * torch.randn_like(x)
        log_q = lambda v: -(v / 1.2).square().sum(1) / 2
        real, fake = -self.net(x)[:, 0] - log_q(x), -self.net(noise)[:, 0] - log_q(noise)
        return (functional.softplus(-real) + functional.softplus(fake)).mean()


class PairedGAN(Manual, kind="gan-paired-fakes"):
    """Correct: the discriminator's row is a record and one fake, clipped once; the generator sees
    the private discriminator and a fixed number of draws. Like Opacus' dcgan example, with one
    step for both parts."""

    trainer_arguments = {"max_steps": 2 * STEPS}

    def audit_arguments(self):
        return {
            "allow": [Allow("no_dp", optimizer="G", reason="sees the private D and noise only")]
        }

    def make_net(self):
        return mlp(64, 24, 1, act=nn.LeakyReLU)

    def make_data(self):
        return flat_digits()

    def set_up(self):
        self.G = mlp(8, 24, 64, act=nn.ReLU)

    def configure_optimizers(self):
        return [super().configure_optimizers(), torch.optim.Adam(self.G.parameters(), lr=1e-3)]

    def training_step(self, batch, batch_idx):
        x = batch[0]
        d, g = self.optimizers()
        d.zero_grad()
        fake = self.G(torch.randn(len(x), 8)).sigmoid().detach()
        real, told = self.net(x)[:, 0], self.net(fake)[:, 0]
        self.manual_backward((functional.softplus(-real) + functional.softplus(told)).mean())
        d.step()
        g.zero_grad()
        self.net.disable_hooks()
        self.manual_backward(
            functional.softplus(-self.net(self.G(torch.randn(24, 8)).sigmoid())).mean()
        )
        self.net.enable_hooks()
        g.step()
