"""A difference of two replays stands only if it is the same vector under a second seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from plain_step import PlainStep

from lightning_audit.replay.records import Judged, hands_all_over, is_noise, judge
from lightning_audit.replay.step_replay import Replay, StepReplay
from lightning_audit.replay.training_state import TrainingState


def drawn(
    change: Callable[[torch.Tensor, int], torch.Tensor], size: int, *, mark: int = 0
) -> Callable[[int], list[Replay]]:
    """A pair whose second release is a change of the first; `mark` is that of its own numbers."""

    def draw(seed: int) -> list[Replay]:
        noise = torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()
        marks = [("start", 0)], [("start", mark)]
        releases = noise, change(noise, seed)
        return [Replay([r], marks=m) for r, m in zip(releases, marks, strict=True)]

    return draw


def record(far: float, size: int) -> Callable[[torch.Tensor, int], torch.Tensor]:
    direction = torch.ones(size).double() / math.sqrt(size)
    return lambda noise, _: noise + far * direction


def other_noise(noise: torch.Tensor, seed: int) -> torch.Tensor:
    own = torch.Generator().manual_seed(seed + 77)
    return torch.randn(len(noise), generator=own).double()


@pytest.mark.parametrize("size", [1, 2, 10, 24, 25, 100, 5000])
@pytest.mark.parametrize("by_row", [False, True])
def test_what_a_record_adds_is_a_finding_in_any_dimension(size: int, by_row: bool) -> None:
    judged = judge(drawn(record(3.0, size), size), 1, 1.0, by_row=by_row)
    assert judged == Judged(pytest.approx(3.0))


@pytest.mark.parametrize("size", [1, 2, 10, 24, 25, 100, 5000])
@pytest.mark.parametrize("by_row", [False, True])
def test_other_noise_is_no_finding_in_any_dimension(size: int, by_row: bool) -> None:
    draw = drawn(other_noise, size)
    found = [judge(draw, seed, 1e-3, by_row=by_row).tells for seed in range(0, 3000, 10)]
    # One entry: three differences of one size within a tenth come by chance in 1 of 2,000.
    assert sum(found) <= (3 if size == 1 else 1)


@pytest.mark.parametrize("size", [25, 64, 400, 6400, 100_000])
def test_independent_differences_pass_for_a_record_in_one_of_thirty_thousand(size: int) -> None:
    least = min(max(0.05, 4.0 / math.sqrt(size)), 0.9)
    assert is_noise(least - 1e-9, size)
    assert not is_noise(least, size)
    generator = torch.Generator().manual_seed(size)
    count = 2_000_000 // size
    one, other = torch.randn(2, count, size, generator=generator)
    cosines = torch.nn.functional.cosine_similarity(one, other)
    mistaken = sum(not is_noise(float(cosine), size) for cosine in cosines)
    assert mistaken <= 1 + count / 10_000


def test_other_marks_and_failures_tell_nothing() -> None:
    assert judge(drawn(record(3.0, 50), 50, mark=1), 1, 1.0).shifted
    assert judge(lambda _: [Replay(error="no"), Replay()], 1, 1.0) == Judged(failed=True)


def test_a_small_part_in_common_is_no_finding_unless_a_row_alone_differs() -> None:
    def rounded(noise: torch.Tensor, seed: int) -> torch.Tensor:
        far = torch.randn(400, generator=torch.Generator().manual_seed(seed + 5)).double() / 20.0
        return record(0.8, 400)(noise, seed) + 0.9 * far

    assert judge(drawn(rounded, 400), 1, 1.0).shifted
    assert judge(drawn(rounded, 400), 1, 1.0, by_row=True).far > 1.0
    assert judge(drawn(rounded, 400), 1, 1.0, by_row=True, least_cosine=0.9).shifted


def test_a_pair_that_is_not_too_far_apart_is_replayed_once() -> None:
    seeds = []
    draw = drawn(record(0.9, 50), 50)
    judge(lambda seed: seeds.append(seed) or draw(seed), 1, 1.0)
    assert seeds == [1]


class AddsMean(DPOptimizer):
    """Adds the mean of the batch to the release, beside what is clipped."""

    mean = 0.0

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            p.grad += self.mean


class Adds(PlainStep):
    """Tells its optimizer the mean of the batch."""

    def take(self, batches: Sequence[Any]) -> None:
        for x, _ in batches:
            self.optimizers[0].mean = float(x.mean())
        super().take(batches)


@pytest.mark.parametrize("kind", [DPOptimizer, AddsMean])
def test_what_is_added_beside_the_hand_over_is_seen(kind: type[DPOptimizer]) -> None:
    user = Adds(kind)
    step = user.adapter
    replay = StepReplay(user.take, user.module, step, step.claim(1), TrainingState(user.roots()))
    assert hands_all_over(replay, user.batch(), 1) == (kind is DPOptimizer)
