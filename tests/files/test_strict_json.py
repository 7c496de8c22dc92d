"""Strict JSON: what has two meanings, or none, is refused."""

from __future__ import annotations

import pytest

from lightning_audit.files.strict_json import JsonError, read_json


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1, "a": 1}', "'a' stands twice"),
        ('[{"b": {"a": 1, "\\u0061": 2}}]', "'a' stands twice"),
        ("[NaN]", "NaN is no JSON number"),
        ("[-Infinity]", "-Infinity is no JSON number"),
        ("[-1e400]", "no number that a float holds"),
        ("1" * 101, "number of 101 digits"),
        (r'"\ud83d"', "half a surrogate pair"),
        (r'{"\udd11": 1}', "half a surrogate pair"),
        ("[" * 51 + "]" * 51, "nested deeper than 50"),
        ("[" * 10**6, "nested deeper than 50"),
    ],
)
def test_what_has_no_one_meaning_is_refused(text: str, told: str) -> None:
    with pytest.raises(JsonError, match=told):
        read_json(text)


def test_what_is_just_within_is_read() -> None:
    assert read_json(r'{"a": [1e308, "\ud83d\udd11", -0.0, ' + "9" * 100 + "]}") == {
        "a": [1e308, "\U0001f511", 0.0, int("9" * 100)]
    }
    assert read_json("[" * 50 + "]" * 50)
