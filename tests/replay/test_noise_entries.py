"""All entries of a small gradient are looked at, the first rows of a large one."""

from __future__ import annotations

import numpy as np
import torch

from lightning_audit.layout import TensorSlot
from lightning_audit.replay.noise import NoiseEntries, flat

LAYOUT = [
    TensorSlot("w", (6, 4)),
    TensorSlot("b", (6,)),
    TensorSlot("k", (2, 3, 2)),
    TensorSlot("s", ()),
]


def test_all_entries_are_looked_at_in_their_order() -> None:
    entries = NoiseEntries.of(LAYOUT, most=1000)
    assert entries.count == 24 + 6 + 12 + 1
    release = torch.arange(43, dtype=torch.float64)
    parts = entries.of_release(release)
    assert [part.shape for part in parts] == [(6, 4), (1, 6), (2, 6), (1, 1)]
    np.testing.assert_array_equal(flat(parts), release.numpy())


def test_of_many_the_first_rows_of_each_tensor_are() -> None:
    entries = NoiseEntries.of(LAYOUT, most=22)
    parts = entries.of_release(torch.arange(43, dtype=torch.float64))
    assert [part.shape[0] for part in parts] == [4, 1, 2, 1]
    np.testing.assert_array_equal(parts[0].ravel(), np.arange(16))
    assert entries.count < 43
    wide = NoiseEntries.of([TensorSlot("e", (1, 5000)), TensorSlot("f", (5000,))], most=100)
    assert wide.count <= 102


def test_tensors_are_named_by_what_is_marked_in_them() -> None:
    entries = NoiseEntries.of(LAYOUT, most=1000)
    marked = torch.zeros(43, dtype=torch.bool)
    marked[[25, 42]] = True
    assert entries.tensors_of(marked) == "`b`, `s`"
    assert entries.tensors_of(~marked) == "`w`, `b`, `k`"
    assert entries.tensors_of(torch.ones(43, dtype=torch.bool)) == "`w`, `b`, `k` and 1 more"
