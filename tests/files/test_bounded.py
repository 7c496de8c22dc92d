from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightning_audit.files import LONGEST_LINE, open_regular, read_text, text_lines


def lines_of(path: Path, most: int) -> list[str]:
    with text_lines(path, most) as lines:
        return list(lines)


def test_a_regular_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"abc"


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is a pipe; name a regular file"):
        open_regular(tmp_path / "pipe")


def test_a_text_may_have_as_many_bytes_as_are_allowed_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("äb", encoding="utf-8")
    assert read_text(path, 3) == "äb"
    with pytest.raises(ValueError, match="it has more than 2 bytes"):
        read_text(path, 2)


def test_lines_are_those_of_the_file_without_its_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\xef\xbb\xbfhead\r\none\ntwo")
    assert lines_of(path, 2) == ["head\r\n", "one\n", "two"]
    with pytest.raises(ValueError, match="it has more than max_values=1 lines"):
        lines_of(path, 1)


def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "line"
    path.write_text("x" * LONGEST_LINE)
    assert len(lines_of(path, 1)[0]) == LONGEST_LINE
    path.write_text("head\n" + "x" * (LONGEST_LINE + 1))
    with pytest.raises(ValueError, match=f"line 2 has more than {LONGEST_LINE} characters"):
        lines_of(path, 1)
