"""What a sampler yields is read as record numbers, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightning_audit.checks.sampling import record_numbers


@pytest.mark.parametrize(
    "batch", [[3, 0, 9], (3, 0, 9), torch.tensor([3, 0, 9]), np.array([3, 0, 9], dtype=np.uint8)]
)
def test_numbers_of_any_kind_are_read_in_their_order(batch: Any) -> None:
    read = record_numbers(batch, 10)
    assert read is not None
    assert read.dtype == np.int64
    assert read.tolist() == [3, 0, 9]


@pytest.mark.parametrize("batch", [[], (), torch.zeros(0), np.zeros((0, 2))])
def test_an_empty_batch_has_no_records(batch: Any) -> None:
    read = record_numbers(batch, 10)
    assert read is not None
    assert read.tolist() == []


class Refuses:
    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("not an array")


@pytest.mark.parametrize(
    "batch",
    [
        [0, 10],
        [-1, 2],
        ["0", "1"],
        [0.0, 1.0],
        [[0, 1], [2, 3]],
        [[0], [1, 2]],
        3,
        None,
        iter([0, 1]),
        Refuses(),
    ],
)
def test_what_is_no_list_of_record_numbers_is_not_read(batch: Any) -> None:
    assert record_numbers(batch, 10) is None


def test_an_iterator_is_left_as_it_is() -> None:
    batch = iter([0, 1])
    record_numbers(batch, 10)
    assert list(batch) == [0, 1]
