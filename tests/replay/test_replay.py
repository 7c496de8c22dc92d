"""Per-sample gradients in few columns keep their norms, and those of their differences."""

from __future__ import annotations

import pytest
import torch

from lightning_audit.replay.step_replay import Replay, count_rows, folded

SHAPES = [(5, 40, 30), (5, 40), (5, 7, 3, 3)]


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in SHAPES]


def norms(grads: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([grad.flatten(1) for grad in grads], 1).norm(dim=1)


@pytest.mark.parametrize(("columns", "tolerated"), [(1303, 1e-5), (1302, 0.01), (400, 0.15)])
def test_norms_and_norms_of_differences_stay(columns: int, tolerated: float) -> None:
    one, other = gradients(0), gradients(1)
    change = folded(one, columns) - folded(other, columns)
    assert change.shape == (5, columns)
    assert torch.allclose(folded(one, columns).norm(dim=1), norms(one), rtol=tolerated)
    differences = [mine - its for mine, its in zip(one, other, strict=True)]
    assert torch.allclose(change.norm(dim=1), norms(differences), rtol=tolerated)


def test_a_change_of_one_entry_of_one_tensor_is_not_lost() -> None:
    one, other = gradients(0), gradients(0)
    other[1][2, 17] += 3.0
    change = (folded(one, 50) - folded(other, 50)).norm(dim=1)
    assert torch.allclose(change, torch.tensor([0.0, 0.0, 3.0, 0.0, 0.0]), atol=1e-4)


def test_the_global_generator_is_not_used() -> None:
    before = torch.get_rng_state()
    folded(gradients(0), 50)
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_that_are_not_finite_stay_so() -> None:
    grads = gradients(0)
    grads[0][3, 2, 1] = torch.inf
    assert torch.isfinite(folded(grads, 50).norm(dim=1)).tolist() == [True] * 3 + [False, True]


def test_gradients_stay_as_they_are_where_each_entry_has_a_column() -> None:
    one = gradients(0)
    assert torch.equal(folded(one, 1303), torch.cat([grad.flatten(1) for grad in one], 1))


def test_a_parameter_of_one_number_has_rows_as_others_have() -> None:
    grads = [torch.tensor([3.0, 0.0, 1.0]), torch.tensor([[4.0, 0.0], [0.0, 2.0], [0.0, 0.0]])]
    assert folded(grads, 10).shape == (3, 3)
    found = Replay()
    count_rows(found, grads, 2.0)
    assert found.norms[0].tolist() == [2.5, 1.0, 0.5]
    count_rows(found, [grad[:0] for grad in grads], 2.0)
    assert found.rows == 3
