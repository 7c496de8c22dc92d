"""One sample is cut out of a batch, and put behind another, in the containers that users write."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lightning_audit.canaries.inputs import Sample, appended, copies, rows, sample_of

Pair = namedtuple("Pair", "image target")  # as users write them


def _x(n: int = 3) -> torch.Tensor:
    return torch.arange(4.0 * n).reshape(n, 4)


def _y(n: int = 3) -> torch.Tensor:
    return torch.arange(n)


CONTAINERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "dict": lambda x, y: {"image": x, "target": y},
    "named tuple": Pair,
    "nested": lambda x, y: {"views": (x, [x + 1]), "target": Pair(x, y)},
}


def _sample(batch: Any, **kwargs: Any) -> Sample:
    return sample_of(batch, 1, kwargs.get("input_name"), kwargs.get("label_name"))


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=list(CONTAINERS))
def test_the_canary_is_one_more_row_of_the_same_containers(make: Callable[..., Any]) -> None:
    sample = _sample(make(_x(), _y())).with_label(7)
    longer = appended(make(_x(), _y()), sample.with_input(torch.full((1, 4), 9.0)))
    assert type(longer) is type(make(_x(), _y()))
    assert rows(longer) == 4
    leaves = torch.utils._pytree.tree_leaves(longer)
    assert torch.equal(leaves[0], torch.cat([_x(), torch.full((1, 4), 9.0)]))
    assert leaves[-1].tolist() == [0, 1, 2, 7]


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=list(CONTAINERS))
def test_the_users_tensors_are_left_alone(make: Callable[..., Any]) -> None:
    x, y = _x(), _y()
    batch = make(x, y)
    sample = _sample(batch)
    sample.leaves[0].add_(100.0)
    appended(batch, sample)
    assert torch.equal(x, _x())
    assert torch.equal(y, _y())
    assert rows(batch) == 3


def test_an_empty_batch_becomes_the_canary_alone() -> None:
    longer = appended((_x()[:0], _y()[:0]), _sample((_x(), _y())))
    assert torch.equal(longer[0], _x()[1:2])


def test_input_and_label_are_found_by_their_type_or_named() -> None:
    batch = {"id": torch.arange(3), "far": {"x": _x()}, "y": _y(), "mask": torch.ones(3).bool()}
    found = _sample(batch)
    assert torch.equal(found.input, _x()[1:2])
    assert found.label_at == 2
    named = _sample(batch, input_name="far.x", label_name="id")
    assert named.label_at == 0


class _Opaque:
    pass


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (_Opaque(), ["_Opaque", "register_pytree_node"]),
        ((_x(), _Opaque()), ["_Opaque", "'1'", "collate_fn"]),
        ({"x": _x(), "names": ["a", "b", "c"]}, ["builtins.str", "'names.0'"]),
        ((_x(), torch.tensor(1.0)), ["without dimensions", "'1'"]),
        ((_x(), torch.ones(2)), ["'0': 3", "'1': 2"]),
        ((), ["holds no tensor"]),
    ],
)
def test_other_batches_are_refused_by_type_and_place(batch: Any, words: list[str]) -> None:
    with pytest.raises(ValueError, match="the batch") as raised:
        rows(batch)
    for word in words:
        assert word in str(raised.value)


def test_a_batch_of_another_kind_than_the_canarys_is_refused() -> None:
    sample = _sample((_x(), _y()))
    with pytest.raises(ValueError, match="other containers"):
        appended([_x(), _y()], sample)
    with pytest.raises(ValueError, match=r"shape \(5,\), the canary has \(4,\)"):
        appended((torch.ones(2, 5), _y(2)), sample)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"label='z' must name a tensor .* \['0', '1'\]"):
        _sample((_x(), _y()), label_name="z")


def test_any_part_of_the_mixed_batch_has_copies_and_others() -> None:
    alone, mixed, count = copies({"x": _x(8), "y": (_y(8),)})
    assert alone["y"][0].tolist() == [0] * 8
    assert torch.equal(alone["x"], _x(8)[:1].repeat(8, 1))
    kept = mixed["y"][0]
    assert torch.equal(mixed["x"], _x(8)[kept])
    assert count == int((kept == 0).sum()) == 5
    for part in (kept[::2], kept[1::2], kept[:4], kept[4:]):
        assert 0 < int((part == 0).sum()) < len(part)
