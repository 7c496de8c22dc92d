"""Reads arrays of bounded size from .npz archives that somebody else may have written.

What an archive declares may be a lie. An array is read only if its shape, its member's size and
what the file holds can all be true, so that memory is taken for numbers that are really there.
"""

from __future__ import annotations

import io
import math
import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lightning_audit._validate import positive_int, shown
from lightning_audit.files.bounded import open_regular

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
            dtype, shape = header.dtype, header.shape
            if dtype.kind not in kinds or dtype.fields or len(shape) != ndim:
                raise ValueError(
                    f"{name} has {header}; it must be a {'table' if ndim > 1 else 'vector'} of "
                    "numbers"
                )
            count = math.prod(shape)
            if count > self._left:
                raise ValueError(
                    f"{name} has shape {shown(shape)}, and all arrays that are read may have "
                    f"max_values={self._max_values} numbers; raise max_values (--max-values) if "
                    "you trust the file and have the memory"
                )
            self._left -= count
            self._refuse_a_lie(name, length + count * dtype.itemsize)
            flat = np.empty(count, dtype)
            _fill(name, flat.view(np.uint8), member)
        if dtype.kind == "b":  # a byte that is neither 0 nor 1 would count as it likes
            flat = flat.view(np.uint8) != 0
        return flat.reshape(shape, order="F" if header.fortran_order else "C")

    def text(self, name: str) -> str:
        """Read an array that is one string.

        Raises:
            ValueError: it is something else, too long, cut short or garbled.
        """
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


def _fill(name: str, data: NDArray[np.uint8], member: IO[bytes]) -> None:
    """Read a member's bytes to its end, where its check sum is looked at."""
    for start in range(0, data.size, _CHUNK):
        part = data[start : start + _CHUNK]
        read = member.read(part.size)
        if len(read) < part.size:
            raise ValueError(f"{name} is cut short")
        part[:] = np.frombuffer(read, np.uint8)
    if member.read(1):
        raise ValueError(f"{name} holds more than its shape says")
