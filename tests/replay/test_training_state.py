"""Whatever a step changes is put back, to the bit."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from lightning_audit.replay.training_state import CannotKeep, TrainingState, room_for


class Counter:
    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.count, self.nested = 0, {"rows": [torch.zeros(2)], "names": {"a"}}


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Training(nn.Module):
    """A module with all kinds of state."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.counter, self.slotted, self.kept = Counter(), Slotted(), deque([1, 2])
        self.generator = torch.Generator().manual_seed(1)
        self.numpy, self.python = np.random.default_rng(1), random.Random(1)
        self.array, self.nothing = np.zeros(3), float("nan")
        calls = 0

        def count() -> int:
            nonlocal calls
            calls += 1
            return calls

        self.enclosed = count

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Change all of it."""
        optimizer.zero_grad()
        self.net(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        self.counter.count += 1
        self.counter.seen.append(1)
        self.counter.nested["rows"][0].add_(1.0)  # type: ignore[attr-defined]
        self.counter.nested["rows"].append(torch.ones(1))  # type: ignore[attr-defined]
        self.counter.nested["names"].add("b")  # type: ignore[attr-defined]
        self.slotted.count += 1
        self.kept.append(len(self.kept))
        self.array += self.numpy.random() + self.python.random() + random.random()
        self.array += float(torch.rand(1, generator=self.generator)) + np.random.random()
        self.enclosed()
        self.fresh = torch.ones(3)


def everything(module: Training, optimizer: torch.optim.Optimizer) -> str:
    held: dict[str, Any] = {name: value.tolist() for name, value in module.state_dict().items()}
    held["grads"] = [None if p.grad is None else p.grad.tolist() for p in module.parameters()]
    held["optimizer"] = repr(optimizer.state_dict())
    counter = module.counter
    held["counter"] = repr((counter.count, counter.seen, counter.nested, module.slotted.count))
    held["others"] = repr((module.kept, module.array, sorted(vars(module))))
    held["calls"] = module.enclosed.__closure__[0].cell_contents  # type: ignore[index]
    held["drawn"] = repr(
        (
            module.generator.get_state().tolist(),
            module.numpy.bit_generator.state,
            module.python.getstate(),
            torch.get_rng_state().tolist(),
            np.random.get_state(),
            random.getstate(),
        )
    )
    return repr(held)


@pytest.fixture
def training() -> tuple[Training, torch.optim.Optimizer]:
    torch.manual_seed(0)
    Counter.seen.clear()
    module = Training()
    return module, torch.optim.Adam(module.parameters())


@pytest.mark.parametrize("steps", [0, 2])
def test_everything_is_as_it_was_after_any_number_of_steps(
    training: tuple[Training, torch.optim.Optimizer], steps: int
) -> None:
    module, optimizer = training
    for _ in range(steps):
        module.step(optimizer)
    before = everything(module, optimizer)
    state = TrainingState([module, optimizer])
    for _ in range(3):
        module.step(optimizer)
        module.step(optimizer)
        assert everything(module, optimizer) != before
        state.put_back()
        assert everything(module, optimizer) == before
    assert state.lost == []


def test_a_change_that_bypasses_autograd_is_put_back() -> None:
    weight = nn.Parameter(torch.zeros(3))
    state = TrainingState([weight])
    weight.data.add_(1.0)
    state.put_back()
    assert weight.tolist() == [0.0, 0.0, 0.0]


def test_not_a_number_stays_what_it_is() -> None:
    tensor = torch.tensor([float("nan"), 1.0])
    state = TrainingState([tensor])
    tensor.fill_(2.0)
    state.put_back()
    assert torch.equal(torch.isnan(tensor), torch.tensor([True, False]))


def test_one_seed_gives_the_same_numbers_from_every_generator(
    training: tuple[Training, torch.optim.Optimizer],
) -> None:
    module, _ = training
    state = TrainingState([module])

    def drawn(seed: int) -> tuple[float, ...]:
        state.seed(seed)
        return (
            float(torch.rand(1)),
            float(np.random.random()),
            random.random(),
            float(torch.rand(1, generator=module.generator)),
            float(module.numpy.random()),
        )

    assert drawn(5) == drawn(5)
    assert len({*drawn(5), *drawn(6)}) == 10


def test_what_is_not_followed_is_left_alone() -> None:
    other = SimpleNamespace(count=0)
    held = SimpleNamespace(other=other, count=0)
    state = TrainingState([held], not_followed=[other])
    held.count = other.count = 3
    state.put_back()
    assert (held.count, other.count) == (0, 3)


def test_what_does_not_fit_is_not_kept() -> None:
    held = SimpleNamespace(cache=torch.zeros(8), array=np.zeros(8))
    TrainingState([held], room=4 * 8 + 8 * 8)
    with pytest.raises(CannotKeep, match="keep data in a Dataset"):
        TrainingState([held], room=4 * 8 + 8 * 8 - 1)


def test_the_room_is_that_of_parameters_gradients_and_states() -> None:
    net = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.Adam(net.parameters())
    before = room_for(net.parameters(), [optimizer])
    net(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    entries = 1000 * 1000 + 1000
    assert room_for(net.parameters(), [optimizer]) - before == pytest.approx(3 * 4 * entries, 1e-3)


def test_what_cannot_be_put_back_is_named() -> None:
    held = SimpleNamespace(cache=torch.zeros(8))
    state = TrainingState([held])
    held.cache.resize_(4)
    state.put_back()
    assert state.lost == ["a tensor of shape (8,) has another shape now"]


COUNT, SEEN, GENERATOR = 0, [1], torch.Generator().manual_seed(1)


class Counts:
    """Counts in its class and in its module."""

    total = 0

    def step(self) -> None:
        global COUNT
        COUNT += 1
        Counts.total += 1
        SEEN.append(2)
        torch.rand(3, generator=GENERATOR)


def test_variables_of_the_users_module_and_classes_are_put_back() -> None:
    held, drawn = Counts(), GENERATOR.get_state()
    state = TrainingState([held])
    held.step()
    state.put_back()
    assert (COUNT, Counts.total, SEEN) == (0, 0, [1])
    assert torch.equal(GENERATOR.get_state(), drawn)
    assert GENERATOR in state.generators


@pytest.mark.parametrize("made", [lambda: iter([1, 2]), lambda: (x for x in [1]), lambda: zip([1])])
def test_an_iterator_cannot_be_put_back_and_is_refused(made: Any) -> None:
    with pytest.raises(CannotKeep, match="holds an iterator"):
        TrainingState([SimpleNamespace(stream=made())])


def test_an_open_file_is_left_alone(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        TrainingState([SimpleNamespace(log=file)]).put_back()
        file.write("still open")
