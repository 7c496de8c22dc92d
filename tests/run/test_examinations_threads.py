"""Two trainings in two threads of a process: no examination of one disturbs the other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from training_support import PrivateModule, digits, mlp, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.replay import examiner

NOISE: list[bytes] = []


class Recorded(DPOptimizer):
    """Keeps its noise."""

    def add_noise(self) -> None:
        super().add_noise()
        NOISE.append((self.params[0].grad - self.params[0].summed_grad).numpy().tobytes())


def audited(folder: Path, **kwargs: Any) -> Any:
    audit = PrivacyAudit(seed=1, on_violation="warn", **{"examinations": 3, **kwargs})
    trainer_for(folder, audit, max_steps=60).fit(PrivateModule(mlp(64), dataset=digits()))
    return audit.report


def together(*trainings: Any) -> list[Any]:
    """What trainings in a thread each return."""
    found: list[Any] = [None] * len(trainings)

    def run(place: int) -> None:
        found[place] = trainings[place]()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(trainings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def messages(report: Any) -> set[str]:
    return {c.message for c in report.checks if c.name.startswith("replay")}


def test_a_plain_training_beside_an_audited_one_never_uses_noise_twice(tmp_path: Path) -> None:
    NOISE.clear()

    def plain() -> None:
        module = PrivateModule(mlp(64), dataset=digits(), optimizer_class=Recorded)
        trainer_for(tmp_path / "plain", max_steps=100).fit(module)

    torch.manual_seed(0)
    report, _ = together(lambda: audited(tmp_path / "audited"), plain)
    assert len(NOISE) == len(set(NOISE)) == 100
    assert report.verdict.outcome != "VIOLATION"
    assert all("may train or draw random numbers" in text for text in messages(report))


def test_two_audited_trainings_do_not_accuse_each_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    reports = together(*(lambda k=k: audited(tmp_path / str(k)) for k in range(2)))
    assert [report.verdict.outcome == "VIOLATION" for report in reports] == [False, False]


def test_an_examination_waits_for_another_one(tmp_path: Path) -> None:
    with examiner._ONE_AT_A_TIME:
        report = audited(tmp_path)
    assert messages(report) == {"not asked: another examination is under way in this process"}


def test_where_another_thread_draws_no_generator_is_put_back_and_nothing_more_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examiner, "training_thread", lambda: "")
    monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    ended = threading.Event()

    def draw() -> None:
        while not ended.wait(0.001):
            torch.rand(1)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        report = audited(tmp_path)
    finally:
        ended.set()
        thread.join()
    assert all("another thread drew from the global generators" in m for m in messages(report))
    assert sum("they were not restored" in note for note in report.notes) == 1
    assert report.verdict.outcome != "VIOLATION"
