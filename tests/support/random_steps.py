"""Correct trainings whose step draws random numbers, or reads inputs, in unusual ways."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from correct_steps import Trains, mlp
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from training_support import digits

import lightning_audit
from lightning_audit import PrivacyClaim

Gradients = dict[str, torch.Tensor]

# ------------------------------------------------------------------ Opacus, random inputs


class ByNumpy(Trains):
    """Noise of NumPy's global generator on each record."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        noise = np.random.normal(size=tuple(x.shape))  # as much code has it
        return super().training_step((x + 0.3 * torch.as_tensor(noise).to(x), y), batch_idx)


class ByPython(Trains):
    """Each record is shifted by `random`."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        moved = [row.roll(random.randint(-3, 3)) for row in x]
        x = torch.stack(moved) if moved else x
        return super().training_step((x, y), batch_idx)


class ByOwnGenerator(Trains):
    """Each record is turned around or not, by a generator of the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coins = torch.Generator().manual_seed(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        turned = torch.rand(len(x), 1, generator=self.coins) < 0.5
        return super().training_step((torch.where(turned, x.flip(1), x), y), batch_idx)


class Thinned(Trains):
    """Records are left out at random, by Python's generator of the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coins = random.Random(5)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        weights = torch.tensor([float(self.coins.random() < 0.7) for _ in x]).to(x)
        return (weights * functional.cross_entropy(self.net(x), y, reduction="none")).mean()


class FreshGenerator(Trains):
    """A generator without a seed, made in each step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        noise = np.random.default_rng().normal(size=tuple(x.shape))
        return super().training_step((x + 0.3 * torch.as_tensor(noise).to(x), y), batch_idx)


class SeededGenerator(Trains):
    """A generator that is made in each step, of a seed that torch draws."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        own = torch.Generator().manual_seed(int(torch.randint(2**40, ())))
        x = x + 0.3 * torch.randn(x.shape, generator=own)
        return super().training_step((x, y), batch_idx)


# ------------------------------------------------------------------ Opacus, random clipping


class Dropped(DPOptimizer):
    """Rows are left out at random behind the clipping, which amplifies the privacy."""

    def clip_and_accumulate(self) -> None:
        rows = self.grad_samples
        norms = torch.cat([g.flatten(1) for g in rows], 1).norm(dim=1)
        factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        factors = factors * (torch.rand(len(rows[0])) < 0.8)
        for p, g in zip(self.params, rows, strict=True):
            total = torch.einsum("i,i...", factors, g)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            p.grad_sample._processed = True


class NoiseOfTheSystem(DPOptimizer):
    """Noise of a generator that the system's entropy seeds at each step."""

    def add_noise(self) -> None:
        self.generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "big"))
        super().add_noise()


class RandomNorm(Trains):
    """The clipping norm of a step, and the noise with it, is drawn before its data are read."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trainer.optimizers[0].max_grad_norm = float(0.5 + torch.rand(()))
        return super().training_step(batch, batch_idx)


# ------------------------------------------------------------------ inputs with a domain


class Prices(Trains):
    """The logarithm of prices, the root of counts and the arc sine of shares."""

    def data(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(512, 64, generator=generator)
        x[:, :20] = torch.exp(6.0 + 2.0 * torch.randn(512, 20, generator=generator))
        x[:, 20:40] = torch.poisson(5.0 * torch.rand(512, 20, generator=generator), generator)
        return TensorDataset(x, torch.randint(0, 10, (512,), generator=generator))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        seen = torch.cat([x[:, :20].log(), x[:, 20:40].sqrt(), torch.asin(x[:, 40:])], 1)
        return super().training_step((seen, y), batch_idx)


class CodesAmongFloats(Trains):
    """Columns of whole numbers that choose rows of a table, among columns of measurements."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(20, 8), nn.Linear(8 + 60, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.cat([self.words(x[:, :4].long()).mean(1), x[:, 4:]], 1))

    def data(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        x = 300.0 * torch.randn(512, 64, generator=generator)
        x[:, :4] = torch.randint(0, 20, (512, 4), generator=generator).float()
        return TensorDataset(x, torch.randint(0, 10, (512,), generator=generator))


# ------------------------------------------------------------------ by hand


class ByHand(Trains):
    """DP-SGD by hand: hand the gradients over, clip, add noise, update."""

    size = 32
    claim: ClassVar[PrivacyClaim] = PrivacyClaim(
        noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=32, sample_rate=32 / 512
    )

    def __init__(self) -> None:
        super().__init__(mlp())
        self.automatic_optimization = False
        self.coins = torch.Generator().manual_seed(3)

    def train_dataloader(self) -> DataLoader[Any]:
        return DPDataLoader.from_data_loader(DataLoader(digits(), batch_size=self.size))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.05)

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        """What the net sees of the records."""
        return x

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> Gradients:
        params = {name: p.detach() for name, p in self.net.named_parameters()}

        def loss(params: Gradients, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            scores = functional_call(self.net, params, (x[None],))
            return functional.cross_entropy(scores, y[None])

        return vmap(grad(loss), (None, 0, 0))(params, self.seen(x), y)

    def parts(self, x: torch.Tensor, y: torch.Tensor) -> Iterator[Gradients]:
        """Per-sample gradients that are handed over and clipped together."""
        yield lightning_audit.per_sample(self.gradients(x, y), module=self)

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return (1.0 / (norms + 1e-9)).clamp(max=1.0)

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn_like(like)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        sums = {name: torch.zeros_like(p) for name, p in self.net.named_parameters()}
        for grads in self.parts(*batch):
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
            factors = self.factors(norms)
            for name, g in grads.items():
                sums[name] += torch.einsum("i,i...", factors, g)
        for name, p in self.net.named_parameters():
            p.grad = (sums[name] + self.noise(sums[name])) / self.size
        self.optimizers().step()


class NumpyByHand(ByHand):
    """Noise of NumPy on each record."""

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.3 * torch.as_tensor(np.random.normal(size=tuple(x.shape))).to(x)


class DrawsOfRows(ByHand):
    """A number for each row between the hand-over and the noise, which leaves some out."""

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return super().factors(norms) * (torch.rand(len(norms)) < 0.8)


class DrawsThrownAway(ByHand):
    """A number for each row between the hand-over and the noise, which is not used."""

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        torch.rand(len(norms))
        return super().factors(norms)


class DropsAndNoise(ByHand):
    """One generator, made in each step, leaves rows out and draws the noise."""

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        self.fresh = torch.Generator().manual_seed(int(torch.randint(2**40, ())))
        return super().factors(norms) * (torch.rand(len(norms), generator=self.fresh) < 0.8)

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=self.fresh)


