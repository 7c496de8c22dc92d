"""Run a function in a forked process, so that it cannot change this one.

Its result comes back over a pipe. A fork without progress is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

import torch

from lightning_audit.replay.own_reach import CannotSeparate, keep_to_itself
from lightning_audit.taps.boundary import FailedElsewhere, current, where

Result = TypeVar("Result")
Beat = Callable[[], None]
_PDEATHSIG = 1
_READY, _BEAT, _DONE, _SHARES, _FAILED = "ready", "beat", "done", "shares", "failed"


class ForkFailed(Exception):
    """The forked process returned no result; the message says why."""


def may_fork(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether a fork of this process can train.

    It cannot on devices other than CPUs, or if the autograd engine may have started threads for
    such devices. `other_threads` checks the process's other threads.

    Args:
        tensors: the trained tensors.
    """
    return (
        sys.platform == "linux"
        and hasattr(os, "memfd_create")
        and not torch.accelerator.is_available()
        and all(tensor.device.type == "cpu" for tensor in tensors)
    )


def in_a_fork(work: Callable[[Beat], Result], patience: float) -> Result:
    """Return the result of ``work`` in a fork of this process.

    Args:
        work: gets a function that it must call regularly, and returns a picklable result.
        patience: largest number of seconds between two such calls.

    Raises:
        CannotSeparate: the fork would share too much with this process; nothing was run.
        FailedElsewhere: ``work`` raised.
        ForkFailed: the fork ended or was killed.
    """
    receiver, sender = Pipe(duplex=False)
    with warnings.catch_warnings():
        # The warning is about other threads, of OpenMP and of helpers; the fork uses neither.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError as error:
            raise CannotSeparate(f"the process cannot be forked: {error}") from error
    if child == 0:
        _run(work, sender)
    sender.close()
    last, ended = "", False
    try:
        while receiver.poll(patience):
            last, value = pickle.loads(receiver.recv_bytes())
            if last == _DONE:
                result: Result = value
                return result
            if last == _SHARES:
                raise CannotSeparate(value)
            if last == _FAILED:
                raise FailedElsewhere(*value)
        raise ForkFailed(f"no replay ended within {patience:.0f} s")
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
