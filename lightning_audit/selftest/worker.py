"""A process that trains rows one after the other, for `lightning_audit.selftest.pool`."""

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
    """The answer where a training broke off.

    Args:
        error: why.
        seconds: that it took.
    """

    error: str
    seconds: float


def serve(tasks: Connection, log: str) -> None:
    """Answer each task until whoever started this process is gone, also amid a training.

    Args:
        tasks: pickled pairs of a function and a row come in, what the function gives goes out.
        log: file for what trainings print.
    """
    if hasattr(os, "setsid"):  # Ctrl-C is for the parent alone, which ends this process
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
    except (Exception, SystemExit) as error:  # a row that says so, not a lost table
        print(f"selftest: {type(error).__name__}: {error}", file=sys.stderr)
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return Broken(message, time.perf_counter() - started)
