from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_worker import Command

from lightning_audit.files.strict_json import JsonError, read_json

"""Strict JSON: what has two meanings, or none, is refused."""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1, "a": 1}', "'a' stands twice"),
        ('[{"b": {"a": 1, "\\u0061": 2}}]', "'a' stands twice"),
        ("[NaN]", "NaN is no JSON number"),
        ("[-Infinity]", "-Infinity is no JSON number"),
        ("[-1e400]", "no number that a float holds"),
        (b'"\xff"', "can't decode byte 0xff"),
        ("", "Expecting value"),
        ("1" * 101, "number of 101 digits"),
        (r'"\ud83d"', "half a surrogate pair"),
        (r'{"\udd11": 1}', "half a surrogate pair"),
        ("[" * 51 + "]" * 51, "nested deeper than 50"),
        ("[" * 10**6, "nested deeper than 50"),
    ],
)
def test_what_has_no_one_meaning_is_refused(text: str | bytes, told: str) -> None:
    with pytest.raises(JsonError, match=told):
        read_json(text)


def test_what_is_just_within_is_read() -> None:
    assert read_json(r'{"a": [1e308, "\ud83d\udd11", -0.0, ' + "9" * 100 + "]}") == {
        "a": [1e308, "\U0001f511", 0.0, int("9" * 100)]
    }
    assert read_json("[" * 50 + "]" * 50)


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


def test_json_that_is_sound_is_read_from_text_bytes_and_path(tmp_path: Path) -> None:
    value = {"a": [1, -2.5, None, True, "ä\x1b", {"b": {}}], "large": 10**39}
    text = json.dumps(value, ensure_ascii=False)
    (tmp_path / "v.json").write_text(text, encoding="utf-8")
    assert read_json(text) == read_json(text.encode()) == read_json(tmp_path / "v.json") == value
