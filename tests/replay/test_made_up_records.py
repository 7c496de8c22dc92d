"""Records that are made up have numbers that were seen, column by column."""

from __future__ import annotations

import pytest
import torch
from plain_step import PlainStep

from lightning_audit.replay.records import made_up_records, within_range
from lightning_audit.replay.step_replay import StepReplay
from lightning_audit.replay.training_state import TrainingState


def batch_of(columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return columns, torch.arange(len(columns)) % 3


def made(batch: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
    """All records that are made up beside a batch."""
    user = PlainStep()
    step = user.adapter
    replay = StepReplay(user.take, user.module, step, step.claim(1), TrainingState(user.roots()))
    return [longer for _, longer in made_up_records(replay, [batch], 1)]


COLUMNS = {
    "prices": torch.exp(6.0 + 2.0 * torch.randn(8, 6, generator=torch.Generator().manual_seed(1))),
    "counts": torch.randint(0, 9, (8, 6), generator=torch.Generator().manual_seed(2)).float(),
    "measurements": 1e3 * torch.randn(8, 6, generator=torch.Generator().manual_seed(3)),
    "one value": torch.full((8, 6), 3.5),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_number_was_seen_in_its_column(name: str) -> None:
    batch = batch_of(COLUMNS[name])
    records = [(x[-1], y[-1]) for x, y in made(batch)]
    records += list(zip(*within_range(batch, 5), strict=True))
    assert len(records) == 3 + 8
    for x, y in records:
        assert bool((x == batch[0]).any(0).all())
        assert y in batch[1]


def test_the_batch_itself_is_left_alone_and_one_record_comes_behind_it() -> None:
    batch = batch_of(COLUMNS["measurements"])
    before = batch[0].clone()
    for x, y in made(batch):
        assert torch.equal(x[:-1], before)
        assert torch.equal(y[:-1], batch[1])
        assert len(x) == len(y) == 9
    assert torch.equal(batch[0], before)


def test_whole_numbers_stay_a_records_own() -> None:
    x, y = within_range((COLUMNS["counts"], torch.arange(8)), 1)
    assert y.tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert torch.equal(x, x.round())
