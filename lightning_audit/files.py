"""Reads and writes files that other programs may also write or read.

**Reads arrays of bounded size from .npz archives that somebody else may have written.** What an
archive declares may be a lie. An array is read only if its shape, its member's size and what the
file holds can all be true, so that memory is taken for numbers that are really there.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import re
import secrets
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, ParamSpec, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

import msgspec

from lightning_audit._validate import positive_int, shown

P = ParamSpec("P")
T = TypeVar("T")

# --- Opens files that somebody else may have written: regular ones only, and of bounded length.

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
#: Characters of a line, and so of a field, as the csv module has it for fields.
LONGEST_LINE = 131_072


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading bytes.

    Raises:
        OSError: it is absent or may not be read.
        ValueError: it is no regular file: a directory, a pipe or a device, which never ends.
    """
    # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise ValueError(f"it is {_KINDS.get(kind, 'of another kind')}; name a regular file")
    return open(descriptor, "rb")


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """The text of a file in UTF-8.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        OSError: as `open_regular`.
        ValueError: as `open_regular`; or it is longer, or no UTF-8.
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes, the most that is read of such a file")
    return data.decode("utf-8")


@contextlib.contextmanager
def text_lines(path: str | os.PathLike[str], most: int) -> Iterator[Iterator[str]]:
    """The lines of a file in UTF-8, with or without a byte order mark.

    Args:
        path: the file.
        most: lines that it may have after the first one.

    Raises:
        OSError: as `open_regular`.
        ValueError: as `open_regular`; or, from the lines: one is too long, there are more, or
            they are no UTF-8.
    """
    with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
        yield _lines(file, most)


def _lines(file: io.TextIOWrapper, most: int) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} has more than {LONGEST_LINE} characters")
        if number > most + 1:
            raise ValueError(
                f"it has more than max_values={most} lines; raise max_values (--max-values) if "
                "you trust the file"
            )
        yield line


# --- Reads JSON from elsewhere with msgspec: of limited size, and converted to types.

# Objects and lists need up to 30 times as much memory: 1 GB.
MOST_BYTES = 2**25
_TOO_DEEP = "it is nested too deep"


class JsonError(ValueError):
    """The text is not JSON; the message says why."""


def read_json(path_or_text: os.PathLike[str] | str | bytes) -> Any:
    """Read JSON.

    Args:
        path_or_text: a path (`pathlib.Path`), or the text itself (str, or bytes in UTF-8).

    Returns:
        Dicts, lists, strings, finite numbers, bools and None. If an object has a key twice, the
        last value counts.

    Raises:
        OSError: the file is absent or may not be read.
        JsonError: it is not a regular file, not UTF-8, not JSON or too large, or a number is NaN,
            infinite or too large.

    Example:
        >>> read_json('{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
    """
    try:
        text = path_or_text
        if isinstance(text, os.PathLike):
            text = read_text(text, MOST_BYTES)
        if len(text) > MOST_BYTES:
            raise JsonError(f"it has {len(text)} bytes, at most {MOST_BYTES}")
        return msgspec.json.decode(text)
    except RecursionError:
        raise JsonError(_TOO_DEEP) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise JsonError(str(error)) from error


def as_type(kind: Any, value: Any, where: str = "") -> Any:
    """Convert a value that `read_json` returned to a type.

    Args:
        kind: a dataclass or another type. Fields that the dataclass does not have are ignored.
        value: the strings "inf" and "-inf" are read as infinite numbers.
        where: name of the value, for the error.

    Raises:
        ValueError: the value has another type, or a field without default is missing; the message
            names the field.
    """
    try:
        return msgspec.convert(_restored(value), kind)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (msgspec.ValidationError, OverflowError) as error:
        what, _, path = str(error).partition(" - at `$")
        place = f"{where}{path.removesuffix('`')}".lstrip(".")
        raise ValueError(f"{place}: {what}" if place else what) from error


def _restored(value: Any) -> Any:
    """Replace the strings "inf" and "-inf" by numbers."""
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_restored(item) for item in value]
    if isinstance(value, int):
        float(value)  # raises OverflowError; msgspec 0.20 would read -1.0
    return float(value) if value in ("inf", "-inf") else value


# --- Text from a file, as a terminal, a table or a picture may show it.

#: Markdown shows these characters as they are: no tags, links, mentions, emphasis or cells.
_ESCAPED = {ord(c): f"&#{ord(c)};" for c in "&<>|`*[]\\@$~#"}
#: Characters of a text in Markdown.
_LONGEST = 2000
#: How often sources are compiled again.
_AGAIN = 100


def with_extra(name: str) -> str:
    """Return how to install what an extra of this package asks for."""
    return f"run pip install '.[{name}]' in the checkout of lightning-audit"


def compiles(function: Callable[P, T]) -> Callable[P, T]:
    """Call a function that parses or compiles sources again if another thread did so, too.

    Python 3.11 counts the depth of syntax trees over all threads, and raises SystemError.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_AGAIN):
            with contextlib.suppress(SystemError):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return called


