"""Trainings whose step depends on state of every kind, most of it beyond a replay's reach."""

from __future__ import annotations

import contextvars
import functools
import itertools
import mmap
import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import torch
from training_support import PrivateModule, digits, mlp

#: Counts its calls, and tells how many there were; made in an empty folder.
Count = Callable[[], float]
#: Files to be closed when a test ends.
OPEN: list[IO[Any]] = []


def close_files() -> None:
    """Close what the trainings left open."""
    while OPEN:
        OPEN.pop().close()


COUNTED = contextvars.ContextVar("COUNTED", default=0)
TOTAL = 0


def _foreign_class(_: Path) -> Count:
    Fraction.calls = 0

    def count() -> float:
        Fraction.calls += 1
        return Fraction.calls

    return count


def _mutable_default(_: Path) -> Count:
    def counts(calls: list[int] = [0]) -> float:  # noqa: B006
        calls[0] += 1
        return calls[0]

    return functools.partial(counts)


def _context(_: Path) -> Count:
    COUNTED.set(0)

    def count() -> float:
        COUNTED.set(COUNTED.get() + 1)
        return COUNTED.get()

    return count


LOCAL = threading.local()


def _thread_local(_: Path) -> Count:
    LOCAL.calls = 0

    def count() -> float:
        LOCAL.calls += 1
        return LOCAL.calls

    return count


def _database(where: str) -> Count:
    connection = sqlite3.connect(where)
    connection.execute("CREATE TABLE calls (at INTEGER)")
    connection.commit()

    def count() -> float:
        connection.execute("INSERT INTO calls VALUES (1)")
        connection.commit()
        return connection.execute("SELECT count(*) FROM calls").fetchone()[0]

    return count


def _read_file(folder: Path) -> Count:
    (folder / "numbers").write_bytes(bytes(range(250)))
    file: Any = (folder / "numbers").open("rb", buffering=0)
    OPEN.append(file)
    return lambda: file.read(1)[0]


def _written_file(folder: Path) -> Count:
    file = (folder / "log").open("w")
    OPEN.append(file)

    def count() -> float:
        file.write("x")
        file.flush()
        return (folder / "log").stat().st_size

    return count


def _buffered_file(folder: Path) -> Count:
    file = (folder / "log").open("w+")
    OPEN.append(file)

    def count() -> float:
        file.write("x")
        return file.tell()

    return count


def _opened_file(folder: Path) -> Count:
    def count() -> float:
        with (folder / "log").open("a") as file:
            file.write("x")
        return (folder / "log").stat().st_size

    return count


def _shared_tensor(_: Path) -> Count:
    shared = torch.zeros(1).share_memory_()
    hidden: dict[str, Any] = {}
    Fraction.hidden = hidden
    hidden["shared"] = shared

    def count() -> float:
        return float(Fraction.hidden["shared"].add_(1.0))

    return count


def _shared_value(_: Path) -> Count:
    Fraction.value = multiprocessing.Value("i", 0)

    def count() -> float:
        with Fraction.value.get_lock():
            Fraction.value.value += 1
        return Fraction.value.value

    return count


def _mapped_file(folder: Path) -> Count:
    (folder / "numbers").write_bytes(bytes(16))
    with (folder / "numbers").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 16)

    def count() -> float:
        mapped[0] += 1
        return mapped[0]

    return count


def _environment(_: Path) -> Count:
    os.environ["COUNTED"] = "0"

    def count() -> float:
        os.environ["COUNTED"] = str(int(os.environ["COUNTED"]) + 1)
        return int(os.environ["COUNTED"])

    return count


def _iterator(_: Path) -> Count:
    Fraction.counter = itertools.count(1)
    return lambda: next(Fraction.counter)


def _cached(_: Path) -> Count:
    @functools.cache
    def calls() -> dict[str, int]:
        return {"count": 0}

    Fraction.cached = calls

    def count() -> float:
        Fraction.cached()["count"] += 1
        return Fraction.cached()["count"]

    return count


def _global(_: Path) -> Count:
    global TOTAL
    TOTAL = 0

    def count() -> float:
        global TOTAL
        TOTAL += 1
        return TOTAL

    return count


def _pipe(_: Path) -> Count:
    ends = os.pipe()
    os.write(ends[1], bytes(range(1, 250)))
    return lambda: os.read(ends[0], 1)[0]


#: Kinds of state by name.
KINDS: dict[str, Callable[[Path], Count]] = {
    "attribute of a foreign class": _foreign_class,
    "mutable default": _mutable_default,
    "ContextVar": _context,
    "threading.local": _thread_local,
    "sqlite in memory": lambda _: _database(":memory:"),
    "sqlite in a file": lambda folder: _database(str(folder / "data.db")),
    "position of a file": _read_file,
    "file that is written": _written_file,
    "buffer of a file": _buffered_file,
    "file that is opened in the step": _opened_file,
    "shared tensor": _shared_tensor,
    "multiprocessing.Value": _shared_value,
    "mapped file": _mapped_file,
    "environment": _environment,
    "iterator": _iterator,
    "functools.cache": _cached,
    "global variable": _global,
    "pipe": _pipe,
}


class Counting(PrivateModule):
    """Its inputs grow with the calls that are counted.

    Args:
        count: of `KINDS`.
    """

    def __init__(self, count: Count) -> None:
        super().__init__(mlp(64), dataset=digits())
        self.count = count
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = super().training_step((x * (1.0 + 0.01 * self.count()), y), batch_idx)
        self.losses.append(float(loss.detach()))
        return loss
