"""JSON of others: bounded, of the stated types, and an error names the place."""

import ast
import json
import math
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mutated_files as files
import numpy as np
import pytest

from lightning_audit import files as reading
from lightning_audit.record.scores import CanaryScores


def lines_of(path: Path, most: int) -> list[str]:
    with reading.text_lines(path, most) as lines:
        return list(lines)


def test_a_regular_file_is_read_also_through_a_link_and_a_pipe_refused_without_waiting(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    with reading.open_regular(tmp_path / "link") as file:
        assert file.read() == b"abc"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is a pipe; name a regular file"):
        reading.open_regular(tmp_path / "pipe")


def test_a_text_may_have_as_many_bytes_as_are_allowed_and_no_more(tmp_path):
    path = tmp_path / "text"
    path.write_text("äb", encoding="utf-8")
    assert reading.read_text(path, 3) == "äb"
    with pytest.raises(ValueError, match="it has more than 2 bytes"):
        reading.read_text(path, 2)


def test_lines_are_those_of_the_file_without_its_byte_order_mark(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"\xef\xbb\xbfhead\r\none\ntwo")
    assert lines_of(path, 2) == ["head\r\n", "one\n", "two"]
    with pytest.raises(ValueError, match="it has more than max_values=1 lines"):
        lines_of(path, 1)


def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "line"
    path.write_text("x" * reading.LONGEST_LINE)
    assert len(lines_of(path, 1)[0]) == reading.LONGEST_LINE
    path.write_text("head\n" + "x" * (reading.LONGEST_LINE + 1))
    with pytest.raises(ValueError, match=f"line 2 has more than {reading.LONGEST_LINE} characters"):
        lines_of(path, 1)


# --- JSON of others: bounded, of the stated types, and an error names the place.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[NaN]", "invalid character"),
        ("[-1e400]", "out of range"),
        (b'"\xff"', "utf-8"),
        ("1" * 5000, "out of range"),
        (r'"\ud83d"', "truncated|surrogate"),
        ("[" * 10**6, "nested too deep"),
        ("x" * (reading.MOST_BYTES + 1), "at most 33554432"),
    ],
)
def test_what_is_no_json_is_refused(text, told):
    with pytest.raises(reading.JsonError, match=told):
        reading.read_json(text)


def test_json_that_is_sound_is_read_from_text_bytes_and_path(tmp_path):
    value = {"a": [1, -2.5, 1e308, None, True, "ä\x1b\U0001f511", {"b": {}}], "large": 10**39}
    text = json.dumps(value, ensure_ascii=False)
    (tmp_path / "v.json").write_text(text, encoding="utf-8")
    assert (
        reading.read_json(text)
        == reading.read_json(text.encode())
        == reading.read_json(tmp_path / "v.json")
        == value
    )


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
@pytest.mark.heavy_one_in(4)
def test_json_that_would_fill_the_memory_is_refused(command, tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    for name in ("mcmc", "check"):
        told = command(name, tmp_path / "c.json")
        assert told["code"] == 2
        assert told["gigabytes"] < 1


@dataclass(frozen=True)
class Inner:
    share: float
    kind: Literal["a", "b"]

    def __post_init__(self) -> None:
        if self.share < 0:
            raise ValueError("share must be >= 0")


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    flag: bool
    limit: float | None
    rows: tuple[Inner, ...]
    pair: tuple[float, int | None]
    sizes: Mapping[str, float]
    free: Any = None


GOOD: dict[str, Any] = {
    "name": "n",
    "count": 3,
    "flag": True,
    "limit": "-inf",
    "rows": [{"share": 0.5, "kind": "a"}],
    "pair": [1, None],
    "sizes": {"a": "inf"},
    "free": {"x": [1, "inf"]},
}


def test_every_type_is_read_as_it_is_stated():
    assert reading.as_type(Outer, {**GOOD, "more": 1}) == Outer(
        "n",
        3,
        True,
        -math.inf,
        (Inner(0.5, "a"),),
        (1.0, None),
        {"a": math.inf},
        {"x": [1, math.inf]},
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": 3}, "^at.name: Expected `str`, got `int`$"),
        ({"count": True}, "count: Expected `int`, got `bool`"),
        ({"limit": "much"}, "limit: Expected `float | null`, got `str`"),
        ({"limit": 10**400}, "out of range|too large"),
        ({"rows": [None]}, r"rows\[0\]: Expected `object`, got `null`"),
        ({"rows": [{"share": 1, "kind": "c"}]}, r"rows\[0\].kind: Invalid enum value 'c'"),
        ({"rows": [{"share": -1, "kind": "a"}]}, r"rows\[0\]: share must be >= 0"),
        ({"pair": [1]}, "pair: Expected `array` of length 2, got 1"),
        ({"sizes": {"a": None}}, "sizes.*: Expected `float`, got `null`"),
    ],
)
def test_another_type_is_an_error_that_names_the_place(change, told):
    with pytest.raises(ValueError, match=told):
        reading.as_type(Outer, {**GOOD, **change}, "at")


