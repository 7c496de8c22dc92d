from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_audit.dpsgd.opacus import all_finite, not_finite, waiting_not_finite


def rows(*lost: int, count: int = 3, value: float = torch.nan) -> torch.Tensor:
    made = torch.ones(count, 2, 2)
    made[list(lost), 1, 0] = value
    return made


def params(*held: object) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros(2, 2)) for _ in held]
    for param, samples in zip(made, held, strict=True):
        param.grad_sample = samples
    return made


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_sample_is_lost_whose_gradient_is_not_finite_in_any_tensor(value: float) -> None:
    found = not_finite([rows(0, value=value), rows(2, value=value), torch.ones(3)])
    assert found is not None
    assert found.tolist() == [True, False, True]
    assert not_finite([rows(), rows(count=4)]) is None
    assert not_finite([]) is None


def test_all_batches_that_wait_are_looked_at_without_the_audits_own_rows() -> None:
    last = rows(1, 2)
    held = params([rows(0), last], [rows(), rows()])
    found = waiting_not_finite(held, {})
    assert found is not None
    assert found.tolist() == [True, False, False, False, True, True]
    other = held[1].grad_sample[1]
    found = waiting_not_finite(held, {id(last): 1, id(other): 1})
    assert found is not None
    assert found.tolist() == [True, False, False, False, True]


@pytest.mark.parametrize("held", [(rows(), None), (rows(), rows(count=4))])
def test_nothing_is_told_where_the_samples_of_a_step_are_not_known(held: tuple[object]) -> None:
    assert waiting_not_finite(params(*held), {}) is None


def test_a_missing_tensor_is_no_loss() -> None:
    assert all_finite([None, torch.ones(2)])
    assert not all_finite([None, torch.tensor([1.0, torch.inf])])
