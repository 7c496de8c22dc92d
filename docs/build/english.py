"""Finds the phrases listed in docs/english.md: in docstrings, messages, comments and pages.

    python docs/build/english.py [path ...]

Exits with 1 if it finds one. Code between backticks, replacement fields of f-strings and names of
arguments in docstrings are skipped.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "english.md"
#: Read if no path is given.
PLACES = (
    "lightning_audit",
    "benchmarks",
    "docs",
    "examples",
    "experiments",
    "README.md",
    "CONTRIBUTING.md",
)
_SUFFIXES = (".py", ".md", ".j2")
_ROW = re.compile(r"^\| ([a-z, ]+) \| (.+) \|$", re.MULTILINE)
#: Code, replacement fields, and names of arguments and fields in docstrings.
_CODE = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|\{[^{}\n]*\}|(?m:^ +\w+(?=:))", re.DOTALL)


def phrases(guide: str) -> list[tuple[re.Pattern[str], str]]:
    """Return the phrases of the guide's list, each with its replacement."""
    rows = [row for row in _ROW.findall(guide) if row[0] != "do not write"]
    return [
        (re.compile(rf"\b(?:{'|'.join(banned.split(', '))})\b".replace(" ", r"\s+"), re.I), instead)
        for banned, instead in rows
    ]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file, each text with the number of its first line."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, source
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        # A string without a space is a key or a name.
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
            yield token.start[0], token.string


def found_in(text: str, banned: list[tuple[re.Pattern[str], str]]) -> Iterator[tuple[int, str]]:
    """Yield the phrases in a text: the line, counted from 0, and the message."""
    plain = _CODE.sub(lambda code: re.sub(r"[^\n]", "\0", code.group()), text)
    for pattern, instead in banned:
        for match in pattern.finditer(plain):
            yield plain.count("\n", 0, match.start()), f"{match.group()!r}: write {instead}"


def files(places: list[Path]) -> Iterator[Path]:
    """Yield the Python files and pages of the places, except the guide itself."""
    for place in places:
        inside = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in inside:
            hidden = any(part.startswith(".") for part in path.relative_to(ROOT).parts)
            if path.suffix in _SUFFIXES and path != GUIDE and not hidden:
                yield path


def main(arguments: list[str]) -> int:
    """Print each listed phrase with its location; return 1 if there is one."""
    banned = phrases(GUIDE.read_text(encoding="utf-8"))
    wrong = 0
    for path in files([Path(a).resolve() for a in arguments] or [ROOT / p for p in PLACES]):
        for first, text in texts(path):
            for line, message in found_in(text, banned):
                print(f"{path.relative_to(ROOT)}:{first + line}: {message}")
                wrong += 1
    print(f"{wrong} phrases that docs/english.md lists" if wrong else "no listed phrase found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
