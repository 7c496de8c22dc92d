"""Gradients of the audit's own take the place of those of a batch."""

from __future__ import annotations

import torch
from plain_step import PlainStep

from lightning_audit.replay.step_replay import Replay, RowsReplay, StepReplay, why_no_rows
from lightning_audit.replay.training_state import TrainingState


def rows_of(user: PlainStep, seed: int = 3) -> tuple[RowsReplay, int]:
    step = user.adapter
    user.take([user.batch()])
    state = TrainingState(user.roots())
    replay = StepReplay(user.take, user.module, step, step.claim(1), state)
    size = sum(replay.sizes)
    return RowsReplay(replay, user.batch(), torch.zeros(8, size, dtype=torch.float64), seed), size


def test_releases_differ_by_the_sum_of_the_rows_whatever_the_batch() -> None:
    given, size = rows_of(PlainStep())
    assert given.alone
    rows = torch.zeros(11, size, dtype=torch.float64)
    without = torch.cat(given.run(rows, 7).releases)
    rows[2, 5], rows[10, 0] = 0.25, 40.0
    difference = torch.cat(given.run(rows, 7).releases) - without
    expected = torch.zeros(size, dtype=torch.float64)
    expected[5], expected[0] = 0.25, 1.0
    torch.testing.assert_close(difference, expected, atol=1e-5, rtol=0.0)


def test_why_no_rows_can_be_put_in() -> None:
    assert why_no_rows(Replay(rows=8, parts=1), 8, by_opacus=True) == ""
    assert "no per-sample gradients are formed" in why_no_rows(Replay(), 8, by_opacus=True)
    doubled = why_no_rows(Replay(rows=16, parts=1), 8, by_opacus=True)
    assert doubled == "the number of clipped gradients per record is not one"
    parts = Replay(rows=8, parts=2)
    assert why_no_rows(parts, 8, by_opacus=True) == "the batch is clipped in several parts"
    assert why_no_rows(parts, 8, by_opacus=False) == ""
