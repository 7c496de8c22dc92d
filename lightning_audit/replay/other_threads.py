"""Detects other threads of the process that may train while a step is replayed.

A replay seeds the global generators, and a fork keeps the locks that other threads hold. Both are
harmless while no other thread computes with torch or NumPy: its CPU time and its stack show it. A
lock that a waiting thread holds can stop a fork, whose time limit then ends it.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
import types
from pathlib import Path
from types import FrameType

#: Looks at the other threads, of which some in a row must find none that computes; the seconds of
#: a look, and the CPU seconds of a busy thread in them.
_LOOKS, _IN_A_ROW, _LOOK, _BUSY = 50, 3, 0.004, 0.0004
#: Packages whose code locks and draws from generators that a replay needs.
_COMPUTES = ("torch", "numpy")
#: Modules whose threads are harmless, regardless of the code that they call, also in a bare
#: ``run``.
_HARMLESS = (
    *("torch.utils.data._utils.pin_memory", "torch._inductor."),
    *("pytorch_lightning.callbacks.progress.", "lightning.pytorch.callbacks.progress."),
)


def training_thread(*, forked: bool = False) -> str:
    """Return the name of another thread that computes with torch or NumPy; empty if none does.

    A thread that waits does not count: it neither draws random numbers nor holds a lock of torch.

    Args:
        forked: whether the step will be replayed in a fork, in which no other thread runs; a
            thread that loads data does not count then.
    """
    found: list[str] = []
    for _ in range(_LOOKS):
        others = [t for t in threading.enumerate() if t is not threading.current_thread()]
        if not others or found[-_IN_A_ROW:] == [""] * _IN_A_ROW:
            return ""
        used = {thread: _cpu_seconds(thread, 0.0) for thread in others}
        time.sleep(_LOOK)
        frames = sys._current_frames()
        busy = [t for t in others if _cpu_seconds(t, math.inf) - used[t] > _BUSY]
        names = (t.name for t in busy if _computes(frames.get(t.ident or 0), forked=forked))
        found.append(next(names, ""))
    return next(filter(None, reversed(found)))


def _cpu_seconds(thread: threading.Thread, otherwise: float) -> float:
    """Return a thread's CPU time; another number while it waits for a CPU, or if it is unknown."""
    with contextlib.suppress(OSError, AttributeError):  # not on Linux, or the thread has ended
        task, clock = thread.native_id or 0, time.clock_gettime
        if Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()[0] == "S":
            # Its clock by number: unlike `pthread_getcpuclockid` safe if the thread has ended.
            return clock(~task << 3 | 6)
    return otherwise


def _computes(frame: FrameType | None, *, forked: bool) -> bool:
    """Return whether a busy thread may compute with torch or NumPy, given its innermost frame."""
    if frame is None:
        return False
    # A function written in C, such as `torch.normal`, has no frame: a bare ``run`` may call it.
    computes = frame.f_code.co_name == "run"
    harmless = (*_HARMLESS, *["torch.utils.data."] * forked)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(harmless):
            return False
        used = (*map(frame.f_globals.get, frame.f_code.co_names), *frame.f_locals.values())
        computes = computes or any(map(_is_numeric, used))
        frame = frame.f_back
    return computes


def _is_numeric(used: object) -> bool:
    """Return whether an object is a module, function, class or instance of torch or NumPy."""
    if isinstance(used, types.ModuleType | types.FunctionType):
        homes = [used.__name__, used.__module__ if callable(used) else ""]
    else:
        used = used.__self__ if isinstance(used, types.BuiltinFunctionType) else used
        homes = [k.__module__ for k in (used if isinstance(used, type) else type(used)).__mro__]
    return any(str(home).partition(".")[0] in _COMPUTES for home in homes)
