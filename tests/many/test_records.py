"""Records of a data set, and data sets with other records."""

from __future__ import annotations

import numpy as np
import torch

from lightning_audit.many.records import ChangedDataset, Records


def test_nothing_changed_is_the_same_object():
    data = [(1.0, 0), (2.0, 1)]
    assert Records(data).extended([], {}) is data


def test_a_changed_data_set_reads_the_old_one_lazily_and_counts_from_the_end():
    reads = []

    class Lazy:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            reads.append(index)
            return (float(index), 0)

    changed = Records(Lazy()).extended([(9.0, 1)], {1: (8.0, 1)})
    assert isinstance(changed, ChangedDataset)
    assert reads == []
    assert [changed[i] for i in (0, 1, 2, 3, -1)] == [
        (0.0, 0),
        (8.0, 1),
        (2.0, 0),
        (9.0, 1),
        (9.0, 1),
    ]
    assert reads == [0, 2]


def test_a_canary_takes_the_dtype_of_the_column():
    data = (np.zeros((2, 3), dtype=np.float32), np.zeros(2, dtype=np.int32))
    inputs, classes = Records(data).extended([(np.ones(3), 1.0)], {})
    assert (inputs.dtype, classes.dtype) == (np.float32, np.int32)
    tensors = Records(tuple(map(torch.as_tensor, data))).extended([], {0: (np.ones(3), 1)})
    assert tensors[0].dtype == torch.float32
    assert tensors[0][0].tolist() == [1.0, 1.0, 1.0]
