from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from lightning_audit.files.typed_json import read


@dataclass(frozen=True)
class Inner:
    share: float
    kind: Literal["a", "b"]


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    flag: bool
    limit: float | None
    rows: tuple[Inner, ...]
    pair: tuple[float, int | None]
    sizes: Mapping[str, float]
    free: Any = None


GOOD: dict[str, Any] = {
    "name": "inf",
    "count": 3,
    "flag": True,
    "limit": "-inf",
    "rows": [{"share": 0.5, "kind": "a"}],
    "pair": [1, None],
    "sizes": {"a": "inf"},
    "free": {"x": [1, "inf"]},
}


def test_every_type_is_read_as_it_is_stated() -> None:
    assert read(Outer, GOOD) == Outer(
        "inf",
        3,
        True,
        -math.inf,
        (Inner(0.5, "a"),),
        (1, None),
        {"a": math.inf},
        {"x": [1, math.inf]},
    )


def test_a_whole_number_in_place_of_a_fraction_stays_as_it_was_written() -> None:
    assert repr(read(float, 8)) == "8"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": 3}, "name=3 must be text"),
        ({"name": None}, "name=None must be text"),
        ({"count": 3.0}, "count=3.0 must be a whole number"),
        ({"count": True}, "count=True must be a whole number"),
        ({"flag": 1}, "flag=1 must be true or false"),
        ({"limit": "much"}, "limit='much' must be a number"),
        ({"limit": True}, "limit=True must be a number"),
        ({"limit": [1]}, r"limit=\[1\] must be a number"),
        ({"rows": {"share": 1}}, "rows=.* must be a list"),
        ({"rows": "ab"}, "rows='ab' must be a list"),
        ({"rows": [None]}, r"rows\[0\]=None must be an object"),
        ({"rows": [{"share": 1, "kind": "c"}]}, r"rows\[0\].kind='c' must be one of 'a', 'b'"),
        ({"rows": [{"share": 1, "kind": ["a"]}]}, r"rows\[0\].kind=\['a'\] must be one of"),
        ({"rows": [{"share": 1}]}, r"rows\[0\].kind is absent"),
        ({"pair": [1]}, r"pair=\[1\] must be a list of 2"),
        ({"sizes": []}, r"sizes=\[\] must be an object"),
        ({"sizes": {"a": None}}, "sizes.a=None must be a number"),
        ({"more": 1}, "more is no field"),
    ],
)
def test_another_type_is_an_error_that_names_the_place(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read(Outer, {**GOOD, **change})


def test_a_field_is_not_replaced_by_its_default() -> None:
    with pytest.raises(ValueError, match="free is absent"):
        read(Outer, {name: value for name, value in GOOD.items() if name != "free"})