def nearby(path: str) -> str:
    """A path as a report shows it: from its repository, else from the working directory.

    The name alone where it lies in neither, or where the path from there would name a user's home.
    """
    return inside(path) or Path(path).name


def inside(path: str) -> str | None:
    """Return a path from its repository, else from the working directory; None in neither case.

    None also if the path from there would name a user's home.
    """
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # no cwd, or no home
        file = Path(path).resolve()
        marks = (".git", "pyproject.toml")
        roots = (one for one in file.parents if any((one / mark).exists() for mark in marks))
        root = next(roots, None) or Path.cwd().resolve()
        if root not in Path.home().resolve().parents:
            return file.relative_to(root).as_posix()
    return None


def visible(text: str) -> str:
    r"""Text in which nothing acts on a terminal or hides: what cannot be seen is escaped.

    As `repr` has it: control characters (line ends too), marks that change the direction of
    writing, and lone surrogates become ``\x1b``, ``\n``, ``\u202e``, ``\udc80``. A backslash
    does not change.

    Example:
        >>> print(visible("PASS\x1b[2K\rVIOLATION"))
        PASS\x1b[2K\rVIOLATION
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def in_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, in one line of at most 2,000 characters.

    Example:
        >>> in_markdown("a <b> *c*")
        'a &#60;b&#62; &#42;c&#42;'
        >>> in_markdown("95\xa0%")
        '95 %'
    """
    text = visible(text.replace("\xa0", " "))
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return text.translate(_ESCAPED)


# --- Writes a file that takes its place when it is whole, through no link that lies there.

_PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a new file next to ``path`` that replaces it if the block ends without an exception.

    A reader sees the old file or the new one, never half. The new file has a random name and is
    made exclusively, so that a link laid there beforehand is not followed; where ``path`` itself is
    a link, the link is replaced and its target does not change.

    Raises:
        OSError: the file cannot be written; the old one is untouched.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "xb") as file:
            yield file
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def remove_partials(directory: Path) -> None:
    """Remove what processes that were killed have left half written by `replacing`."""
    for path in directory.glob(".*.partial"):
        if _PARTIAL.fullmatch(path.name):
            path.unlink(missing_ok=True)


def reason_of(error: Exception) -> str:
    """Why a file could not be written, without the name of one that was to take its place."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


# --- The repository that holds a file, and its commit, read without git.

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


# --- Reads arrays of bounded size from .npz archives that somebody else may have written.

#: Largest number of values that are read by default; a bound from that number takes about 3 GB.
MAX_VALUES = 10**8
#: A line of text, such as the header of an audit's observations.
_MOST_CHARACTERS = 2**22
#: Bytes that are read at a time, and that the archive's list of members may take.
_CHUNK = 2**20
# Deflate makes 258 bytes of two bits at best.
_LARGEST_RATIO = 1032


class _InChunks(io.BufferedReader):
    """A file that reads at most `_CHUNK` at once, regardless of what an archive declares."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:  # zipfile looks for its last record in this way
            return super().read(_CHUNK)
        if size > _CHUNK:
            raise ValueError(f"its list of members takes {size} bytes, at most {_CHUNK}")
        return super().read(size)


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        kind = "a structure" if self.dtype.fields else str(self.dtype)
        return f"dtype {kind} and shape {shown(self.shape)}"

    def count(self, name: str, kinds: str, ndims: tuple[int, ...], left: int, most: int) -> int:
        """Return the number of values, if they are numbers of these kinds and at most ``left``."""
        if self.dtype.kind not in kinds or self.dtype.fields or len(self.shape) not in ndims:
            what = " or a ".join(("vector", "table")[ndim - 1] for ndim in ndims)
            raise ValueError(f"{name} has {self}; it must be a {what} of numbers")
        count = math.prod(self.shape)
        if count > left:
            raise ValueError(
                f"{name} has shape {shown(self.shape)}, and all arrays that are read may have "
                f"max_values={most} numbers; raise max_values (--max-values) if you trust the "
                "file and have the memory"
            )
        return count


