"""Builds the site from docs/, CHANGELOG.md and docstrings: `make docs`, which has its environment.

Zensical reads mkdocs.yml, and stops at a link, an anchor or a name that does not exist. It gets a
copy of the pages in .site/pages, whose links to files that are no pages lead to the repository.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ROOT / ".site" / "pages"
#: Folders of docs/ that hold programs.
_PROGRAMS = shutil.ignore_patterns("build", "figures", "__pycache__", "ruff.toml")
#: Escape sequences that Zensical prints in a pipe, too.
_COLOR = re.compile(r"\x1b\[[\d;]*m")
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")


def repository() -> str:
    """Return the repository's address, of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def with_links(text: str, source: str) -> str:
    """Return a page whose links to other files than pages lead to the repository.

    Args:
        text: the page.
        source: its path in the repository, such as "docs/gate.md".
    """

    def led(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        if target.startswith("docs/"):
            here = posixpath.dirname(source.removeprefix("docs/"))
            return f"]({posixpath.relpath(target.removeprefix('docs/'), here or '.')}"
        return f"]({repository()}/blob/main/{target}"

    return _LINK.sub(led, text)


def stage() -> None:
    """Copy the pages to `PAGES`."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES, ignore=_PROGRAMS)
    shutil.copy(ROOT / "CHANGELOG.md", PAGES / "changelog.md")
    for page in PAGES.rglob("*.md"):
        name = page.relative_to(PAGES).as_posix()
        source = "CHANGELOG.md" if name == "changelog.md" else f"docs/{name}"
        page.write_text(with_links(page.read_text(encoding="utf-8"), source), encoding="utf-8")


def main() -> int:
    """Build the site into .site/html."""
    stage()
    zensical = Path(sys.executable).with_name("zensical")
    command = [zensical, "build", "--clean", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(_COLOR.sub("", done.stdout))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
