"""What a store holds while an audit may be writing it: counts, times and evidence.

The driver locks the database for itself alone, so a copy is read: of the database, then of its
write-ahead log. As long as that log was not restarted meanwhile, it has each page that a
checkpoint wrote into the database during the copy, and SQLite reads those from the log
(https://sqlite.org/walformat.html). Nothing in the store's folder is written.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_audit.files.bounded import open_regular
from lightning_audit.files.replacing import reason_of
from lightning_audit.many.looks import guess_coins, look_of
from lightning_audit.many.training_store import (
    DATABASE,
    LATEST_CALL,
    Row,
    StoreError,
    prefix_of,
    rows_in,
)

#: Bytes of the header of a write-ahead log, which change when the log restarts.
_HEADER = 32
_TRIES, _BETWEEN_TRIES = 20, 0.05
#: Bytes of the database that SQLite locks (https://sqlite.org/lockingv3.html).
_LOCKED_FIRST, _LOCKED = 0x40000002, 510
#: Texts of the driver and the worker for failures that are no exception, and what they are called.
_OWN_ERRORS = {"did not end within": "time limit", "the score is": "score that is not finite"}
_ERROR_TYPE = re.compile(r"[A-Za-z_]\w*(?=:|$)")


@dataclass(frozen=True)
class Evidence:
    """What the trainings so far show of the claim of the latest call.

    Args:
        claim: in words.
        errors: number of wrong guesses.
        guesses: number of guesses.
        log10_e: decimal logarithm of the largest e-value so far.
        log10_refuting: that of the e-value which refutes the claim.
    """

    claim: str
    errors: int
    guesses: int
    log10_e: float
    log10_refuting: float


@dataclass(frozen=True)
class StoreStatus:
    """What a store holds.

    Args:
        planned: trainings that the latest call asks for; None if no call said so.
        done: trainings that gave a score.
        failed: trainings that failed twice.
        started_again: ended trainings that were started more than once.
        in_use: whether an audit uses the store; None if the system does not say.
        training_seconds: median duration of a training in its process; None if none is known.
        seconds_between: mean time between two ends since the latest call, over all its workers.
        seconds_left: time to the planned end at that pace.
        evidence: None before the first training, or if no call said what is claimed.
        last_error: type of the last error, without its text; empty if there was none.
    """

    planned: int | None
    done: int
    failed: int
    started_again: int
    in_use: bool | None
    training_seconds: float | None
    seconds_between: float | None
    seconds_left: float | None
    evidence: Evidence | None
    last_error: str


def status_of(folder: Path) -> StoreStatus:
    """Read the store in a folder. Call it from another process than the audit's.

    On POSIX, a process that closes a file loses its own locks on it: called in the process of a
    running audit, this would unlock its store.

    Raises:
        StoreError: there is no store, or it is damaged.
    """
    if not (folder / DATABASE).is_file():
        raise StoreError(f"{folder} holds no store: there is no {DATABASE} in it.")
    try:
        with _copied(folder) as db:
            return _status(db, folder)
    except (sqlite3.Error, OSError, ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"the store {folder} cannot be read ({reason_of(error)}); restore {DATABASE} from a "
            "copy, or start with a new store."
        ) from error


def _status(db: sqlite3.Connection, folder: Path) -> StoreStatus:
    kept = dict(db.execute("select key, value from audit"))
    call = json.loads(kept.get(LATEST_CALL, "{}"))
    if not isinstance(call, dict):
        raise ValueError(f"{LATEST_CALL} is no object")
    rows = {row.training.number: row for row in rows_in(db, folder)}
    failed = sum(row.scores is None for row in rows.values())
    planned = int(call.get("trainings", kept["planned"])) if "planned" in kept else None
    begun = float(call.get("begun", math.inf))
    ended_now, last = db.execute(
        "select count(*), max(finished) from training where finished >= ?", (begun,)
    ).fetchone()
    between = (float(last) - begun) / ended_now if ended_now else None
    left = None
    if planned is not None and between is not None:
        left = between * max(0, planned - len(rows))
    durations = [row.seconds for row in rows.values() if row.seconds is not None]
    return StoreStatus(
        planned=planned,
        done=len(rows) - failed,
        failed=failed,
        started_again=sum(row.attempts > 1 for row in rows.values()),
        in_use=_in_use(folder),
        training_seconds=statistics.median(durations) if durations else None,
        seconds_between=between,
        seconds_left=left,
        evidence=_evidence(call, rows, planned),
        last_error=_last_error(db),
    )


def _evidence(
    call: Mapping[str, Any], rows: Mapping[int, Row], planned: int | None
) -> Evidence | None:
    if not rows or "least_error" not in call:
        return None
    canaries = len(next(iter(rows.values())).training.coins)
    prefix = prefix_of(rows, canaries, planned)
    goal = -math.log(float(call["significance"]))
    guesses = guess_coins(prefix.scores, prefix.coins, prefix.failed)
    seen = look_of(guesses, float(call["least_error"]), goal)
    return Evidence(
        claim=str(call["claim"]),
        errors=seen.errors,
        guesses=seen.guesses,
        log10_e=seen.log_e / math.log(10.0),
        log10_refuting=goal / math.log(10.0),
    )


def _last_error(db: sqlite3.Connection) -> str:
    """Return the type of the last error: its text may quote data."""
    found = db.execute(
        "select error from (select error, finished as at from training where error is not null "
        "union all select error, ended from attempt) order by at desc limit 1"
    ).fetchone()
    if found is None:
        return ""
    text = str(found[0])
    for start, name in _OWN_ERRORS.items():
        if text.startswith(start):
            return name
    kind = _ERROR_TYPE.match(text)
    return kind.group() if kind else "unknown"


@contextlib.contextmanager
def _copied(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of the database as it was at one time."""
    with tempfile.TemporaryDirectory(prefix="lightning-audit-") as name:
        copy = Path(name)
        _copy(folder, copy)
        db = sqlite3.connect(copy / DATABASE)
        try:
            yield db
        finally:
            db.close()


def _copy(folder: Path, copy: Path) -> None:
    log = f"{DATABASE}-wal"
    for _ in range(_TRIES):
        before = _generation(folder / DATABASE, folder / log)
        (copy / log).unlink(missing_ok=True)
        for name in (DATABASE, log):  # in this order
            with (
                contextlib.suppress(*([FileNotFoundError] if name == log else [])),
                open_regular(folder / name) as source,
                open(copy / name, "wb") as target,
            ):
                shutil.copyfileobj(source, target)
        if _generation(folder / DATABASE, folder / log) == before:
            return
        time.sleep(_BETWEEN_TRIES)
    raise StoreError(f"{folder} changed while it was read, {_TRIES} times; try again.")


def _generation(database: Path, log: Path) -> tuple[bytes, int]:
    """Return what changes if the log restarts; without a log, if the database changes."""
    header = b""
    with contextlib.suppress(FileNotFoundError), open_regular(log) as file:
        header = file.read(_HEADER)
    return header, 0 if header else database.stat().st_mtime_ns


def _in_use(folder: Path) -> bool | None:
    """Return whether a driver has the database locked; None on a system without such locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    with open_regular(folder / DATABASE) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, _LOCKED, _LOCKED_FIRST)
        except OSError:
            return True
    return False  # closing the file has given the lock back
