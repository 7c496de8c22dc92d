"""What these kinds share: data, data in memory, the second half of Opacus' clipping."""

from typing import Any

import numpy as np
import torch
from correct_kinds.data import cancer, normals, tensors
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch.utils.data import DataLoader, TensorDataset


class InMemory:
    """Data lie in memory; the loader only counts the steps of an epoch."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.arange(20)), batch_size=1)


def add_clipped(optimizer: DPOptimizer, factor: torch.Tensor) -> None:
    """The second half of Opacus' clip_and_accumulate, as public subclasses repeat it."""
    for p in optimizer.params:
        _check_processed_flag(p.grad_sample)
        grad = torch.einsum("i,i...", factor, optimizer._get_flat_grad_sample(p))
        p.summed_grad = grad if p.summed_grad is None else p.summed_grad + grad
        _mark_as_processed(p.grad_sample)


def users(seed: int, count: int = 500, rows: int = 4) -> TensorDataset:
    """A record is a user with several rows."""
    x = normals(seed, count, rows, 10)
    y = x[..., :3].sum(-1) + 0.3 * normals(seed + 50, count, 1)
    return TensorDataset(*tensors(x / 3, y))


def grouped(seed: int) -> TensorDataset:
    """The tumours of cancer, with a group (one in five is of the minority) of each record."""
    x, y = cancer()
    group = (np.random.default_rng(seed).random(len(x)) < 0.2).astype(np.int64)
    return TensorDataset(x + 0.2 * torch.tensor(group)[:, None], y, torch.tensor(group))
