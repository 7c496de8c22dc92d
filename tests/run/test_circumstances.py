"""Circumstances of a training: how it ended, and a course that stays short."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_audit.results.report_details import CourseRow, Ended
from lightning_audit.run.report_files import MOST_ROWS, Circumstances


def session(steps: int) -> Any:
    seen = SimpleNamespace(observations=8 * steps)
    return SimpleNamespace(monitor=SimpleNamespace(steps=steps, log_e_value=0.5, sensitivity=seen))


def course(epochs: int, about: Circumstances | None = None) -> Circumstances:
    about = about or Circumstances()
    for epoch in range(epochs):
        metrics = {"mu_lower": epoch / 10.0}
        about.end_epoch(epoch, [session(epoch + 1)], None, metrics)  # type: ignore[arg-type]
    return about


def test_each_epoch_has_a_row() -> None:
    assert course(3).rows == [CourseRow(n + 1, n, n / 10.0, 0.5, 8 * n + 8) for n in range(3)]


@pytest.mark.parametrize("epochs", [MOST_ROWS, MOST_ROWS + 1, 1000, 1601])
def test_rows_of_many_epochs_are_thinned_evenly(epochs: int) -> None:
    rows = course(epochs).rows
    assert MOST_ROWS // 2 <= len(rows) <= MOST_ROWS
    gaps = {b.epoch - a.epoch for a, b in itertools.pairwise(rows)}
    assert len(gaps) == 1
    assert rows[0].epoch == 0
    assert epochs - rows[-1].epoch <= max(gaps)


def test_rows_go_on_after_a_checkpoint_and_a_resumed_epoch_replaces_its_own() -> None:
    about = Circumstances()
    about.load(course(450).state())
    assert about.rows == course(450).rows
    last = about.rows[-1].epoch
    about.end_epoch(last, [session(7)], None, {})  # type: ignore[arg-type]
    assert about.rows[-1] == CourseRow(7, last, None, 0.5, 56)
    assert [row.epoch for row in about.rows] == [row.epoch for row in course(450).rows]
    about.load({})  # of an earlier version
    assert about.rows == []


def test_how_it_ended() -> None:
    about = Circumstances()
    assert about.ended(3, "") is None
    about.ended_by = "planned"
    assert about.ended(3, "") == Ended(3, "planned")
    assert about.ended(3, "the training broke off with OSError") == Ended(3, "broke off")


def test_what_is_known_of_a_trainer() -> None:
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    trainer = SimpleNamespace(precision="bf16-mixed", strategy=strategy, world_size=2)
    about = Circumstances.of(trainer).now
    assert about is not None
    assert (about.device, about.precision, about.processes) == ("cpu", "bf16-mixed", 2)
    assert (about.name, about.commit) == ("", None)
    assert about.seconds >= 0.0
