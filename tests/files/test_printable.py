from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lightning_audit.files import nearby, visible


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


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_a_path_begins_at_its_repository(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "repo" / "src" / "model.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "repo" / mark).touch()
    monkeypatch.chdir(tmp_path)
    assert nearby(str(file)) == "src/model.py"


def test_without_a_repository_a_path_begins_at_the_working_directory_or_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "src" / "model.py"
    monkeypatch.chdir(tmp_path)
    assert nearby(str(file)) == "src/model.py"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert nearby(str(file)) == "model.py"


def test_a_path_never_holds_the_name_of_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / "alice"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    assert nearby(str(home / "src" / "model.py")) == "model.py"
    (tmp_path / ".git").touch()  # a repository of the whole machine
    assert nearby(str(home / "src" / "model.py")) == "model.py"
    (home / ".git").touch()
    assert nearby(str(home / "src" / "model.py")) == "src/model.py"
