"""All generators are set at the places of a step, and marks tell how many numbers were drawn."""

import math
import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import wrap_data_loader
from plain_step import PlainStep, replay_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.checks.check import OF_REPLAYS, shares
from lightning_audit.checks.replay_findings import Reason
from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.replay.releases import Release, hidden_by_noise, on_a_lattice, too_coarse
from lightning_audit.replay.rows import Rows
from lightning_audit.replay.step_replay import (
    RandomPlaces,
    Replay,
    RowsReplay,
    StepReplay,
    count_rows,
    distance,
    equal_releases,
    folded,
    same_numbers,
    shift_by_more_draws,
)
from lightning_audit.replay.taken_step import StepWatch, TakenStep
from lightning_audit.replay.training_state import TrainingState

#: Of one decision.
LEVEL = 1e-4
OWN = SimpleNamespace(
    torch=torch.Generator().manual_seed(1),
    numpy=np.random.default_rng(1),
    legacy=np.random.RandomState(1),
    python=random.Random(1),
    system=random.SystemRandom(),
)
DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(1).item(),
    "NumPy": lambda: np.random.rand(),
    "random": lambda: random.random(),
    "an own torch.Generator": lambda: torch.rand(1, generator=OWN.torch).item(),
    "an own numpy.random.Generator": lambda: OWN.numpy.random(),
    "an own numpy.random.RandomState": lambda: OWN.legacy.rand(),
    "an own random.Random": lambda: OWN.python.random(),
    "an own random.SystemRandom": lambda: OWN.system.random(),
    "os.urandom": lambda: os.urandom(4),
}


def replayed(draw: Callable[[], Any], before: int, after: int, seed: int = 3) -> Any:
    """What is drawn at the cut, and the replay, where so many were drawn before."""
    state, found = TrainingState([OWN]), Replay(releases=[Release(torch.zeros(1))])
    places = RandomPlaces(state, seed, found)
    with state.entropy:
        places.begin()
        for _ in range(before):
            draw()
        places.passes("clipping")
        clipped = draw()
        for _ in range(after):
            draw()
        places.passes("cut")
        drawn = clipped, draw()
    state.put_back()
    return drawn, found


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("counts", [(1, 0), (0, 1)])
def test_one_more_draw_shows_and_moves_nothing_behind(name, counts):
    usual, one = replayed(DRAWS[name], 2, 2)
    more, other = replayed(DRAWS[name], 2 + counts[0], 2 + counts[1])
    assert usual == more
    assert not same_numbers(one, other)
    assert same_numbers(one, replayed(DRAWS[name], 2, 2)[1])
    assert usual != replayed(DRAWS[name], 2, 2, seed=4)[0]
    assert one.drew
    assert not replayed(DRAWS[name], 0, 2)[1].drew


def test_a_place_that_counts_once_sets_and_marks_nothing_the_second_time():
    state, found = TrainingState([]), Replay()
    places = RandomPlaces(state, 1, found)
    places.begin()
    places.passes("clipping", once=True)
    first = torch.rand(2)
    places.passes("clipping", once=True)
    assert not torch.equal(first, torch.rand(2))
    assert [place for place, _ in found.marks] == ["start", "clipping"]


def test_a_second_step_has_its_own_numbers_whatever_the_first_drew():
    seen = []
    for draws in (0, 3):
        found = Replay()
        places = RandomPlaces(TrainingState([]), 1, found)
        places.begin()
        torch.rand(1 + draws)
        places.passes("cut")
        places.begin_second()
        seen.append(torch.rand(2).tolist())
        places.passes("cut")
        seen[-1] += torch.rand(2).tolist()
        assert [place for place, _ in found.marks] == ["start", "cut"]
    assert seen[0] == seen[1]


def test_other_numbers_before_the_cut_leave_those_behind_it():
    seen = []
    for others in ({}, {"clipping": 1, "noise": 1}, {"clipping": 2, "noise": 2}):
        places = RandomPlaces(TrainingState([]), 1, Replay(), others)
        places.begin()
        drawn = [torch.rand(1).item()]
        for place in ("clipping", "noise", "cut"):
            places.passes(place)
            drawn.append(torch.rand(1).item())
        places.begin_second()
        places.passes("noise")
        seen.append([*drawn, torch.rand(1).item()])
    usual, same, other = seen
    assert usual == same
    assert [a == b for a, b in zip(usual, other, strict=True)] == [True, False, False, True, True]


def test_a_step_that_is_not_taken_is_compared_up_to_where_it_went():
    one = Replay(
        releases=[Release(torch.zeros(1))], marks=[("start", 1), ("clipping", 2), ("cut", 3)]
    )
    assert same_numbers(one, Replay(marks=[("start", 1), ("clipping", 2)]))
    assert not same_numbers(one, Replay(marks=[("start", 1), ("clipping", 4)]))


