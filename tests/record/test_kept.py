from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from lightning_audit.record.store import Kept


class Part(Kept):
    KEPT: ClassVar[tuple[str, ...]] = ("count",)

    def __init__(self) -> None:
        self.count = 0
        self.private = 1.0


class Whole(Kept):
    KEPT: ClassVar[tuple[str, ...]] = ("past", "part", "names")

    def __init__(self) -> None:
        self.past: np.ndarray | None = None
        self.part = Part()
        self.names = ["a"]


def test_declared_attributes_come_back_and_no_others() -> None:
    one, other = Whole(), Whole()
    one.past, one.part.count, one.part.private = np.arange(3.0), 7, 5.0
    one.names.append("b")
    state = one.state()
    one.past[0] = 9.0
    one.names.append("c")
    part = other.part
    other.load(state)
    assert other.past is not None
    assert other.past.tolist() == [0.0, 1.0, 2.0]
    assert (other.part.count, other.part.private, other.names) == (7, 1.0, ["a", "b"])
    assert other.part is part
    assert "5.0" not in repr(state)


def test_a_state_without_an_attribute_is_an_error() -> None:
    state = Whole().state()
    del state["part"]
    with pytest.raises(KeyError, match="part"):
        Whole().load(state)
