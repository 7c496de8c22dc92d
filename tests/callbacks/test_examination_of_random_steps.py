"""Random numbers and inputs with a domain accuse no correct training."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from random_steps import CORRECT
from stages import staged
from training_support import trainer_for

from lightning_audit import Examination

QUICK = ("augmentation by NumPy", "by hand, in chunks", "logarithms, roots and arc sines")
ALL = {"replay.sensitivity", "replay.release", "coupling", "replay.clipping", "replay.noise"}
#: What cannot be asked; everything else must be.
_IN_PARTS = {"coupling", "replay.clipping", "replay.noise"}
NOT_ASKED = {
    "by hand, noise that cannot be set": ALL,
    "a clipping norm that is drawn": ALL,
    "by hand, rows() first": _IN_PARTS,
    "by hand, draws for rows that are not zero": {"replay.clipping"},
}


def examined(folder: Path, name: str, seed: int) -> Examination:
    torch.manual_seed(seed)
    np.random.seed(seed)  # the global one
    random.seed(seed)
    module = CORRECT[name]()
    examination = Examination(getattr(module, "claim", None), after=1 + seed, seed=seed)
    trainer_for(folder, examination, max_steps=2 + seed).fit(module)
    return examination


@pytest.mark.parametrize(
    ("name", "seed"),
    staged(
        [(name, 0) for name in QUICK],
        [(name, 0) for name in CORRECT if name not in QUICK],
        [(name, seed) for name in CORRECT for seed in (1, 2)],
    ),
)
@pytest.mark.heavy_one_in(4)
def test_a_correct_training_is_asked_and_not_accused(tmp_path: Path, name: str, seed: int) -> None:
    examination = examined(tmp_path, name, seed)
    assert not [each for each, a in examination.answers.items() if a.findings], str(examination)
    not_asked = {each for each, answer in examination.answers.items() if not answer.asked}
    assert not_asked == NOT_ASKED.get(name, set()), str(examination)
