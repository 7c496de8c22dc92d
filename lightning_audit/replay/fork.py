"""Runs a function in a forked process that cannot change this one.

The result comes back over a pipe. A fork without progress is killed.

**Separate a forked process from its parent, so that it cannot change it.** A fork copies memory,
but not open files, shared memory or anything outside the process. This module opens files again or
copies them, copies shared memory, and refuses calls with other effects.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import mmap
import os
import pickle
import re
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

import torch

from lightning_audit.hooks.boundary import FailedElsewhere, current, where

# --- Run a function in a forked process, so that it cannot change this one.

Result = TypeVar("Result")
Beat = Callable[[], None]
_PDEATHSIG = 1
_READY, _BEAT, _DONE, _SHARES, _FAILED = "ready", "beat", "done", "shares", "failed"


class ForkFailed(Exception):
    """The forked process returned no result; the message says why."""


class Stalled(ForkFailed):
    """The forked process made no progress, or could not begin."""


def may_fork(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether a fork of this process can train.

    It cannot on devices other than CPUs, or if the autograd engine may have started threads for
    such devices. `training_thread` checks the process's other threads.

    Args:
        tensors: the trained tensors.
    """
    return (
        sys.platform == "linux"
        and hasattr(os, "memfd_create")
        and not torch.accelerator.is_available()
        and all(tensor.device.type == "cpu" for tensor in tensors)
    )


def in_a_fork(work: Callable[[Beat], Result], patience: float, first: float = 0.0) -> Result:
    """Return the result of ``work`` in a fork of this process.

    Args:
        work: gets a function that it must call regularly, and returns a picklable result.
        patience: largest number of seconds between two such calls.
        first: largest number of seconds until the first one; 0 for ``patience``.

    Raises:
        CannotSeparate: the fork would share too much with this process; nothing was run.
        FailedElsewhere: ``work`` raised.
        ForkFailed: the fork ended or was killed; `Stalled` if a later one may succeed.
    """
    first = first or patience
    if (lock := getattr(logging, "_lock", None)) is not None:  # a fork waits for it, forever
        if not lock.acquire(timeout=first):
            raise Stalled(f"another thread has held the lock of `logging` for {first:.0f} s")
        lock.release()
    receiver, sender = Pipe(duplex=False)
    with warnings.catch_warnings():
        # The warning is about other threads, of OpenMP and of helpers; the fork uses neither.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError as error:
            raise CannotSeparate(f"the process cannot be forked: {error}") from error
    if child == 0:
        try:
            _run(work, sender)
        finally:  # an interrupt before the `try` of `_run`: two processes would train
            os._exit(0)
    sender.close()
    last, ended = "", False
    try:
        while receiver.poll(limit := patience if last == _BEAT else first):
            last, value = pickle.loads(receiver.recv_bytes())
            if last == _DONE:
                result: Result = value
                return result
            if last == _SHARES:
                raise CannotSeparate(value)
            if last == _FAILED:
                raise FailedElsewhere(*value)
        held = "; another thread may hold a lock that it needs" * (threading.active_count() > 1)
        raise Stalled(f"no replay ended within {limit:.0f} s{held}")
    except EOFError:
        ended = True
    finally:
        receiver.close()
        code = _end(child, kill=not ended)
    if not last:
        raise CannotSeparate(f"the fork ended before it began, with exit code {code}")
    raise ForkFailed(
        f"the process that replayed the step was ended by signal {-code}"
        + " (out of memory?)" * (code == -signal.SIGKILL)
        if code < 0
        else f"the process that replayed the step ended with exit code {code}"
    )


def _end(child: int, *, kill: bool) -> int:
    """Wait for the fork, and return its exit code, negative for a signal."""
    if kill:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # the user's program reaps all children
        return 0


def _run(work: Callable[[Beat], Any], sender: Connection) -> None:
    """Run ``work`` in the fork, and exit without returning."""

    def send(what: str, value: Any = None) -> None:
        # Not `Connection.send`, which puts tensors into shared memory.
        sender.send_bytes(pickle.dumps((what, value)))

    try:
        try:
            _settle(sender.fileno())
        except Exception as error:
            send(_SHARES, str(error))
            return
        send(_READY)
        result, boundary = work(lambda: send(_BEAT)), current()
        if boundary is not None and boundary.failure:
            send(_FAILED, (boundary.failure, boundary.line))
        else:
            send(_DONE, result)
    except BaseException as error:
        send(_FAILED, where(error))
    finally:
        os._exit(0)  # skips the training's exit handlers


def _settle(pipe: int) -> None:
    """Prepare the forked process to train alone."""
    gc.freeze()  # the training's garbage is not finalized in the fork
    sys.settrace(None)
    sys.setprofile(None)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted training ends the fork
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # out of memory, the kernel kills the fork and not the training
    # A fork has no OpenMP threads: with more than one it would wait for them forever.
    torch.set_num_threads(1)
    torch.set_num_threads = lambda _: None  # type: ignore[assignment]
    keep_to_itself(pipe)


# --- Separate a forked process from its parent, so that it cannot change it.

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
