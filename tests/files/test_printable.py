from __future__ import annotations

import sys

import pytest

from lightning_audit.files.printable import visible


@pytest.mark.parametrize("text", ["", "plain", "größer \\ 0.1", "中 \U0001f511"])
def test_text_that_can_be_seen_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\t", r"a\nb\t"),
        ("\x1b[2K\rPASS", r"\x1b[2K\rPASS"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202eb\u200b", r"a\u202eb\u200b"),
        ("\udc80", r"\udc80"),
        ("back\\slash\0", r"back\slash\x00"),
    ],
)
def test_what_acts_or_hides_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_no_character_whatever_comes_through_unseen() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert visible(everything).isprintable()
