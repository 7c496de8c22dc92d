"""Batches without a step: empty ones, and others at no fixed distance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_audit.lints.settings import LeftOutBatches, is_empty

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


def seen(*epochs: str) -> LeftOutBatches:
    """Of batches in epochs: "s" for a step, "." for none; "S" and "," where they are empty."""
    found = LeftOutBatches()
    for epoch in epochs:
        found.start_epoch()
        for batch in epoch:
            found.take(EMPTY if batch in "S," else FULL, stepped=batch in "sS")
    return found


def test_an_empty_batch_without_a_step_is_left_out() -> None:
    assert not seen("sS").empty
    assert seen("sS,").empty
    assert not seen("sS,").irregular


def test_a_training_that_adds_up_batches_is_not_taken_for_one_that_leaves_some_out() -> None:
    assert not seen(".,s,").empty


@pytest.mark.parametrize(
    "epochs",
    [
        ("sssss", "sssss"),
        ("..s..s..s", "..s..s..s"),
        ("..s..s..s.", "..s..s..s.s"),  # the rest of an epoch is dropped, or steps at its end
        (".....", "sssss"),  # a first epoch that does not train
        (".s.s.s", "...s...s"),  # another distance in another epoch
        ("s..s..s", ".s..s..s"),  # by the number of the batch; the process resumed amid a distance
        ("s.s.s.", "s.s.s."),
        ("ss,ss", "..s,.s..s"),  # an empty batch is no batch that a loss is of
    ],
)
def test_steps_at_a_fixed_distance_leave_none_out(epochs: tuple[str, ...]) -> None:
    assert not seen(*epochs).irregular


@pytest.mark.parametrize(
    "epochs",
    [
        ("sss.s",),
        ("ssss.",),
        ("sssss", "..sss"),
        (".s.s..s.s",),
        ("..s..s.s..s",),
        ("..s..s...",),
    ],
)
def test_batches_left_out_at_no_fixed_distance_are_seen(epochs: tuple[str, ...]) -> None:
    assert seen(*epochs).irregular
