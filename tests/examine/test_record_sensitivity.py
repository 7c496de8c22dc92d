"""A batch that nobody reads tells nothing; random numbers that move are no sensitivity."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from training_support import PrivateModule, digits, mlp, trainer_for

from lightning_audit import Examination
from lightning_audit.examine.record_sensitivity import is_bounded, moved_rows, tolerance
from lightning_audit.replay.replay import Replay


def with_norms(*norms: float) -> Replay:
    return Replay(norms=[torch.tensor(norms, dtype=torch.float64)])


@pytest.mark.parametrize(
    ("one", "other", "moved"),
    [
        ((1.0, 2.0, 3.0), (3.0, 1.0, 2.0), 0),
        ((1.0, 2.0, 3.0), (1.0, 2.5, 3.0), 1),
        ((1.0, 2.0, 3.0), (1.1, 2.2, 3.3), 3),
        ((2.0, 2.0), (2.0, 5.0), 1),
        ((2.0, 2.0), (2.0 * (1 + 1e-6), 2.0), 0),
    ],
)
def test_gradients_that_another_replay_lacks_are_counted(
    one: tuple[float, ...], other: tuple[float, ...], moved: int
) -> None:
    assert moved_rows(with_norms(*one), with_norms(*other)) == moved


def test_where_none_is_formed_it_cannot_be_told() -> None:
    assert moved_rows(Replay(), with_norms(1.0)) == math.inf


def test_tolerances_are_those_of_the_precision() -> None:
    assert tolerance([torch.float32], low_precision=False) == 2e-3
    assert tolerance([torch.float64], low_precision=False) == 1e-6
    assert tolerance([torch.float32, torch.bfloat16], low_precision=False) == 0.1
    assert tolerance([torch.float64], low_precision=True) == 0.1


def test_pixels_have_bounds_and_numbers_of_any_size_have_none() -> None:
    assert is_bounded((torch.rand(4, 3), torch.tensor([1, 2, 3, 4])))
    assert not is_bounded((1e3 * torch.randn(4, 3),))


def test_a_step_that_does_not_read_its_batch_is_not_asked(tmp_path: Path) -> None:
    class Elsewhere(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = self.dataset.tensors
            return functional.cross_entropy(self.net(x[:16]), y[:16])

    torch.manual_seed(0)
    examination = Examination()
    trainer_for(tmp_path, examination, max_steps=2).fit(Elsewhere(mlp(64), dataset=digits()))
    assert "takes its records elsewhere" in examination.answers["replay.sensitivity"].reason
    assert not examination.answers["replay.clipping"].findings
