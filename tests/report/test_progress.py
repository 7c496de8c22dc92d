"""The bar of a long work: on a terminal, not in CI, and the numbers it ends with."""

import io

import pytest
import rich.console

from lightning_audit.report.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "ci", "shown", "seen"),
    [
        (Terminal, "", True, True),
        (io.StringIO, "", True, False),
        (Terminal, "true", True, False),
        (Terminal, "", False, False),
    ],
    ids=["terminal", "file", "CI", "--no-progress"],
)
def test_a_bar_with_the_time_left_is_for_terminals(monkeypatch, stream, ci, shown, seen):
    out = stream()
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", out)
    assert rich.console.Console(stderr=True).is_terminal == (stream is Terminal)
    with progress("steps", 3, shown=shown) as advance:
        advance()
        advance()
    assert ("2/3" in out.getvalue() and "left" in out.getvalue()) == seen
    assert bool(out.getvalue().strip()) == seen