class Archive:
    """An open .npz; see `open_npz`."""

    def __init__(self, file: zipfile.ZipFile, size: int, max_values: int) -> None:
        self._file, self._size = file, size
        self._left = self._max_values = max_values
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in file.infolist():
            name = info.filename.removesuffix(".npy")
            if name in self._members:
                raise ValueError(f"two members have the name {shown(name)}")
            self._members[name] = info

    @property
    def names(self) -> list[str]:
        """Names of the arrays, in order."""
        return sorted(self._members)

    def numbers(self, name: str, kinds: str, ndim: int) -> NDArray[Any]:
        """Read one array.

        Args:
            name: which one.
            kinds: the kinds of numbers that are allowed, as ``dtype.kind`` names them.
            ndim: number of its dimensions.

        Raises:
            ValueError: it is of another kind or shape, too large, cut short or garbled.
        """
        with self._opened(name) as (member, header, length):
            count = header.count(name, kinds, (ndim,), self._left, self._max_values)
            self._left -= count
            self._refuse_a_lie(name, length + count * header.dtype.itemsize)
            return _filled(name, header, count, member)

    def text(self, name: str) -> str:
        """Read an array that is one string.

        Raises:
            ValueError: it is something else, too long, cut short or garbled.
        """
        import numpy as np

        with self._opened(name) as (member, header, length):
            characters = header.dtype.itemsize // 4
            if header.dtype.kind != "U" or header.shape or characters > _MOST_CHARACTERS:
                raise ValueError(
                    f"{name} has {header}; it must be one string of at most {_MOST_CHARACTERS} "
                    "characters"
                )
            self._refuse_a_lie(name, length + header.dtype.itemsize)
            data = np.empty(header.dtype.itemsize, np.uint8)
            _fill(name, data, member)
        order = "be" if header.dtype.str.startswith(">") else "le"
        # By numpy, a code point that is none raises at any later use.
        return data.tobytes().decode(f"utf-32-{order}").rstrip("\0")

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[IO[bytes], _Header, int]]:
        """A member after its header, the header, and the header's length."""
        info = self._members[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is compressed in another way than numpy does")
        with self._file.open(info) as member:
            header = _header_of(name, member)
            yield member, header, member.tell()

    def _refuse_a_lie(self, name: str, needed: int) -> None:
        info = self._members[name]
        packed = min(info.compress_size, self._size)
        stored = info.compress_type == zipfile.ZIP_STORED
        possible = packed if stored else _LARGEST_RATIO * packed
        if needed != info.file_size or needed > possible:
            raise ValueError(
                f"{name} needs {needed} bytes by its dtype and shape; the archive declares "
                f"{info.file_size} and holds {packed}: it is cut short or garbled"
            )


@contextmanager
def open_npz(path: str | os.PathLike[str], max_values: int = MAX_VALUES) -> Iterator[Archive]:
    """Open an archive to read some of its arrays.

    Args:
        path: the .npz.
        max_values: numbers that all arrays together that are read may have.

    Raises:
        ValueError: the file is absent, no regular file, or no archive of arrays; or, from reading
            one of them, as `Archive` says.
    """
    most = positive_int("max_values", max_values, f"the default is {MAX_VALUES}")
    try:
        with (
            _InChunks(open_regular(path).detach()) as stream,
            zipfile.ZipFile(stream) as file,
        ):
            yield Archive(file, os.fstat(stream.fileno()).st_size, most)
    except (ValueError, MemoryError):
        raise
    # A garbled archive makes zipfile and zlib raise what they do not document.
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _header_of(name: str, member: IO[bytes]) -> _Header:
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(member)
        with warnings.catch_warnings():  # of headers that Python 2 wrote
            warnings.simplefilter("ignore")
            header = _Header(*readers[version](member))
    # numpy reads the header as Python's literals: a garbled one fails in any way they can.
    except Exception as error:
        raise ValueError(
            f"{name} is no array of numbers ({type(error).__name__}: {error})"
        ) from error
    if header.dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are never loaded")
    if any(size < 0 for size in header.shape) or not header.dtype.itemsize:
        raise ValueError(f"{name} has {header}, which no array has")
    return header


def read_npy(
    path: str | os.PathLike[str], kinds: str, max_values: int = MAX_VALUES
) -> NDArray[Any]:
    """Read the vector or table of numbers of an .npy file.

    Args:
        path: the file.
        kinds: the kinds of numbers that are allowed, as ``dtype.kind`` names them.
        max_values: numbers that it may have.

    Raises:
        OSError: as `open_regular`.
        ValueError: as `open_regular`; or it is of another kind or shape, too large, cut short or
            garbled.
    """
    most = positive_int("max_values", max_values, f"the default is {MAX_VALUES}")
    with open_regular(path) as file:
        header = _header_of("it", file)
        count = header.count("it", kinds, (1, 2), most, most)
        size = os.fstat(file.fileno()).st_size - file.tell()
        if size != count * header.dtype.itemsize:
            raise ValueError(f"it has {header}, but {size} bytes of values: it is cut short")
        return _filled("it", header, count, file)


def _filled(name: str, header: _Header, count: int, member: IO[bytes]) -> NDArray[Any]:
    """Read as many values as the header declares, in its shape."""
    import numpy as np

    flat = np.empty(count, header.dtype)
    _fill(name, flat.view(np.uint8), member)
    if header.dtype.kind == "b":  # a byte that is neither 0 nor 1 would count as it likes
        flat = flat.view(np.uint8) != 0
    return flat.reshape(header.shape, order="F" if header.fortran_order else "C")


def _fill(name: str, data: NDArray[np.uint8], member: IO[bytes]) -> None:
    """Read a member's bytes to its end, where its check sum is looked at."""
    import numpy as np

    for start in range(0, data.size, _CHUNK):
        part = data[start : start + _CHUNK]
        read = member.read(part.size)
        if len(read) < part.size:
            raise ValueError(f"{name} is cut short")
        part[:] = np.frombuffer(read, np.uint8)
    if member.read(1):
        raise ValueError(f"{name} holds more than its shape says")
