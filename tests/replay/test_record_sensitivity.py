"""A batch that nobody reads tells nothing; random numbers that move are no sensitivity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from training_support import PrivateModule, digits, mlp, trainer_for

from lightning_audit import Examination
from lightning_audit.replay.records import tolerance


def test_tolerances_are_those_of_the_precision() -> None:
    assert tolerance([torch.float32], low_precision=False) == 2e-3
    assert tolerance([torch.float64], low_precision=False) == 1e-6
    assert tolerance([torch.float32, torch.bfloat16], low_precision=False) == 0.1
    assert tolerance([torch.float64], low_precision=True) == 0.1


def test_a_step_that_does_not_read_its_batch_is_not_asked(tmp_path: Path) -> None:
    class Elsewhere(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = self.dataset.tensors
            return functional.cross_entropy(self.net(x[:16]), y[:16])

    torch.manual_seed(0)
    examination = Examination()
    trainer_for(tmp_path, examination, max_steps=2).fit(Elsewhere(mlp(64), dataset=digits()))
    assert "gets its records elsewhere" in examination.answers["replay.sensitivity"].reason
    assert not examination.answers["replay.clipping"].findings
