"""The commit of a repository, as git itself tells it; nothing outside of one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lightning_audit.files import commit_of


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "model.py").write_text("")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_the_commit_is_the_one_that_is_checked_out(repository: Path) -> None:
    file, commit = str(repository / "src" / "model.py"), git(repository, "rev-parse", "HEAD")
    assert commit_of(file) == commit
    git(repository, "pack-refs", "--all")
    assert commit_of(file) == commit
    git(repository, "checkout", "-q", "--detach")
    assert commit_of(file) == commit


def test_a_worktree_has_its_own(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    tree = tmp_path / "tree"
    git(tree, "commit", "-q", "--allow-empty", "-m", "second")
    assert commit_of(str(tree / "src" / "model.py")) == git(tree, "rev-parse", "HEAD")
    assert commit_of(str(tree / "src" / "model.py")) != git(repository, "rev-parse", "HEAD")


def test_a_repository_without_a_commit_or_with_a_broken_head_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert commit_of(str(tmp_path / "a.py")) is None
    for head in ("", "ref: refs/../../secret", "ref: elsewhere", "0" * 39, "\udcff"):
        (tmp_path / ".git" / "HEAD").write_bytes(head.encode("utf-8", "surrogateescape"))
        assert commit_of(str(tmp_path / "a.py")) is None
