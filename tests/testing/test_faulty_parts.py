from __future__ import annotations

import pytest
import torch
from planted import private

from lightning_audit.testing.faulty import AliasedSum, SumOfSums

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


def test_a_sum_of_sums_counts_earlier_parts_more_than_once() -> None:
    optimizer = private(max_grad_norm=1e6)
    optimizer.__class__ = SumOfSums
    for part in (1.0, 10.0, 100.0):
        for p in optimizer.params:
            p.grad_sample = torch.full((1, *p.shape), part)
        optimizer.clip_and_accumulate()
    # 1, then 1 + 1 + 10, then 12 + 12 + 100.
    assert all(torch.allclose(p.summed_grad, torch.tensor(124.0)) for p in optimizer.params)


def test_a_sum_that_shares_memory_is_lost_when_the_next_part_begins() -> None:
    optimizer = private("ghost")
    optimizer.__class__ = AliasedSum
    for part in (1.0, 10.0):
        for p in optimizer.params:
            if p.grad is None:
                p.grad = torch.full_like(p, part)
            else:
                p.grad.zero_().add_(part)  # as a backward pass does
        optimizer.accumulate()
    # Right would be 11: the first part is gone, and the second is there twice.
    assert all((p.summed_grad == 20.0).all() for p in optimizer.params)