# --- Per-sample gradients in few columns keep their norms, and those of their differences.

SHAPES = [(5, 40, 30), (5, 40), (5, 7, 3, 3)]


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in SHAPES]


def norms(grads: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([grad.flatten(1) for grad in grads], 1).norm(dim=1)


@pytest.mark.parametrize(("columns", "tolerated"), [(1303, 1e-5), (1302, 0.01), (400, 0.15)])
def test_norms_and_norms_of_differences_stay(columns, tolerated):
    one, other = gradients(0), gradients(1)
    change = folded(one, columns) - folded(other, columns)
    assert change.shape == (5, columns)
    assert torch.allclose(folded(one, columns).norm(dim=1), norms(one), rtol=tolerated)
    differences = [mine - its for mine, its in zip(one, other, strict=True)]
    assert torch.allclose(change.norm(dim=1), norms(differences), rtol=tolerated)


def test_a_change_of_one_entry_of_one_tensor_is_not_lost():
    one, other = gradients(0), gradients(0)
    other[1][2, 17] += 3.0
    change = (folded(one, 50) - folded(other, 50)).norm(dim=1)
    assert torch.allclose(change, torch.tensor([0.0, 0.0, 3.0, 0.0, 0.0]), atol=1e-4)


def test_entries_with_a_column_each_and_numbers_that_are_not_finite_stay_so():
    before, one = torch.get_rng_state(), gradients(0)
    assert torch.equal(folded(one, 1303), torch.cat([grad.flatten(1) for grad in one], 1))
    one[0][3, 2, 1] = torch.inf
    assert torch.isfinite(folded(one, 50).norm(dim=1)).tolist() == [True] * 3 + [False, True]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_parameter_of_one_number_has_rows_as_others_have():
    grads = [torch.tensor([3.0, 0.0, 1.0]), torch.tensor([[4.0, 0.0], [0.0, 2.0], [0.0, 0.0]])]
    assert folded(grads, 10).shape == (3, 3)
    found = Replay()
    count_rows(found, grads, 2.0)
    assert found.norms[0].tolist() == [2.5, 1.0, 0.5]
    count_rows(found, [grad[:0] for grad in grads], 2.0)
    assert found.rows == 3


# --- Differences of releases are told from rounding and from the steps of a lattice.


def replay(*releases: torch.Tensor) -> Replay:
    return Replay(releases=list(map(Release, releases)))


def test_distance_is_that_of_all_steps_together():
    one = replay(torch.zeros(3), torch.zeros(2))
    assert distance(one, replay(torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 4.0]))) == 5.0
    assert distance(one, replay(torch.zeros(3))) == math.inf
    assert distance(replay(torch.zeros(1)), replay(torch.tensor([math.nan]))) == math.inf
    assert distance(replay(), replay()) == 0.0
    assert equal_releases(one, one)
    assert not equal_releases(replay(torch.tensor([0.1])), replay(torch.tensor([0.1 + 1e-7])))


@pytest.mark.parametrize(("rounding", "hidden"), [(0.0, False), (0.06, False), (0.07, True)])
def test_rounding_beyond_the_tolerance_hides_a_sensitivity(rounding, hidden):
    assert bool(too_coarse(rounding, 2e-3)) == hidden


def test_integers_lie_on_a_lattice_and_normal_noise_does_not():
    noise = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    assert not on_a_lattice(noise)
    assert on_a_lattice((4 * noise).round())


@pytest.mark.parametrize(("norm", "seen"), [(1.0, 1.0), (3.0, 3.0)])
def test_the_shift_behind_a_lattice_is_seen_over_some_draws(norm, seen):
    size = 4000
    shift = torch.full((size,), norm / size**0.5, dtype=torch.float64)

    def draw(seed: int) -> list[Replay]:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(size, generator=generator, dtype=torch.float64)
        return [replay((4 * (noise + part)).round() / 4) for part in (shift, 0.0 * shift)]

    assert distance(*draw(0)) > 2.0 * norm
    assert shift_by_more_draws(draw, 0) == pytest.approx(seen, rel=0.25)


