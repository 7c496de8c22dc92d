"""Halves are fair coins of each record, opposite in the second model of a pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from lightning_audit._validate import BadArgument
from lightning_audit.many.shadows import Halves, Subsets
from lightning_audit.many.store import Plan


def test_each_record_is_in_one_model_of_each_pair_and_first_models_are_independent():
    plan = Halves(3, 100, 20, 50)
    coins = np.array([t.coins for block in plan.blocks() for t in block])
    assert coins.shape == (100, 50)
    assert (coins[::2] + coins[1::2] == 1).all()
    independent = Plan(3, 100, 20, 50)
    assert [plan.training(n) for n in range(0, 100, 2)] == [
        independent.training(n) for n in range(0, 100, 2)
    ]
    assert len({plan.training(n).seed for n in range(100)}) == 100
    assert abs(coins[::2].mean() - 0.5) < 3 * 0.5 / np.sqrt(2500)


class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index


INPUTS, TARGETS = torch.arange(4.0)[:, None], torch.arange(4)


@pytest.mark.parametrize(
    "data",
    [
        (INPUTS, TARGETS),
        (INPUTS.numpy(), TARGETS.numpy()),
        TensorDataset(INPUTS, TARGETS),
        list(zip(INPUTS, TARGETS, strict=True)),
        Rows(),
    ],
    ids=["tensors", "arrays", "TensorDataset", "list", "Dataset"],
)
def test_a_half_has_its_records_in_the_form_of_the_data(data):
    subsets = Subsets(data)
    half = subsets.of((0, 1, 0, 1))
    if isinstance(data, tuple):
        half = list(zip(*half, strict=True))
    else:
        assert not isinstance(half, tuple)
    assert len(half) == 2
    assert [int(half[i][1]) for i in range(2)] == [1, 3]
    assert [int(target) for _, target in subsets.records] == [0, 1, 2, 3]


def test_one_record_has_no_halves():
    with pytest.raises(BadArgument, match="at least two"):
        Subsets((INPUTS[:1], TARGETS[:1]))
