"""No examination changes a training, whatever its step depends on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hidden_state import KINDS, Counting, close_files
from training_support import trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.replay import examiner

#: Kinds that are the same in each replay; with the others the step gives other bits each time.
STEADY = {"global variable", "file that is written"}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_files()


def trained(folder: Path, kind: str, examinations: int) -> tuple[list[Any], Any]:
    """Everything that a training leaves, and its report."""
    folder.mkdir()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    module = Counting(KINDS[kind](folder))
    audit = PrivacyAudit(seed=1, examinations=examinations, on_violation="warn")
    trainer_for(folder, audit, max_steps=8).fit(module)
    left = [module.losses, module.count(), torch.get_rng_state().tolist(), random.getstate()]
    left += [np.random.get_state()[1].tolist(), [p.tolist() for p in module.parameters()]]
    return left, audit.report


def reasons(report: Any) -> set[str]:
    return {c.message for c in report.checks if c.name.startswith("replay") and c.message}


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_ends_as_it_would_without_examinations(tmp_path: Path, kind: str) -> None:
    without, _ = trained(tmp_path / "without", kind, 0)
    examined, report = trained(tmp_path / "with", kind, 2)
    assert examined == without
    assert report.verdict.outcome != "VIOLATION"
    assert {text.startswith("not asked: ") for text in reasons(report)} == {kind not in STEADY}


@pytest.mark.parametrize("kind", ["ContextVar", "mutable default"])
def test_where_no_fork_can_train_it_is_said_that_state_may_have_moved(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    _, report = trained(tmp_path / "with", kind, 3)
    assert all("gives other bits" in text for text in reasons(report))
    assert sum("state that a replay cannot restore" in note for note in report.notes) == 1


@pytest.mark.parametrize("fork", [True, False])
def test_a_correct_training_is_examined_with_a_fork_and_without(
    tmp_path: Path, fork: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fork:
        monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    without, _ = trained(tmp_path / "without", "global variable", 0)
    examined, report = trained(tmp_path / "with", "global variable", 2)
    assert examined == without
    assert not any(text.startswith("not asked: ") for text in reasons(report))
    assert report.examination_cost["first"] > 0.0