def test_what_is_nested_too_deep_for_its_reader_is_an_error():
    deep: Any = []
    for _ in range(10**5):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deep"):
        reading.as_type(Any, deep)


def bomb(path: Path, values: int) -> None:
    """An archive of few bytes whose one array has so many values."""
    header = files.with_header(files.npy(np.zeros(0, np.uint8)), shape=(values,))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("scores_in.npy", "w") as member:
            member.write(header)
            for _ in range(values // 10**6):
                member.write(bytes(10**6))
        archive.writestr("scores_out.npy", files.npy(np.ones(3)))


def test_an_array_beyond_the_limit_is_refused_before_it_is_read(command, tmp_path):
    bomb(tmp_path / "s.npz", 150_000_000)
    assert (tmp_path / "s.npz").stat().st_size < 200_000
    told = command("bound", tmp_path / "s.npz", "--method=eps_cp", "--delta=1e-5")
    assert told["code"] == 2
    assert "scores_in has shape (150000000,), and all arrays that are read may have" in told["err"]
    assert "max_values=100000000 numbers; raise max_values (--max-values)" in told["err"]
    assert told["gigabytes"] < 0.5


def test_arrays_that_nobody_asked_for_are_not_read(tmp_path):
    members = {name: files.npy(np.arange(3.0)) for name in ("scores_in", "scores_out")}
    pickled = files.npy(np.array([object()]))
    (tmp_path / "s.npz").write_bytes(
        files.archive({**members, "notes": pickled, "more": b"no array"})
    )
    assert len(CanaryScores.from_npz(tmp_path / "s.npz").in_scores) == 3


def test_a_size_that_the_archive_cannot_hold_takes_no_memory(command, tmp_path):
    """Shape and declared size agree: 90 million floats in a member of a kilobyte."""
    plain = files.npy(np.arange(100.0))
    data = files.with_header(plain, shape=(90_000_000,))
    whole = bytearray(files.archive({"scores_in": data, "scores_out": plain}, zipfile.ZIP_STORED))
    needed = len(data) - 800 + 8 * 90_000_000
    at = whole.index(b"PK\x01\x02")
    for size in (20, 24):  # compressed and plain, in the list of members
        whole[at + size : at + size + 4] = needed.to_bytes(4, "little")
    (tmp_path / "s.npz").write_bytes(whole)
    told = command("bound", tmp_path / "s.npz", "--method=eps_cp", "--delta=1e-5")
    assert told["code"] == 2
    assert f"scores_in needs {needed} bytes by its dtype and shape" in told["err"]
    assert told["gigabytes"] < 0.5


def test_a_list_of_members_that_is_long_is_refused(command, tmp_path):
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        for i in range(25_000):
            archive.writestr(f"{i}.npy", b"")
    told = command("bound", tmp_path / "s.npz", "--method=eps_cp", "--delta=1e-5")
    assert told["code"] == 2
    assert "its list of members takes" in told["err"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *((text, text) for text in ("", "plain", "größer \\ 0.1", "中 \U0001f511")),
        ("a\nb\t", r"a\nb\t"),
        ("\x1b[2K\rPASS", r"\x1b[2K\rPASS"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202eb\u200b", r"a\u202eb\u200b"),
        ("\udc80", r"\udc80"),
        ("back\\slash\0", r"back\slash\x00"),
    ],
)
def test_what_acts_or_hides_is_escaped_and_what_can_be_seen_stays_as_it_is(text, shown):
    assert reading.visible(text) == shown


def test_no_character_whatever_comes_through_unseen():
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert reading.visible(everything).isprintable()


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_a_path_begins_at_its_repository(mark, tmp_path, monkeypatch):
    file = tmp_path / "repo" / "src" / "model.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "repo" / mark).touch()
    monkeypatch.chdir(tmp_path)
    assert reading.nearby(str(file)) == "src/model.py"


def test_without_a_repository_a_path_begins_at_the_working_directory_or_is_a_name(
    tmp_path, monkeypatch
):
    file = tmp_path / "src" / "model.py"
    monkeypatch.chdir(tmp_path)
    assert reading.nearby(str(file)) == "src/model.py"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert reading.nearby(str(file)) == "model.py"


def test_a_path_never_holds_the_name_of_a_home(tmp_path, monkeypatch):
    home = tmp_path / "home" / "alice"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    file = str(home / "src" / "model.py")
    assert reading.nearby(file) == "model.py"
    (tmp_path / ".git").touch()  # a repository of the whole machine
    assert reading.nearby(file) == "model.py"
    (home / ".git").touch()
    assert reading.nearby(file) == "src/model.py"


def test_sources_are_compiled_again_where_another_thread_compiles_too():
    failures = [SystemError("AST constructor recursion depth mismatch")] * 3

    @reading.compiles
    def parse(source: str) -> ast.Module:
        if failures:
            raise failures.pop()
        return ast.parse(source)

    assert ast.unparse(parse("x = 1")) == "x = 1"
    assert not failures


def test_a_file_takes_its_place_when_it_is_whole_with_the_permissions_of_any_new_file(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")

    def broken_off() -> None:
        with reading.replacing(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert target.read_text() == "old"
    with reading.replacing(target) as file:
        file.write(b"new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]
    (tmp_path / "other").touch()
    assert target.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_only_what_was_left_half_written_is_removed(tmp_path):
    kept = [".report.json.partial", "x.0123456789abcdef.partial", ".a.0123456789abcdeg.partial"]
    for name in [*kept, ".report.json.0123456789abcdef.partial"]:
        (tmp_path / name).touch()
    reading.remove_partials(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


# --- The commit of a repository, as git itself tells it; nothing outside of one.


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "model.py").write_text("")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_the_commit_is_the_one_that_is_checked_out(repository):
    file, commit = str(repository / "src" / "model.py"), git(repository, "rev-parse", "HEAD")
    assert reading.commit_of(file) == commit
    git(repository, "pack-refs", "--all")
    assert reading.commit_of(file) == commit
    git(repository, "checkout", "-q", "--detach")
    assert reading.commit_of(file) == commit


@pytest.mark.nightly
def test_a_worktree_has_its_own(repository, tmp_path):
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    tree = tmp_path / "tree"
    git(tree, "commit", "-q", "--allow-empty", "-m", "second")
    assert reading.commit_of(str(tree / "src" / "model.py")) == git(tree, "rev-parse", "HEAD")
    assert reading.commit_of(str(tree / "src" / "model.py")) != git(repository, "rev-parse", "HEAD")


def test_a_repository_without_a_commit_or_with_a_broken_head_has_none(tmp_path):
    git(tmp_path, "init", "-q")
    assert reading.commit_of(str(tmp_path / "a.py")) is None
    for head in ("", "ref: refs/../../secret", "ref: elsewhere", "0" * 39, "\udcff"):
        (tmp_path / ".git" / "HEAD").write_bytes(head.encode("utf-8", "surrogateescape"))
        assert reading.commit_of(str(tmp_path / "a.py")) is None
