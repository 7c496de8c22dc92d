"""The worker process of `lightning_audit.selftest.pool`, which trains one row after the other."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, NamedTuple


class Broken(NamedTuple):
    """Answer of a training that failed.

    Args:
        error: why it failed.
        seconds: duration until then.
    """

    error: str
    seconds: float


def serve(tasks: Connection, log: str) -> None:
    """Answer tasks until the parent process ends, even during a training.

    Args:
        tasks: receives pickled pairs of a function and a row, and sends the function's results.
        log: file for the trainings' output.
    """
    if hasattr(os, "setsid"):  # only the parent gets Ctrl-C, and then ends this process
        os.setsid()
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    threading.Thread(target=_follow, daemon=True).start()
    while True:
        tasks.send(_answer(tasks.recv_bytes()))


def _follow() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(task: bytes) -> Any:
    started = time.perf_counter()
    try:
        train, row = pickle.loads(task)  # loads torch
        return train(row)
    except (Exception, SystemExit) as error:  # reported in the row; the other rows continue
        print(f"selftest: {type(error).__name__}: {error}", file=sys.stderr)
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return Broken(message, time.perf_counter() - started)
