"""The repository that holds a file, and its commit, read without git."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from lightning_audit.files.bounded import read_text

#: Most bytes of a file of references.
_MOST = 2**22
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def commit_of(path: str) -> str | None:
    """Return the commit that is checked out in the repository of a file.

    Args:
        path: of the file; it may have changed since the commit.

    Returns:
        The commit in hexadecimal digits; None if the file is in no git repository, if that has no
        commit yet, or if it cannot be read.
    """
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        folders = Path(path).resolve().parents
        git = next((one / ".git" for one in folders if (one / ".git").exists()), None)
        if git is None:
            return None
        if git.is_file():  # of a worktree or a submodule
            git = git.parent / _read(git).removeprefix("gitdir:").strip()
        return _commit(git, _read(git / "HEAD"))
    return None


def _commit(git: Path, head: str) -> str | None:
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else None
    name = head.removeprefix("ref:").strip()
    if ".." in name.split("/") or not name.startswith("refs/"):
        return None
    shared = git / "commondir"
    folders = [git, *([git / _read(shared)] if shared.is_file() else [])]
    for folder in folders:
        if (folder / name).is_file():
            found = _read(folder / name)
            return found if _COMMIT.fullmatch(found) else None
        if (folder / "packed-refs").is_file():
            for line in _read(folder / "packed-refs").splitlines():
                commit, _, of = line.partition(" ")
                if of == name and _COMMIT.fullmatch(commit):
                    return commit
    return None


def _read(path: Path) -> str:
    return read_text(path, _MOST).strip()