class DrawsOfContent(ByHand):
    """Numbers behind the hand-over for rows that are not zero alone."""

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        torch.rand(int((norms > 0).sum()))
        return super().factors(norms)


class OneByOne(ByHand):
    """Each record is augmented, handed over and clipped by itself."""

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.3 * torch.randn_like(x)

    def parts(self, x: torch.Tensor, y: torch.Tensor) -> Iterator[Gradients]:
        for row in range(len(x)):
            grads = self.gradients(x[row : row + 1], y[row : row + 1])
            yield lightning_audit.per_sample(grads, module=self)


class Chunks(OneByOne):
    """The same in chunks of eight, by a generator of the module."""

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.3 * torch.randn(x.shape, generator=self.coins)

    def parts(self, x: torch.Tensor, y: torch.Tensor) -> Iterator[Gradients]:
        for begin in range(0, len(x), 8):
            grads = self.gradients(x[begin : begin + 8], y[begin : begin + 8])
            yield lightning_audit.per_sample(grads, module=self)


class RowsFirst(ByHand):
    """`rows` ahead of a loop that augments each record."""

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.3 * torch.randn_like(x)

    def parts(self, x: torch.Tensor, y: torch.Tensor) -> Iterator[Gradients]:
        for own in lightning_audit.rows(module=self):
            yield {name: g[None] for name, g in own.items()}
        for row in range(len(x)):
            yield self.gradients(x[row : row + 1], y[row : row + 1])


class SystemByHand(ByHand):
    """Noise of a generator that the system's entropy seeds."""

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        own = torch.Generator().manual_seed(secrets.randbits(60))
        return torch.randn(like.shape, generator=own)


class NumpyNoise(ByHand):
    """Noise of one of NumPy's generators without a seed."""

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(np.random.default_rng().normal(size=tuple(like.shape))).to(like)


class SystemRandomNoise(ByHand):
    """Noise of the system's own generator, which the module holds."""

    def __init__(self) -> None:
        super().__init__()
        self.system = random.SystemRandom()

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        values = [self.system.gauss(0.0, 1.0) for _ in range(like.numel())]
        return torch.tensor(values).view_as(like)


class UnseenNoise(ByHand):
    """Noise that nothing can set: torch seeds it of the system's entropy itself."""

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        own = torch.Generator()
        own.seed()
        return torch.randn(like.shape, generator=own)


def _net(kind: type[Trains]) -> Callable[[], Trains]:
    return lambda: kind(mlp())


#: Correct trainings by name.
CORRECT: dict[str, Callable[[], Trains]] = {
    "augmentation by NumPy": _net(ByNumpy),
    "augmentation by random": _net(ByPython),
    "augmentation by an own generator": _net(ByOwnGenerator),
    "records left out by an own random.Random": _net(Thinned),
    "augmentation by a fresh generator": _net(FreshGenerator),
    "augmentation by a fresh generator of a drawn seed": _net(SeededGenerator),
    "rows dropped behind the clipping": lambda: Trains(mlp(), private=Dropped),
    "Opacus with noise of os.urandom": lambda: Trains(mlp(), private=NoiseOfTheSystem),
    "a clipping norm that is drawn": _net(RandomNorm),
    "logarithms, roots and arc sines": _net(Prices),
    "codes among floats": lambda: CodesAmongFloats(CodesAmongFloats.Net()),
    "by hand": ByHand,
    "by hand, augmentation by NumPy": NumpyByHand,
    "by hand, rows dropped behind the hand-over": DrawsOfRows,
    "by hand, draws thrown away": DrawsThrownAway,
    "by hand, rows dropped and noise by a fresh generator": DropsAndNoise,
    "by hand, draws for rows that are not zero": DrawsOfContent,
    "by hand, record by record": OneByOne,
    "by hand, in chunks": Chunks,
    "by hand, rows() first": RowsFirst,
    "by hand, noise of secrets": SystemByHand,
    "by hand, noise of default_rng()": NumpyNoise,
    "by hand, noise of SystemRandom": SystemRandomNoise,
    "by hand, noise that cannot be set": UnseenNoise,
}
