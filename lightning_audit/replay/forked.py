"""Runs something in a forked process, so that nothing it does changes this one.

What it gives comes back over a pipe. One that makes no progress is killed.
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

Result = TypeVar("Result")
Beat = Callable[[], None]
_PDEATHSIG = 1
_READY, _BEAT, _DONE, _SHARES, _FAILED = "ready", "beat", "done", "shares", "failed"


class ForkFailed(Exception):
    """The forked process gave no result; the message says why."""


def may_fork(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a fork of this process can train.

    It cannot on other devices than CPUs, nor where the autograd engine has started threads for
    them. The other threads are looked at by `other_threads`.

    Args:
        tensors: that are trained.
    """
    return (
        sys.platform == "linux"
        and hasattr(os, "memfd_create")
        and not torch.accelerator.is_available()
        and all(tensor.device.type == "cpu" for tensor in tensors)
    )


def in_a_fork(work: Callable[[Beat], Result], patience: float) -> Result:
    """What ``work`` returns in a fork of this process.

    Args:
        work: is given what it has to call now and then, and returns what can be pickled.
        patience: seconds that may pass between two such calls.

    Raises:
        CannotSeparate: the fork would share too much with this process, so that nothing ran.
        ForkFailed: it raised, ended or was killed.
    """
    receiver, sender = Pipe(duplex=False)
    with warnings.catch_warnings():
        # Threads of OpenMP and of helpers; the fork uses neither.
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
                raise ForkFailed(value)
        raise ForkFailed(f"no replay ended within {patience:.0f} s")
    except EOFError:
        ended = True
    finally:
        receiver.close()
        code = _end(child, kill=not ended)
    if not last:
        raise CannotSeparate(f"the fork ended before it began, with exit code {code}")
    raise ForkFailed(
        f"the process that replayed it was ended by signal {-code}"
        + " (out of memory?)" * (code == -signal.SIGKILL)
        if code < 0
        else f"the process that replayed it ended with exit code {code}"
    )


def _end(child: int, *, kill: bool) -> int:
    """The exit code of the fork, negative for a signal."""
    if kill:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # the user's program takes the exit codes of all
        return 0


def _run(work: Callable[[Beat], Any], sender: Connection) -> None:
    """All that the fork does; it does not return."""

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
        send(_DONE, work(lambda: send(_BEAT)))
    except BaseException as error:
        send(_FAILED, f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)  # no handler of the training's end runs here


def _settle(pipe: int) -> None:
    """Make this process fit to train alone."""
    gc.freeze()  # what the training dropped is not finalized here
    sys.settrace(None)
    sys.setprofile(None)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training that is interrupted ends this
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this process ends and not the training
    # The threads of OpenMP are not in a fork: a second one would wait for them forever.
    torch.set_num_threads(1)
    torch.set_num_threads = lambda _: None  # type: ignore[assignment]
    keep_to_itself(pipe)
