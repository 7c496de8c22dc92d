"""Losses of single records: whose they are, of what shape, and what is left as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from training_support import trainer_for

from lightning_audit.callbacks.epsilon_star import fixed_loader, losses_of

NUMBERS = TensorDataset(torch.arange(300.0)[:, None])


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        return iter(NUMBERS)


def own_numbers(_: Any, batch: Any) -> torch.Tensor:
    return batch[0][:, 0]


def test_at_most_so_many_records_are_taken_evenly_and_in_order(tmp_path) -> None:
    trainer = trainer_for(tmp_path)
    shuffled = DataLoader(NUMBERS, batch_size=7, shuffle=True)
    for most, expected in ((4, [0, 100, 199, 299]), (None, range(300))):
        loader = fixed_loader("train_dataloader", shuffled, most)
        assert loader.batch_size == 7
        assert losses_of(trainer, nn.Identity(), loader, own_numbers, most).tolist() == [*expected]


def test_no_more_batches_are_read_than_the_records_need(tmp_path) -> None:
    read = []

    def losses(_: Any, batch: torch.Tensor) -> torch.Tensor:
        read.append(len(batch))
        return batch

    batches = [torch.zeros(50)] * 4
    found = losses_of(trainer_for(tmp_path), nn.Identity(), batches, losses, 70)
    assert (len(found), read) == (70, [50, 50])


@pytest.mark.parametrize("fails", [False, True])
def test_modes_gradients_and_random_numbers_are_as_they_were(tmp_path, fails: bool) -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Dropout(), nn.BatchNorm1d(1))
    net[1].eval()
    seen = []

    def losses(module: Any, batch: Any) -> torch.Tensor:
        seen.append(([part.training for part in module], torch.is_grad_enabled()))
        torch.rand(3)
        return module(batch[0])[:, 0] if not fails else torch.ones(2, 2)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    try:
        losses_of(trainer_for(tmp_path), net, DataLoader(NUMBERS, 100), losses, 50)
    except MisconfigurationException:
        assert fails
    assert seen == [([False] * 3, False)]
    assert [part.training for part in net] == [True, False, True]
    assert torch.is_grad_enabled()
    assert fails or torch.equal(torch.get_rng_state(), before)
    assert net[2].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        (torch.tensor(0.5), r"of shape \(\), must be .*'none'"),
        (torch.ones(3, 2), r"of shape \(3, 2\), must be"),
        (0.5, "of type float, must be a tensor of shape"),
    ],
)
def test_losses_that_are_not_one_a_record_are_refused(tmp_path, losses: Any, words: str) -> None:
    with pytest.raises(MisconfigurationException, match=words):
        losses_of(trainer_for(tmp_path), nn.Identity(), [[]], lambda *_: losses, None)


@pytest.mark.parametrize(
    ("loader", "kind"),
    [(DataLoader(Endless()), "DataLoader"), (None, "NoneType"), ([[1]], "list")],
)
def test_records_of_a_loader_without_a_length_are_refused(loader: Any, kind: str) -> None:
    words = f"population_dataloader=None takes .* but is {kind}; pass population_dataloader"
    with pytest.raises(MisconfigurationException, match=words):
        fixed_loader("population_dataloader", loader, 4)


def test_no_records_give_no_losses(tmp_path) -> None:
    found = losses_of(trainer_for(tmp_path), nn.Identity(), [], own_numbers, None)
    assert found.shape == (0,)
    assert found.dtype == np.float64
