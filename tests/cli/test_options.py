from __future__ import annotations

import argparse

import pytest

from lightning_audit.cli.main import add_max_values, positive, positive_int, whole
from lightning_audit.files import MAX_VALUES


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (positive, "1e-300", 1e-300),
        (positive, "inf", float("inf")),
        (whole, "-3", -3),
        (whole, str(2**63 - 1), 2**63 - 1),
        (positive_int, "1", 1),
    ],
)
def test_numbers_at_the_ends_are_read(kind, text: str, value: float) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (positive, "0", "'0' must be a number > 0"),
        (positive, "nan", "'nan' must be a number > 0"),
        (positive, "much", "'much' must be a number > 0"),
        (whole, str(2**63), "must be a whole number, below 2^63"),
        (whole, "1.5", "'1.5' must be a whole number, below 2^63"),
        (whole, "9" * 5000, "must be a whole number, below 2^63"),
        (positive_int, "0", "'0' must be a whole number >= 1"),
    ],
)
def test_what_is_no_such_number_is_refused_with_what_is_allowed(kind, text: str, told: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        kind(text)
    assert told in str(refusal.value)
    assert len(str(refusal.value)) < 250


def test_the_limit_of_what_is_read_is_the_readers_own_unless_another_is_given() -> None:
    parser = argparse.ArgumentParser()
    add_max_values(parser)
    assert parser.parse_args([]).max_values == MAX_VALUES
    assert parser.parse_args(["--max-values=5"]).max_values == 5
