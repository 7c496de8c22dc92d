"""What surrounds the private gradient: modes of Opacus, noise sources, averages, schedules."""

import random
import secrets
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from correct_kinds.base import Manual, Private, mlp
from correct_kinds.data import flat_digits, public_digits


class AveragedWeights(Private, kind="average-as-teacher"):
    """Correct: the average is made of released weights. Unusual: the teacher of consistency is
    this average, with a view of the record of its own; it follows after each update."""

    def set_up(self) -> None:
        self.__dict__["average"] = deepcopy(self.net).requires_grad_(requires_grad=False)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        scores = self.net(x + 0.1 * torch.randn_like(x))
        told = self.average(x + 0.1 * torch.randn_like(x)).softmax(1)
        return functional.cross_entropy(scores, y) + functional.mse_loss(scores.softmax(1), told)

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            for mean, p in zip(self.average.parameters(), self.net.parameters(), strict=True):
                mean.lerp_(p, 0.1)


class Langevin(Private, kind="langevin-and-projection"):
    """Correct: more noise and a projection after the update are post-processing. Unusual: weights
    change outside of the optimizer, in on_train_batch_end, by torch's global generator."""

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            for p in self.net.parameters():
                p.add_(0.002 * torch.randn_like(p))
                p.mul_((5.0 / p.norm().clamp(min=1e-6)).clamp(max=1.0))


class Rewarmed(Private, kind="shrink-and-perturb"):
    """Correct: shrinking and perturbing weights is post-processing. Unusual: it happens at every
    twentieth step before the forward pass, in on_train_batch_start, by numpy's global generator."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step % 20 == 19:
            with torch.no_grad():
                for p in self.net.parameters():
                    fresh = np.random.normal(0, 0.02, tuple(p.shape)).astype(np.float32)
                    p.mul_(0.9).add_(torch.from_numpy(fresh))


class Ghost(Private, kind="ghost-dropout-unseeded"):
    """Correct: ghost clipping, the second backward pass of the same graph. Unusual: dropout, and
    noise on the inputs by an unseeded `default_rng()` of each step."""

    criterion: Any = None

    def make_net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))

    def configure_optimizers(self) -> Any:
        self.net, optimizer, criterion, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9),
            data_loader=self.loader(),
            criterion=nn.CrossEntropyLoss(label_smoothing=0.1),
            noise_multiplier=self.sigma,
            max_grad_norm=self.clip,
            grad_sample_mode="ghost",
        )
        self.__dict__["criterion"] = criterion
        return optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        noise = np.random.default_rng().normal(0, 0.1, tuple(x.shape)).astype(np.float32)
        return {"loss": self.criterion(self.net(x + torch.from_numpy(noise)), y)}


class MicroBatches(Manual, kind="micro-batches-own-chunks"):
    """Correct: a logical batch in chunks through Opacus' accumulation, noise once, the divisor
    Opacus' own. Unusual: the module cuts chunks itself and draws noise for each chunk."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        counted = self.optimizers()  # whose steps Lightning counts: those of logical batches
        optimizer = counted.optimizer
        chunks = list(zip(batch[0].split(8), batch[1].split(8), strict=True))
        for number, (x, y) in enumerate(chunks, start=1):
            last = number == len(chunks)
            optimizer.signal_skip_step(do_skip=not last)
            loss = functional.cross_entropy(self.net(x + 0.1 * torch.randn_like(x)), y)
            self.manual_backward(loss)
            (counted if last else optimizer).step()
            optimizer.zero_grad()


class NoiseGenerator(Private, kind="noise-generator-random-rate"):
    """Correct: noise by a generator that the operating system seeds once. Unusual: it is given to
    `make_private`, and the learning rate of a step is drawn by Python's `random`."""

    def set_up(self) -> None:
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        self.__dict__["engine"] = {"noise_generator": generator}

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = random.uniform(0.05, 0.15)
        super().optimizer_step(epoch, batch_idx, optimizer, closure)


class NumpyNoise(DPOptimizer):
    """Noise from numpy, in double precision."""

    def add_noise(self) -> None:
        rng = self.__dict__.setdefault("rng", np.random.default_rng(secrets.randbits(128)))
        std = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            noise = torch.from_numpy(rng.normal(0.0, std, tuple(p.summed_grad.shape)))
            p.grad = (p.summed_grad + noise.to(p.summed_grad)).view_as(p)
            p.summed_grad._processed = True


class OwnNoise(Private, kind="numpy-noise"):
    """Correct: Gaussian noise of sigma times C on the sum. Unusual: numpy draws it with a seed of
    `secrets`, in an own `add_noise`."""

    private: ClassVar[Any] = NumpyNoise


class ClipOfPublicData(Manual, kind="clip-of-public-gradients"):
    """Correct: the clipping norm of a step is a quantile of public gradients, and Opacus scales
    its noise with it. Unusual: it changes in every step, with public images drawn by torch."""

    def make_data(self) -> TensorDataset:
        self.public = public_digits()
        self.__dict__["copy"] = mlp(*self.widths)
        return flat_digits()

    def loss(self, batch: Any) -> torch.Tensor:
        chosen = torch.randperm(200)[:16]
        x, y = (part[chosen] for part in self.public)
        net = self.copy  # without the hooks of Opacus
        net.load_state_dict(self.net._module.state_dict())
        norms = []
        for image, label in zip(x, y, strict=True):
            scores = net(image[None])
            found = torch.autograd.grad(
                functional.cross_entropy(scores, label[None]), list(net.parameters())
            )
            norms.append(torch.stack([g.norm() for g in found]).norm())
        optimizer = self.trainer.optimizers[0]
        optimizer.max_grad_norm = float(torch.stack(norms).quantile(0.5).clamp(0.1, 10.0))
        return functional.cross_entropy(self.net(batch[0]), batch[1])
