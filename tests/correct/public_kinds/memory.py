"""Data in memory, sampled in training_step or by an own loader."""

import itertools

import numpy as np
import torch
from correct_kinds.base import ByHand, Manual, NoCall, row_norms
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader, IterableDataset

from lightning_audit import PrivacyClaim
from public_kinds.base import InMemory


class PoissonMask(InMemory, NoCall, kind="in-memory-poisson-mask"):
    """Correct: each record joins by a uniform draw below q; divided by the expected q N. Like
    numpyro / PyTorch notebooks that draw `torch.rand(N) < q` in the loop, without a call."""

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=500)  # all records, once a step

    def training_step(self, batch, batch_idx):
        x, y = batch
        mask = torch.rand(len(x)) < 25 / 500
        self.write(self.clipped_sums(self.sample_gradients(x[mask], y[mask])))
        self.optimizers().step()


class Masked(InMemory, NoCall, kind="in-memory-padded-masked"):
    """Correct: a Poisson batch is padded with record 0 to full physical batches of 16, whose rows
    have weight zero after clipping. Like DPBayes/Towards-Efficient-Scalable-Training-DP (masked
    DP-SGD of fixed shapes)."""

    def train_dataloader(self):
        return range(20)

    def training_step(self, batch, batch_idx):
        x, y = self.dataset.tensors
        chosen = torch.nonzero(torch.rand(len(x)) < 25 / 500).flatten()
        padding = -len(chosen) % 16
        index = torch.cat([chosen, torch.zeros(padding, dtype=torch.long)])
        mask = torch.cat([torch.ones(len(chosen)), torch.zeros(padding)])
        sums = {n: torch.zeros_like(p) for n, p in self.params().items()}
        for rows, weights in zip(index.split(16), mask.split(16)):
            grads = self.sample_gradients(x[rows], y[rows])
            factor = weights * self.factors(row_norms(grads.values()))
            for n, g in grads.items():
                sums[n] += torch.einsum("i,i...", factor, g)
        self.write(sums)
        self.optimizers().step()


class DirectOptimizer(InMemory, Manual, kind="in-memory-dpoptimizer-numpy"):
    """Correct: GradSampleModule and DPOptimizer without an engine; Poisson indices from a numpy
    generator, and the accountant's hook has the rate. Like Opacus' README "advanced" usage."""

    def set_up(self):
        self.rng = np.random.default_rng(self.seed)

    def audit_arguments(self):
        return {"claim": PrivacyClaim(delta=1e-5, sample_rate=0.05)}

    def configure_optimizers(self):
        self.net = GradSampleModule(self.net)
        optimizer = DPOptimizer(
            torch.optim.SGD(self.net.parameters(), lr=0.2),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=25,
        )
        optimizer.attach_step_hook(RDPAccountant().get_optimizer_hook_fn(sample_rate=0.05))
        return optimizer

    def training_step(self, batch, batch_idx):
        x, y = self.dataset.tensors
        index = torch.from_numpy(np.flatnonzero(self.rng.random(500) < 0.05))
        super().training_step((x[index], y[index]), batch_idx)


class BatchSampler(ByHand, kind="uniform-sampler-by-hand"):
    """Correct: Opacus' UniformWithReplacementSampler as batch_sampler of an ordinary DataLoader.
    Like pre-1.0 Opacus examples (imdb, char-lstm) with own clipping."""

    def train_dataloader(self):
        sampler = UniformWithReplacementSampler(num_samples=500, sample_rate=0.05)
        return DataLoader(self.dataset, batch_sampler=sampler)


class PoissonStream(IterableDataset):
    def __init__(self, tensors, rate, seed):
        self.tensors, self.rate, self.rng = tensors, rate, torch.Generator().manual_seed(seed)

    def __iter__(self):
        for _ in range(20):
            mask = torch.rand(len(self.tensors[0]), generator=self.rng) < self.rate
            yield tuple(part[mask] for part in self.tensors)


class Stream(ByHand, kind="iterable-poisson-stream"):
    """Correct: an IterableDataset yields whole Poisson batches from a generator of its own. Like
    tensor loaders of public DP repos (batch_size=None) that avoid collating."""

    def train_dataloader(self):
        return DataLoader(PoissonStream(self.dataset.tensors, 0.05, self.seed), batch_size=None)


class Binomial(InMemory, ByHand, kind="binomial-then-permutation"):
    """Correct: a binomial batch size and then that many records without replacement is the Poisson
    distribution; records are buffers that are not saved. Like google/jax_privacy's batch
    selection."""

    def set_up(self):
        self.register_buffer("x", self.dataset.tensors[0], persistent=False)
        self.register_buffer("y", self.dataset.tensors[1], persistent=False)

    def training_step(self, batch, batch_idx):
        size = int(torch.distributions.Binomial(500, torch.tensor(0.05)).sample())
        index = torch.randperm(500)[:size]
        self.write(self.clipped_sums(self.rows_of(self.x[index], self.y[index])))
        self.optimizers().step()


class GrowingRate(InMemory, NoCall, kind="growing-rate-in-memory"):
    """Correct: the rate grows by a public schedule up to the claimed one, the divisor stays the
    constant of the claim. Like batch size schedules of lxuechen/private-transformers forks."""

    def train_dataloader(self):
        return itertools.repeat(0)  # Lightning skips None

    def training_step(self, batch, batch_idx):
        x, y = self.dataset.tensors
        mask = torch.rand(len(x)) < 0.05 * min(1.0, 0.5 + self.global_step / 60)
        self.write(self.clipped_sums(self.sample_gradients(x[mask], y[mask])))
        self.optimizers().step()
