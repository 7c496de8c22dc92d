from __future__ import annotations

import pytest
import torch
from opacus.accountants import GaussianAccountant

from lightning_audit.testing.trainings import (
    Accumulated,
    GdpAccountant,
    MergedBatches,
    PackedSequences,
    SeededNoise,
    SkipsEmptyBatches,
    random_data,
)

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


def noise_of(optimizer) -> torch.Tensor:
    for p in optimizer.params:
        p.summed_grad = torch.zeros_like(p)
    optimizer.add_noise()
    return torch.cat([p.grad.flatten() for p in optimizer.params])


def test_a_resumed_training_draws_the_noise_of_the_first_run_again() -> None:
    first, second = (noise_of(SeededNoise().configure_optimizers()) for _ in range(2))
    assert torch.equal(first, second)


def test_the_steps_are_told_to_the_accountant_of_gaussian_dp() -> None:
    held = GdpAccountant().configure_optimizers().step_hook.__closure__
    assert any(isinstance(cell.cell_contents, GaussianAccountant) for cell in held)


def test_without_poisson_sampling_the_divisor_is_the_loaders_batch() -> None:
    assert Accumulated().configure_optimizers().expected_batch_size == 16


def test_some_poisson_batches_of_two_are_empty() -> None:
    torch.manual_seed(0)
    sizes = [len(x) for x, _ in SkipsEmptyBatches().train_dataloader()]
    assert 0 in sizes
    assert sum(sizes) / len(sizes) == pytest.approx(2.0, rel=0.2)


def test_an_epoch_of_split_batches_is_estimated_and_not_counted() -> None:
    assert len(MergedBatches().data) == 256
    assert len(MergedBatches.splitter(sampler=[[0]] * 3, max_batch_size=8, optimizer=None)) > 0


def test_scores_of_packed_sequences_are_those_of_their_own_record() -> None:
    net = PackedSequences().net
    x = random_data(records=6).tensors[0]
    assert torch.allclose(net(x)[2], net(x[2:3])[0], atol=1e-5)
