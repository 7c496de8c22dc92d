"""Batches without a record: when a training leaves them out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_audit.lints.empty_batches import EmptyBatches, is_empty

EMPTY, FULL = torch.zeros(0, 3), torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (EMPTY, True),
        ((EMPTY, torch.zeros(0)), True),
        ({"x": EMPTY, "weight": torch.tensor(1.0)}, True),
        ((EMPTY, FULL), False),
        ([FULL], False),
        (torch.tensor(1.0), False),
        ("a batch of its own kind", False),
    ],
)
def test_a_batch_is_empty_if_its_tensors_hold_no_sample(batch: Any, expected: bool) -> None:
    assert is_empty(batch) == expected


def skipped(*batches: tuple[torch.Tensor, bool]) -> list[bool]:
    """Of batches that are stepped on or not: which are seen as left out."""
    seen = EmptyBatches()
    return [not stepped and seen.skipped(batch) for batch, stepped in batches]


def test_an_empty_batch_without_a_step_is_left_out() -> None:
    assert skipped((FULL, True), (EMPTY, True), (EMPTY, False)) == [False, False, True]


def test_a_training_that_adds_up_batches_is_not_taken_for_one_that_leaves_some_out() -> None:
    assert not any(skipped((FULL, False), (EMPTY, False), (FULL, True), (EMPTY, False)))
