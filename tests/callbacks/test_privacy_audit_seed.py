"""The seed of the audit's coins is shown when the training has ended, or if it is stated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from training_support import PrivateModule, report_in, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.run import evaluation


class Seeds(pl.Callback):
    """What the report and the callback say of the seed behind each epoch."""

    def __init__(self, audit: PrivacyAudit, folder: Path) -> None:
        self.audit, self.folder, self.seen = audit, folder, []

    def on_validation_start(self, *_: Any) -> None:
        self.look()

    def on_train_epoch_start(self, *_: Any) -> None:
        self.look()

    def look(self) -> None:
        told = [self.audit.seed, self.audit.config.seed, self.audit.config.settings()["seed"]]
        if (path := self.folder / "audit" / "report.json").exists():
            told.append(json.loads(path.read_text())["settings"]["seed"])
        self.seen.append(told)


def seeds_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **audit: Any
) -> tuple[list[list[int | None]], PrivacyAudit]:
    monkeypatch.setattr(evaluation, "EPOCH_SHARE", float("inf"))
    callback = PrivacyAudit(examinations=0, **audit)
    seeds = Seeds(callback, folder)
    trainer_for(folder, callback, seeds, max_epochs=3).fit(PrivateModule())
    return seeds.seen, callback


def test_a_seed_that_was_drawn_is_shown_nowhere_before_the_training_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, callback = seeds_of(tmp_path, monkeypatch)
    assert {len(told) for told in seen} == {3, 4}  # with a report of an epoch's end, and before
    assert {seed for told in seen for seed in told} == {None}
    ended = report_in(tmp_path).settings["seed"]
    assert isinstance(ended, int)
    assert callback.seed == ended


def test_a_seed_that_the_user_states_is_shown_as_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, callback = seeds_of(tmp_path, monkeypatch, seed=7)
    assert {seed for told in seen for seed in told} == {7}
    assert (callback.seed, report_in(tmp_path).settings["seed"]) == (7, 7)


def test_two_trainings_of_one_callback_draw_seeds_of_their_own(tmp_path: Path) -> None:
    audit = PrivacyAudit(examinations=0)
    seeds = []
    for name in ("one", "other"):
        trainer_for(tmp_path / name, audit, max_epochs=1).fit(PrivateModule())
        seeds.append(audit.seed)
    assert seeds[0] != seeds[1]
