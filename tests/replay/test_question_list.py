"""Every question is asked of a net of any size, within the replays of a first examination."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_step import PlainStep, examined
from torch import nn
from torch.nn import functional
from training_matrix import ROWS
from training_support import trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.replay import clipping, examiner, noise, records
from lightning_audit.replay.examiner import FIRST_REPLAYS, QUESTIONS, Examined, examine_step
from lightning_audit.run import examinations

# Opacus and torch remark on loaders and hooks in every training.
pytestmark = pytest.mark.filterwarnings("default")


class OverTheBatch(nn.Module):
    """Batch normalisation without buffers, which Opacus lets pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, None, None, training=True)


class Busy(PlainStep):
    """A step that takes its time on a whole batch, and none on a few records."""

    def take(self, batches: Sequence[Any]) -> None:
        end = time.thread_time() + 0.02 * any(len(x) > 6 for x, _ in batches)
        while time.thread_time() < end:
            """Compute."""
        super().take(batches)


def net(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 40), *more, nn.ReLU(), nn.Linear(40, 3))


@pytest.fixture
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The net of 403 weights is larger than what is kept of any net."""
    monkeypatch.setattr(clipping, "_ENTRIES", 400)
    monkeypatch.setattr(noise, "_ENTRIES", 400)
    monkeypatch.setattr(noise, "_LOOKED_AT_SOON", 100)
    monkeypatch.setattr(records, "_ENTRIES", 800)
    monkeypatch.setattr(records, "_LEAST_ENTRIES", 50)


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("budget", [FIRST_REPLAYS, None])
def test_no_question_is_refused_for_the_size_of_a_net(budget: int | None) -> None:
    found = examined(PlainStep(net=net()), budget=budget, trials=8)
    assert {name: answer.reason for name, answer in found.answers.items()} == dict.fromkeys(
        QUESTIONS, ""
    )
    assert not any(answer.findings for answer in found.answers.values())


@pytest.mark.usefixtures("_large")
def test_of_a_large_net_too_records_that_depend_on_each_other_are_found() -> None:
    user = PlainStep(net=net(OverTheBatch()))
    (finding,) = examined(user, names=["coupling"]).answers["coupling"].findings
    assert finding.size > 0.1


def test_an_examination_is_stated_in_times_of_the_step_on_the_users_own_batch() -> None:
    found = examined(Busy(), budget=FIRST_REPLAYS, trials=8)
    assert 10 < found.step_times < found.steps


def first_examination(folder: Path, row: Any) -> tuple[int, dict[str, str]]:
    """Replays of the first examination of a training of the matrix, and what was not asked."""
    counts: list[int] = []

    def counted(*given: Any, **named: Any) -> Examined:
        found = examine_step(*given, **named)
        counts.append(found.steps)
        return found

    torch.manual_seed(0)
    audit = PrivacyAudit(**{**row.audit, "seed": 1, "on_violation": "warn", "examinations": "auto"})
    arguments = {**row.trainer, "max_steps": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examinations, "examine_step", counted)
        trainer_for(folder, audit, **arguments).fit(row.module())
    assert audit.report is not None
    replayed = [
        c for c in audit.report.checks if c.name.startswith("replay") or c.name == "coupling"
    ]
    return counts[0], {check.name: check.message for check in replayed}


@pytest.mark.parametrize("row", ROWS[::6], ids=lambda row: row.name)
def test_a_first_examination_makes_at_most_eighty_replays(tmp_path: Path, row: Any) -> None:
    assert 10 < first_examination(tmp_path, row)[0] <= FIRST_REPLAYS == 80


class Slow:
    """A clock of a machine that is busy with other programs: each look is a minute later."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 60.0
        return self.now

    thread_time = perf_counter


def test_a_busy_machine_asks_what_a_quiet_one_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = first_examination(tmp_path / "quiet", ROWS[0])
    for module in (examinations, examiner):
        monkeypatch.setattr(module, "time", Slow())
    assert first_examination(tmp_path / "busy", ROWS[0]) == quiet
    assert quiet[0] > 40
