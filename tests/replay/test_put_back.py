"""Containers are put back as they were, whatever their methods do."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lightning_audit.replay.training_state import (
    GlobalGenerators,
    refill,
    refill_dict,
    same_bits,
    set_atoms,
    set_slot,
)


class Upper(dict[str, int]):
    """Keeps its keys in capitals, and counts how often it was written to."""

    written = 0

    def __setitem__(self, key: str, value: int) -> None:
        self.written += 1
        super().__setitem__(key.upper(), value)

    def clear(self) -> None:
        raise RuntimeError("never empty")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Counter("abracadabra"),
        lambda: OrderedDict([("b", 1), ("a", 2)]),
        lambda: defaultdict(int, {"x": 3}),
        lambda: {"plain": 1},
        lambda: Upper({"low": 1}),
    ],
)
def test_a_dictionary_of_any_kind_is_what_it_was(make: Any) -> None:
    held, before = make(), make()
    keys, values = list(held), list(held.values())
    dict.__setitem__(held, "new", 7) if isinstance(held, Upper) else held.update({"new": 7})
    first = keys[0]
    held.move_to_end(first) if isinstance(held, OrderedDict) else held.pop(first)
    refill_dict(held, keys, values)
    assert held == before
    assert list(held) == list(before)
    assert type(held) is type(before)
    assert not isinstance(held, Upper) or held.written == 0


def test_an_ordered_dictionary_can_be_used_on() -> None:
    held = OrderedDict([("b", 1), ("a", 2)])
    keys, values = list(held), list(held.values())
    held["c"] = 3
    refill_dict(held, keys, values)
    held.move_to_end("b")
    held["d"] = 4
    assert list(held) == ["a", "b", "d"]


@pytest.mark.parametrize("make", [lambda: [1, 2], lambda: deque([1, 2], 3), lambda: {1, 2}])
def test_a_container_is_what_it_was(make: Any) -> None:
    held, items = make(), list(make())
    held.clear()
    refill(held, items)
    assert held == make()


def test_attributes_and_slots_have_their_values_back() -> None:
    class Owner:
        number, name = 1, "a"

    put_back = set_atoms(dict(vars(Owner)), Owner)
    Owner.number, Owner.name = 2, "b"
    put_back()
    assert (Owner.number, Owner.name) == (1, "a")
    set_slot(Owner, "number", 5)
    assert Owner.number == 5


def test_bits_are_compared_and_not_values_alone() -> None:
    import torch

    assert same_bits(torch.ones(2), torch.ones(2))
    assert not same_bits(torch.ones(2), torch.ones(3))
    assert not same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))


@pytest.mark.parametrize(
    "draw", [lambda: torch.rand(1), np.random.random, random.random], ids=["torch", "numpy", "own"]
)
@pytest.mark.parametrize("when", ["before a replay", "behind it", "never"])
def test_global_generators_that_another_thread_moved_are_left_alone(
    draw: Callable[[], object], when: str
) -> None:
    generators = GlobalGenerators()
    before = repr(GlobalGenerators._states())
    if when == "before a replay":
        draw()
    generators.look()
    draw()  # of the replay
    generators.leave()
    if when == "behind it":
        draw()
    now = repr(GlobalGenerators._states())
    generators.put_back()
    assert generators.shared == (when != "never")
    assert repr(GlobalGenerators._states()) == (before if when == "never" else now)
