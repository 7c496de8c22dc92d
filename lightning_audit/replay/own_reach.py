"""Separate a forked process from its parent, so that it cannot change it.

A fork copies memory, but not open files, shared memory or anything outside the process. This module
opens files again or copies them, copies shared memory, and refuses calls with other effects.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

#: Largest number of bytes of files and shared memory to copy.
_MOST = 2**28
_MAP_FIXED = 0x10
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Python's audit events that change files, other processes or other machines.
_REACHES_OUT = frozenset(
    f"os.{name}"
    for name in (
        *("chmod", "chown", "exec", "fork", "forkpty", "kill", "killpg", "link", "mkdir"),
        *("posix_spawn", "remove", "rename", "rmdir", "symlink", "system", "truncate", "utime"),
    )
) | {
    *("socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto"),
    *("sqlite3.connect", "subprocess.Popen"),
}


class CannotSeparate(Exception):
    """A shared resource of the process cannot be copied; the message names it."""


class ReachesOut(Exception):
    """A replayed step would change something outside of its process."""


def keep_to_itself(kept: int) -> None:
    """Separate this process from its parent.

    Args:
        kept: descriptor of a pipe to keep.

    Raises:
        CannotSeparate: a shared resource is too large or cannot be copied.
    """
    sys.dont_write_bytecode = True
    left = _own_memory(_MOST)
    _own_files(kept, left)
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """Audit hook that refuses effects outside of the process."""
    if event == "open":
        path, _, flags = args
        outside = not isinstance(path, int) and not str(path).startswith("/dev/")
        if outside and isinstance(flags, int) and flags & _WRITES:
            raise ReachesOut("the step opens a file for writing")
    elif event in _REACHES_OUT and args[:1] != (":memory:",):
        raise ReachesOut(f"the step calls {event}")


def _own_memory(left: int) -> int:
    """Copy the memory that is shared with other processes.

    Args:
        left: largest number of bytes to copy.

    Returns:
        The bytes of ``left`` that remain.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.match(r"(\w+)-(\w+) rw.s \w+ \S+ \d+\s*(.*)", line)
        if found is None or _is_device(found[3]):
            continue
        start, end = int(found[1], 16), int(found[2], 16)
        left = _take(left, end - start, f"shared memory ({found[3]})")
        content = ctypes.string_at(start, end - start)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        if libc.mmap(start, end - start, protection, flags, -1, 0) != start:
            raise CannotSeparate(f"shared memory ({found[3]}) cannot be replaced")
        ctypes.memmove(start, content, len(content))
    return left


def _is_device(path: str) -> bool:
    return path.startswith("anon_inode") or (
        path.startswith("/dev/") and not path.startswith(("/dev/shm/", "/dev/zero"))
    )


def _own_files(kept: int, left: int) -> None:
    """Open files again, so that this process has its own positions and contents.

    Pipes, sockets and terminals are redirected to ``os.devnull``.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number in (kept, nowhere):
            continue
        try:
            kind = os.fstat(number).st_mode
        except OSError:  # the descriptor of the listing itself
            continue
        if stat.S_ISREG(kind):
            left = _own_file(number, left)
        elif not stat.S_ISDIR(kind) and (not stat.S_ISCHR(kind) or os.isatty(number)):
            os.dup2(nowhere, number)


def _own_file(number: int, left: int) -> int:
    """Replace a descriptor by a new one for its file; a file opened for writing is copied."""
    import fcntl  # not on Windows, where nothing is forked

    flags, place = fcntl.fcntl(number, fcntl.F_GETFL), os.lseek(number, 0, os.SEEK_CUR)
    access = flags & os.O_ACCMODE
    try:
        if access == os.O_RDONLY:
            own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
        else:
            size = os.fstat(number).st_size
            own = os.memfd_create("copy")
            os.ftruncate(own, size)
            if access == os.O_RDWR:
                left = _take(left, size, "open files")
                done = 0
                while done < size and (part := os.sendfile(own, number, done, size - done)):
                    done += part
    except OSError as error:
        raise CannotSeparate(f"an open file cannot be opened again: {error}") from error
    os.lseek(own, place, os.SEEK_SET)
    fcntl.fcntl(own, fcntl.F_SETFL, flags & os.O_APPEND)
    os.dup2(own, number)
    os.close(own)
    return left


def _take(left: int, size: int, what: str) -> int:
    if size > left:
        raise CannotSeparate(f"{what} takes more than {_MOST:,} bytes")
    return left - size