def _hidden(norm: float, seed: int, smooth: int = 1, size: int = 200, draws: int = 24) -> bool:
    """Whether noise hides a change; both may be averages of entries beside each other."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(draws + 1, size, generator=generator, dtype=torch.float64)
    change = torch.ones(size, dtype=torch.float64) if smooth > 1 else raw[0]
    noise = raw[1:].unfold(1, smooth, 1).mean(2) if smooth > 1 else raw[1:]
    change = norm * change[: noise.shape[1]] / change.norm()
    return hidden_by_noise(change, [3.0 * n for n in noise], 3.0, 1.0, LEVEL)


@pytest.mark.parametrize("smooth", [1, 8])
def test_a_change_is_hidden_by_noise_up_to_the_claimed_ratio_in_any_unit(smooth):
    # One of 10,000 correct ones is not; averages keep the noise along a change that is smooth.
    assert all(_hidden(1.0, seed, smooth) for seed in range(300))
    assert not any(_hidden(4.0, seed, smooth) for seed in range(100))
    change, noise = torch.eye(3)[0].double(), [torch.zeros(3).double() for _ in range(5)]
    assert not hidden_by_noise(change, noise, 1.0, 1.0, LEVEL)
    assert not hidden_by_noise(change * math.nan, [torch.randn(3).double()] * 2, 1.0, 1.0, LEVEL)
    for unit in (1e-6, 1e6):
        noise = [unit * torch.randn(3, dtype=torch.float64) for _ in range(5)]
        assert not hidden_by_noise(100.0 * unit * change, noise, 1.0, 1.0, LEVEL)


@pytest.mark.nightly
def test_of_correct_changes_of_one_entry_few_are_not_hidden():
    few = torch.eye(3)[0].double()
    generator = torch.Generator().manual_seed(7)
    hidden = [
        hidden_by_noise(few, list(torch.randn(5, 3, generator=generator).double()), 1.0, 1.0, LEVEL)
        for _ in range(5000)
    ]
    assert hidden.count(False) <= 4  # .5 expected


def test_noise_elsewhere_hides_nothing():
    change = torch.zeros(100, dtype=torch.float64)
    change[:50] = 1.0
    noise = [torch.cat([torch.zeros(50), torch.randn(50)]).double() for _ in range(5)]
    assert not hidden_by_noise(change, noise, 1.0, 1.0, LEVEL)


def test_the_decisions_of_all_examinations_of_a_run_share_its_part_of_the_significance():
    levels = [OF_REPLAYS / (n * (n + 1)) for n in range(1, 50)]
    replays: list[Any] = [SimpleNamespace(_level=level, _decisions=0) for level in levels]
    spent = sum(StepReplay.next_level(replay) for replay in replays for _ in range(100))
    assert 0.9 * OF_REPLAYS < spent <= OF_REPLAYS
    assert sum(shares().values()) + OF_REPLAYS <= 1.0


def test_an_examination_may_take_eighty_times_the_step_as_the_training_takes_it(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("lightning_audit.replay.step_replay.clock", lambda: now[0])
    user = PlainStep()
    user.take([user.batch()])
    replay = replay_of(user, TakenStep(work=0.1), budget=10_000)
    replay.steps, now[0] = 10, 105.0  # half a second each
    assert replay.has_left(6)
    assert not replay.has_left(7)
    replay.step_seconds = 0.4  # a replay takes longer than the step did
    assert replay.has_left(6)
    replay.step_seconds = 0.05  # the first step was slow
    assert not replay.has_left(1)
    replay.step_seconds, replay._per_row = 0.1, 0.01
    assert replay.has_left(1, rows=300)
    assert not replay.has_left(1, rows=301)


# --- Gradients of the audit's own take the place of those of a batch.


def rows_of(user: PlainStep, seed: int = 3) -> tuple[RowsReplay, int]:
    user.take([user.batch()])
    replay = replay_of(user)
    size = sum(replay.sizes)
    return RowsReplay(replay, user.batch(), Rows.zeros(8, torch.zeros(size).double()), seed), size


class OnHost(TorchDispatchMode):
    """Notes the largest tensor that is made on the host."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.is_cpu:
            self.most = max(self.most, made.numel())
        return made


def test_no_more_than_one_row_of_a_batch_is_made_on_the_host():
    row, like = torch.randn(5000), torch.empty(50, 100, device="meta")
    with OnHost() as host:
        for rows in (Rows.alike(row, 271), Rows.alone(row, -1, 271), Rows.zeros(271, row)):
            assert rows.part(0, like, 1.0, views=2).shape == (542, 50, 100)
            assert rows.without(0).part(0, like, 1.0).device.type == "meta"
            assert len(rows.zeroed(0).part(0, like, 1.0)) == 271
    assert host.most == len(row)


@pytest.mark.parametrize("views", [1, 2])
def test_a_parameters_part_is_that_of_the_rows_in_its_type(views):
    rows = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [3.0, 4.0, 5.0]], dtype=torch.float64)
    made = Rows(rows[[0, 2]], torch.tensor([0, -1, 1]))
    assert torch.equal(made.dense(), rows)
    assert torch.equal(torch.stack([made[k] for k in range(3)]), rows)
    part = made.part(1, torch.zeros(2, 1, dtype=torch.float16), 0.5, views)
    expected = 0.5 * rows[:, 1:].repeat_interleave(views, 0)
    assert torch.equal(part, expected.half()[..., None])
    assert torch.equal(made.without(-1).dense(), rows[:2])
    assert torch.equal((made.zeroed(-1) * 2.0).dense(), 2.0 * rows * torch.tensor([[1], [1], [0]]))
    assert torch.equal(Rows.alone(rows[2], -1, 3).dense(), rows * torch.tensor([[0], [0], [1]]))


