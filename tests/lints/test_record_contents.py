"""Records that a data set holds several times, by index or by contents."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from lightning_audit.lints.settings import repeated_contents, repeated_indices

DATA = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
OTHER = TensorDataset(torch.zeros(4, 2), torch.zeros(4))


def test_indices_are_followed_through_subsets_and_concatenations() -> None:
    assert repeated_indices(DATA) == 0
    assert repeated_indices(Subset(DATA, [1, 2, 2, 5])) == 1
    assert repeated_indices(Subset(Subset(DATA, [3, 3, 4]), [0, 1])) == 1
    assert repeated_indices(Subset(Subset(DATA, [3, 3, 4]), [0, 2])) == 0
    assert repeated_indices(ConcatDataset([DATA, OTHER])) == 0
    assert repeated_indices(ConcatDataset([DATA, Subset(DATA, [0, 9])])) == 2
    assert repeated_indices(Subset(ConcatDataset([DATA, OTHER]), [0, 10, 13, 13])) == 1


def test_a_data_set_that_chooses_by_itself_is_not_followed() -> None:
    class Own(Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return 0

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

    assert repeated_indices(Own()) == 0
    assert repeated_contents(Own()) is None
    assert repeated_indices(Stream()) is None


def test_contents_are_compared_with_their_labels() -> None:
    assert repeated_contents(DATA) == 0
    assert repeated_contents(OTHER) == 3
    labels = TensorDataset(torch.zeros(4, 2), torch.arange(4))
    assert repeated_contents(labels) == 0
    assert repeated_contents(TensorDataset(torch.zeros(0, 2))) is None
