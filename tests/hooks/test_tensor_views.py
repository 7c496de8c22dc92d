"""Entries are written through numpy's view of a tensor, or by torch where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_audit.hooks.gradient_tap import add_along, entries_at, numpy_view, write_rows
from lightning_audit.layout import Direction, Part

SHAPES = [(2, 3), (), (4,)]
DIRECTIONS = [
    Direction((Part(0, np.array([1, 5]), np.array([0.5, -0.5])),)),
    Direction((Part(1, np.array([0]), np.array([1.0])), Part(0, np.array([5]), np.array([2.0])))),
]
# float32 has a view, the others go by torch.
DTYPES = [torch.float32, torch.bfloat16]


def test_a_view_shares_the_memory_of_plain_tensors_alone() -> None:
    tensor = torch.zeros(2, 3)
    view = numpy_view(tensor)
    assert view is not None
    view[4] = 7.0
    assert tensor[1, 1] == 7.0
    assert numpy_view(tensor.t()) is None
    assert numpy_view(tensor.half()) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strided", [False, True])
def test_directions_are_added_entry_by_entry(dtype: torch.dtype, strided: bool) -> None:
    tensors = [torch.ones(shape, dtype=dtype) for shape in SHAPES]
    if strided:
        tensors[0] = torch.ones(3, 2, dtype=dtype).t()
    add_along(tensors, DIRECTIONS, np.array([4.0, -2.0]))
    assert tensors[0].tolist() == [[1.0, 3.0, 1.0], [1.0, 1.0, -5.0]]
    assert (float(tensors[1]), tensors[2].tolist()) == (-1.0, [1.0] * 4)
    add_along([None, tensors[1], None], DIRECTIONS, np.array([4.0, -2.0]))
    assert float(tensors[1]) == -3.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_behind_the_batch_are_the_directions_at_the_norm(dtype: torch.dtype) -> None:
    buffers = [torch.zeros((3, *shape), dtype=dtype) for shape in SHAPES]
    for buffer in buffers:
        buffer[0] = 1.0
    write_rows(buffers, DIRECTIONS, 10.0)
    assert buffers[0][0].tolist() == [[1.0] * 3] * 2
    assert buffers[0][1].tolist() == [[0.0, 5.0, 0.0], [0.0, 0.0, -5.0]]
    assert buffers[0][2].tolist() == [[0.0] * 3, [0.0, 0.0, 20.0]]
    assert buffers[1].tolist() == [1.0, 0.0, 10.0]
    assert not buffers[2][1:].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_entries_come_in_the_order_of_the_coordinates_from_any_memory(dtype: torch.dtype) -> None:
    tensors = [torch.arange(6.0).reshape(2, 3).to(dtype), torch.arange(6.0).reshape(2, 3).t()]
    coordinates = {1: np.array([1, 4]), 0: np.array([5])}
    read = entries_at([tensors[1], tensors[0]], coordinates)
    assert (read.dtype, read.tolist()) == (np.float64, [3.0, 2.0, 5.0])
