from __future__ import annotations

import torch
from one_parameter import private
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import wrap_data_loader
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.lints.settings import carries_over, signals_ahead, splits_batches

DATA = TensorDataset(torch.zeros(40, 2))


def test_loader_of_a_batch_memory_manager_splits_batches() -> None:
    loader = DPDataLoader(DATA, sample_rate=0.2)
    optimizer = private()
    split = wrap_data_loader(data_loader=loader, max_batch_size=3, optimizer=optimizer)
    assert splits_batches([loader, split])
    assert not splits_batches([loader])


def test_signals_of_batches_that_workers_load_ahead_are_no_rest() -> None:
    assert signals_ahead(DataLoader(DATA)) == 2
    loader = DataLoader(DATA, num_workers=2, prefetch_factor=3)
    assert signals_ahead([loader]) == 8
    optimizer = private()
    optimizer._step_skip_queue = [False] * 8
    assert not carries_over(optimizer, 8)
    optimizer._step_skip_queue.append(True)
    assert carries_over(optimizer, 8)


def test_gradients_that_wait_for_the_end_of_their_batch_are_a_rest() -> None:
    optimizer = private()
    assert not carries_over(optimizer, 2)
    optimizer.params[0].summed_grad = torch.zeros(1)
    assert not carries_over(optimizer, 2)  # of a batch that has ended, and not emptied yet
    optimizer._is_last_step_skipped = True
    assert carries_over(optimizer, 2)
