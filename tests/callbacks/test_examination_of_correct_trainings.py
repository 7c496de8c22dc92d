"""No correct training is accused by an examination, and none is changed by it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from correct_steps import CORRECT, Correct
from stages import staged
from training_support import trainer_for

from lightning_audit import Examination

QUICK = {"AdamW", "augmentation"}


def trained(folder: Path, case: Correct, seed: int, *callbacks: Examination) -> torch.Tensor:
    torch.manual_seed(seed)
    np.random.seed(seed)  # the global one
    random.seed(seed)
    module = case.module()
    arguments = {"max_steps": 8, **case.trainer}
    trainer_for(folder, *callbacks, *case.callbacks(), **arguments).fit(module)
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.filterwarnings("ignore:Swapping scheduler")
@pytest.mark.parametrize(
    ("case", "seed"),
    staged(
        [(case, 0) for case in CORRECT if case.name in QUICK],
        [(case, 0) for case in CORRECT if case.name not in QUICK],
        [(case, seed) for case in CORRECT for seed in (1, 2)],
    ),
    ids=lambda value: value.name if isinstance(value, Correct) else str(value),
)
@pytest.mark.heavy_one_in(4)
def test_a_correct_training_is_not_accused_and_not_changed(
    tmp_path: Path, case: Correct, seed: int
) -> None:
    examination = Examination(after=1 + 2 * seed, seed=seed)
    plain = trained(tmp_path / "plain", case, seed)
    examined = trained(tmp_path / "examined", case, seed, examination)
    assert not [name for name, a in examination.answers.items() if a.findings], str(examination)
    reasons = {name: a.reason for name, a in examination.answers.items() if not a.asked}
    assert set(reasons) == set(case.not_asked), str(examination)
    for name, part in case.not_asked.items():
        assert part in reasons[name]
    assert torch.equal(plain, examined)
