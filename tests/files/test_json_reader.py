"""JSON of others: bounded, of the stated types, and an error names the place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from command_worker import Command

from lightning_audit.files import MOST_BYTES, JsonError, as_type, read_json


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[NaN]", "invalid character"),
        ("[-Infinity]", "invalid"),
        ("[-1e400]", "out of range"),
        (b'"\xff"', "utf-8"),
        ("", "truncated"),
        ("1" * 5000, "out of range"),
        (r'"\ud83d"', "truncated|surrogate"),
        ("[" * 10**6, "nested too deep"),
        ('{"a": 1} {}', "trailing"),
        ("x" * (MOST_BYTES + 1), "at most 33554432"),
    ],
)
def test_what_is_no_json_is_refused(text: str | bytes, told: str) -> None:
    with pytest.raises(JsonError, match=told):
        read_json(text)


def test_json_that_is_sound_is_read_from_text_bytes_and_path(tmp_path: Path) -> None:
    value = {"a": [1, -2.5, 1e308, None, True, "ä\x1b\U0001f511", {"b": {}}], "large": 10**39}
    text = json.dumps(value, ensure_ascii=False)
    (tmp_path / "v.json").write_text(text, encoding="utf-8")
    assert read_json(text) == read_json(text.encode()) == read_json(tmp_path / "v.json") == value


@pytest.mark.parametrize(
    "text",
    [
        '{"false_negatives": [' + "[]," * 5_000_000 + "0]}",
        "{" + ",".join(f'"{i}": {i}' for i in range(2_100_000)) + "}",
        '{"a": "' + "x" * 40_000_000 + '"}',
        '[{"a":0}' + ',{"a":0}' * 1_500_000 + "]",
    ],
    ids=["lists", "fields", "bytes", "objects"],
)
@pytest.mark.heavy
def test_json_that_would_fill_the_memory_is_refused(
    command: Command, tmp_path: Path, text: str
) -> None:
    (tmp_path / "c.json").write_text(text)
    for name in ("mcmc", "check"):
        told = command(name, tmp_path / "c.json")
        assert told["code"] == 2
        assert told["gigabytes"] < 1


@dataclass(frozen=True)
class Inner:
    share: float
    kind: Literal["a", "b"]

    def __post_init__(self) -> None:
        if self.share < 0:
            raise ValueError("share must be >= 0")


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
    "name": "n",
    "count": 3,
    "flag": True,
    "limit": "-inf",
    "rows": [{"share": 0.5, "kind": "a"}],
    "pair": [1, None],
    "sizes": {"a": "inf"},
    "free": {"x": [1, "inf"]},
}


def test_every_type_is_read_as_it_is_stated() -> None:
    assert as_type(Outer, {**GOOD, "more": 1}) == Outer(
        "n",
        3,
        True,
        -math.inf,
        (Inner(0.5, "a"),),
        (1.0, None),
        {"a": math.inf},
        {"x": [1, math.inf]},
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": 3}, "^at.name: Expected `str`, got `int`$"),
        ({"count": 3.0}, "count: Expected `int`, got `float`"),
        ({"count": True}, "count: Expected `int`, got `bool`"),
        ({"flag": 1}, "flag: Expected `bool`, got `int`"),
        ({"limit": "much"}, "limit: Expected `float | null`, got `str`"),
        ({"limit": 10**400}, "out of range|too large"),
        ({"rows": "ab"}, "rows: Expected `array`, got `str`"),
        ({"rows": [None]}, r"rows\[0\]: Expected `object`, got `null`"),
        ({"rows": [{"share": 1, "kind": "c"}]}, r"rows\[0\].kind: Invalid enum value 'c'"),
        ({"rows": [{"share": 1}]}, r"rows\[0\]: .*missing required field `kind`"),
        ({"rows": [{"share": -1, "kind": "a"}]}, r"rows\[0\]: share must be >= 0"),
        ({"pair": [1]}, "pair: Expected `array` of length 2, got 1"),
        ({"sizes": []}, "sizes: Expected `object`, got `array`"),
        ({"sizes": {"a": None}}, "sizes.*: Expected `float`, got `null`"),
    ],
)
def test_another_type_is_an_error_that_names_the_place(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        as_type(Outer, {**GOOD, **change}, "at")


def test_what_is_nested_too_deep_for_its_reader_is_an_error() -> None:
    deep: Any = []
    for _ in range(10**5):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deep"):
        as_type(Any, deep)
