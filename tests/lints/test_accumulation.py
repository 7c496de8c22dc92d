from __future__ import annotations

from typing import Any

import pytest
from one_parameter import plain, private

from lightning_audit.lints.settings import accumulation_remarks


def test_two_divisions_by_the_number_of_batches_are_said_with_what_to_write() -> None:
    (remark,) = accumulation_remarks(private("mean"), 3)
    assert remark.startswith("accumulate_grad_batches=3 divides gradients twice")
    assert "Return 3 times the loss" in remark


@pytest.mark.parametrize(
    ("optimizer", "batches"), [(private("mean"), 1), (private("sum"), 3), (plain(), 3)]
)
def test_one_division_is_not_remarked_upon(optimizer: Any, batches: int) -> None:
    assert accumulation_remarks(optimizer, batches) == []
