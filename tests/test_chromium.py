"""`make browser` finds a browser, installs one as root, or says which line to run."""

import os
import sys
from pathlib import Path

import chromium
import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The only folder of the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, script: str = "") -> str:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return str(path)


def test_the_first_browser_of_the_path_is_taken(folder, capsys):
    for name in reversed(chromium.NAMES):
        path = program(folder, name)
        assert chromium.main() == 0
        assert capsys.readouterr().out == f"{path}\n"


def test_root_installs_debians_package(folder, monkeypatch, capfd):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    script = (
        "import pathlib, sys\nprint(*sys.argv[1:])\n"
        f"path = pathlib.Path({str(folder / 'chromium')!r})\n"
        "if 'install' in sys.argv: path.write_text(''); path.chmod(0o755)\n"
    )
    program(folder, "apt-get", script)
    assert chromium.main() == 0
    assert capfd.readouterr().out.splitlines() == [
        "update",
        "install -y --no-install-recommends chromium",
        str(folder / "chromium"),
    ]


@pytest.mark.parametrize(("user", "tools"), [(1000, ["apt-get"]), (0, []), (0, ["apt-get"])])
def test_without_a_browser_the_line_to_run_is_shown(folder, monkeypatch, capfd, user, tools):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for name in tools:
        program(folder, name, "raise SystemExit(100)")
    assert chromium.main() == 1
    assert "run: sudo apt-get install -y --no-install-recommends chromium\n" in (
        capfd.readouterr().err
    )