def test_crafted_gradients_take_the_memory_of_few_rows():
    """Of 271 records and a million entries, as a batch of ResNet-18's may have."""
    made, row = [], torch.zeros(1_000_000)
    made += [Rows.zeros(271, row), Rows.alike(row, 271), Rows.alone(row, 3, 271)]
    made += [made[2].zeroed(3), made[1].without(0), made[2] * 2.0]
    assert max(each.different.numel() for each in made) <= len(row)


def test_releases_differ_by_the_sum_of_the_rows_whatever_the_batch():
    given, size = rows_of(PlainStep())
    assert given.alone
    rows = torch.zeros(11, size, dtype=torch.float64)
    without = given.run(Rows.of(rows), 7).release
    rows[2, 5], rows[10, 0] = 0.25, 40.0
    difference = given.run(Rows.of(rows), 7).release - without
    expected = torch.zeros(size, dtype=torch.float64)
    expected[5], expected[0] = 0.25, 1.0
    torch.testing.assert_close(difference, expected, atol=1e-5, rtol=0.0)


def test_why_no_rows_can_be_put_in():
    def why_no_rows(usual: Replay, count: int, *, by_opacus: bool) -> str:
        replay: Any = SimpleNamespace(clips_by_opacus=by_opacus)
        return StepReplay.why_no_rows(replay, usual, count)

    assert why_no_rows(Replay(rows=8, parts=1), 8, by_opacus=True) == ""
    none = "no per-sample gradients of a batch are formed"
    assert why_no_rows(Replay(), 8, by_opacus=True) == none
    assert why_no_rows(Replay(parts=1), 8, by_opacus=False) == none  # a loop over samples
    assert why_no_rows(Replay(), 8, by_opacus=False) == Reason.NOT_CALLED
    doubled = why_no_rows(Replay(rows=16, parts=1), 8, by_opacus=True)
    assert doubled == "the number of clipped gradients per record is not one"
    parts = Replay(rows=8, parts=2)
    assert why_no_rows(parts, 8, by_opacus=True) == "the batch is clipped in several parts"
    assert why_no_rows(parts, 8, by_opacus=False) == ""


# --- The batches of one step are collected as they were before it.


def training(records: int = 32) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    data = TensorDataset(torch.randn(records, 4), torch.zeros(records, dtype=torch.long))
    return PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )


def watched(net: Any, optimizer: Any) -> StepWatch:
    names = {id(p): name for name, p in net.named_parameters()}
    return StepWatch(opacus_step(optimizer, names, net.modules()))


def train(net: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()
    optimizer.step()


def test_a_step_has_the_batch_as_it_was():
    net, optimizer, _ = training()
    watch = watched(net, optimizer)
    batch = (torch.ones(8, 4), torch.zeros(8, dtype=torch.long))
    watch.start_batch(batch)
    assert watch.end_batch() is None
    batch[0].mul_(2.0)
    train(net, optimizer, batch)
    taken = watch.end_batch()
    assert torch.equal(taken.batches[0][0], torch.ones(8, 4))
    assert taken.skips == [False]


def test_calls_of_the_steps_own_code_are_none_of_the_batches():
    net, optimizer, _ = training()
    watch = watched(net, optimizer)
    watch.start_batch((torch.ones(8, 4), torch.zeros(8, dtype=torch.long)))
    for part in range(2):
        optimizer.signal_skip_step(do_skip=not part)
        train(net, optimizer, (torch.ones(4, 4), torch.zeros(4, dtype=torch.long)))
    taken = watch.end_batch()
    assert (taken.calls, taken.skips) == ([True, False], [])


def test_physical_batches_of_a_logical_one_stand_together():
    net, optimizer, loader = training()
    split = wrap_data_loader(data_loader=loader, max_batch_size=3, optimizer=optimizer)
    watch, taken = watched(net, optimizer), None
    sizes = []
    for batch in split:
        watch.start_batch(batch)
        train(net, optimizer, batch)
        sizes.append(len(batch[0]))
        if taken := watch.end_batch():
            break
    assert [len(batch[0]) for batch in taken.batches] == sizes
    assert len(sizes) > 1
    assert taken.skips == [True] * (len(sizes) - 1) + [False]


def test_nothing_is_left_on_the_optimizer():
    net, optimizer, _ = training()
    hooks = dict(optimizer.original_optimizer._optimizer_step_post_hooks)
    watched(net, optimizer).remove()
    assert dict(optimizer.original_optimizer._optimizer_step_post_hooks) == hooks
    assert "pre_step" not in vars(optimizer)
