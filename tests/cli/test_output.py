from __future__ import annotations

import io
import json
import math
import os

import pytest

from lightning_audit.cli.main import OWN_FAULT, IgnoreBrokenPipe, as_json, own_fault, refused


def test_a_letter_that_the_output_lacks_is_written_escaped() -> None:
    written = io.BytesIO()
    stream = IgnoreBrokenPipe(io.TextIOWrapper(written, encoding="ascii"))
    stream.write("größer")
    stream.flush()
    assert written.getvalue() == rb"gr\xf6\xdfer"


def test_what_nobody_reads_is_dropped_and_writing_goes_on() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        stream = IgnoreBrokenPipe(closed)
        assert stream.write("x" * 100_000) == 100_000
        stream.flush()
        stream.write("more")
        stream.flush()


def test_a_refusal_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused("one\ntwo\x1b") == 2
    assert capsys.readouterr() == ("", "lightning-audit: one\\ntwo\\x1b\n")


def test_an_error_of_this_package_is_told_with_its_place() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        told = own_fault(error)
    assert told.startswith(f"{OWN_FAULT}: JSONDecodeError: Expecting property name")
    assert " of json.decoder)" in told


def test_infinite_numbers_are_text_in_json_at_any_depth() -> None:
    fields = {"epsilon": math.inf, "null": {"median": -math.inf}, "interval": (0.5, math.inf)}
    assert json.loads(as_json(fields)) == {
        "epsilon": "inf",
        "null": {"median": "-inf"},
        "interval": [0.5, "inf"],
    }
