"""Text and tables are the same with and without a terminal, and in ASCII without one."""

from __future__ import annotations

import io
import sys

import pytest

from lightning_audit.report.text import as_ascii, as_text, print_lines, table, with_signs


class Tty(io.StringIO):
    """A terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class OldTty(Tty):
    """A terminal that shows ASCII only."""

    encoding = "ascii"


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")


def printed(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stdout", stream)
    row = ("[red]noise[/red]", "VIOLATED", "e = 10^750 " * 10)
    print_lines("a :smile: [b]", table(("check", "result", "evidence"), [row], title="é"))
    return stream.getvalue()


def test_a_terminal_gets_rules_and_colors_and_a_file_aligned_ascii(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = printed(monkeypatch, Tty())
    assert "\x1b[1;31m" in shown
    assert "┃" in shown
    assert "[red]noise" in shown
    plain = printed(monkeypatch, io.StringIO())
    assert plain.isascii()
    assert plain.splitlines() == [
        "a :smile: [b]",
        "\\xe9",
        "check             result    evidence",
        f"[red]noise[/red]  VIOLATED  {('e = 10^750 ' * 10).strip()}",
    ]
    assert printed(monkeypatch, OldTty()) == plain


def test_a_path_is_not_broken_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := Tty())
    path = "/home/someone/" + "deep/" * 40
    print_lines(path)
    assert out.getvalue() == f"{path}\n"


def test_a_table_without_headings_is_its_rows_with_numbers_to_the_right_on_request() -> None:
    assert as_text(table(["", ""], [("a", "1"), ("bcd", "22")])) == "a    1\nbcd  22"
    shown = as_text(table(["x", "n"], [("a", "1"), ("b", "22")], right=["n"], widths=[3, 4]))
    assert shown == "x       n\na       1\nb      22"


def test_what_is_no_ascii_is_escaped_and_powers_are_raised_on_a_terminal() -> None:
    assert as_ascii("δ café \U0001f600") == "\\u03b4 caf\\xe9 \\U0001f600"
    assert with_signs("10^-2.5 <= 10^750 >= 10^") == "10⁻²·⁵ ≤ 10⁷⁵⁰ ≥ 10^"


def test_control_characters_of_a_cell_are_shown() -> None:
    assert as_text(table([""], [("a\x1b[2K\r\n\u202eb",)])) == "a\\x1b[2K\\r\\n\\u202eb"
