"""The store of an audit over many trainings: one row a training, in SQLite, and arrays in files.

The driver alone writes. A row is written once and never changed; it is there only if its array is.
Nothing that can be computed from the rows is stored.

**What a store holds while an audit may be writing it: counts, times and evidence.** The driver
locks the database for itself alone, so a copy is read: of the database, then of its write-ahead
log. As long as that log was not restarted meanwhile, it has each page that a checkpoint wrote into
the database during the copy, and SQLite reads those from the log
(https://sqlite.org/walformat.html). Nothing in the store's folder is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit._validate import shown
from lightning_audit.files import (
    open_npz,
    open_regular,
    reason_of,
    remove_partials,
    replacing,
    visible,
)
from lightning_audit.many.looks import guess_coins, look_of

# --- The plan of an audit over many trainings: each training's number, coins, seed and block.

#: Key of the coins' generator: a training that uses the audit's seed draws other numbers.
_COINS = 0x636F696E
#: Most trainings of a block; a block is at most this part of the plan.
MOST_IN_BLOCK, LEAST_BLOCKS = 20, 20
_ROUNDS = 4


@dataclass(frozen=True)
class PlannedTraining:
    """A training before it has run.

    Args:
        number: its position in the plan, from 0.
        coins: for each canary, 1 if it is in the training's data and 0 if not.
        seed: its seed, in [0, 2^32), which no other training of the plan has.
    """

    number: int
    coins: tuple[int, ...]
    seed: int


#: Trainings that a worker runs together.
Block = tuple[PlannedTraining, ...]


@dataclass(frozen=True)
class Plan:
    """Which trainings an audit runs, computed from its seed alone.

    Each training has fair coins of its own, drawn by a generator that nothing else uses: the coins
    of earlier trainings say nothing about those of later ones. Blocks are part of the plan, so that
    a resumed audit trains the same blocks.

    Args:
        seed: of the audit, >= 0.
        trainings: their number.
        block: number of trainings in a block.
        canaries: number of canaries, each with a coin of its own in each training.
    """

    seed: int
    trainings: int
    block: int
    canaries: int = 1

    def training(self, number: int) -> PlannedTraining:
        """Return the training with this number."""
        words = np.random.SeedSequence([_COINS, self.seed, number])
        coins = np.random.Generator(np.random.PCG64(words)).integers(2, size=self.canaries)
        return PlannedTraining(number, tuple(int(coin) for coin in coins), self._seed(number))

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order; the last one may be shorter."""
        for first in range(0, self.trainings, self.block):
            last = min(first + self.block, self.trainings)
            yield tuple(self.training(number) for number in range(first, last))

    def _seed(self, number: int) -> int:
        """Return a seed that is distinct for each number below 2^32: a Feistel permutation."""
        left, right = number >> 16, number & 0xFFFF
        for turn in range(_ROUNDS):
            key = f"{self.seed}/{turn}/{right}".encode()
            mixed = int.from_bytes(hashlib.blake2b(key, digest_size=2).digest(), "big")
            left, right = right, left ^ mixed
        return left << 16 | right


def block_size(trainings: int) -> int:
    """Return the number of trainings in a block: a twentieth of the plan, and at most 20."""
    return max(1, min(MOST_IN_BLOCK, trainings // LEAST_BLOCKS))


# --- The store of an audit over many trainings: one row a training, in SQLite, and arrays in files.

#: File of the rows, and folder of the arrays.
DATABASE, ARRAYS = "trainings.sqlite", "arrays"
#: Layout of the tables and of the identities, which name classes by module.
SCHEMA_VERSION = "2"
#: Key of what the latest call asks for, as JSON: the only value that a later call replaces.
LATEST_CALL = "latest call"
#: Most characters of an error that a row keeps.
MOST_CHARACTERS = 500

_SCHEMA = """
create table if not exists audit (key text primary key, value text not null) without rowid;
create table if not exists training (
  number integer primary key, coins text not null, seed integer not null,
  state text not null check (state in ('done', 'failed')), attempts integer not null,
  score real, arrays text, seconds real, error text, finished real not null);
create table if not exists attempt (
  number integer not null, ended real not null, error text not null);
"""


class StoreError(Exception):
    """A store that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Row:
    """A training that has ended.

    Args:
        training: as planned.
        scores: one score a canary, finite; None if the training failed.
        seconds: duration of the training; None if unknown.
        error: why it failed, empty if it did not.
        attempts: how often it was started.
    """

    training: PlannedTraining
    scores: tuple[float, ...] | None
    seconds: float | None = None
    error: str = ""
    attempts: int = 1


@dataclass(frozen=True)
class Prefix:
    """The trainings before the first one that has not ended, in the order of the plan.

    Args:
        scores: ``[n]``, or ``[n, m]`` for m canaries a training; NaN if it failed.
        coins: of the same shape, True if the canary was in.
        failed: ``[n]``.
    """

    scores: NDArray[np.float64]
    coins: NDArray[np.bool_]
    failed: NDArray[np.bool_]


class TrainingStore:
    """The rows of one audit, open for one driver.

    Args:
        folder: created if absent.
        identity: what the trainings are: for each part ("train", "dataset", ...) its digest.
        canaries: number of canaries a training.

    Raises:
        StoreError: the store belongs to other trainings, another driver uses it, or it cannot be
            read or written.
    """

    def __init__(self, folder: str | os.PathLike[str], identity: Mapping[str, str], canaries: int):
        self.folder = Path(folder)
        self._canaries = canaries
        self._finished: dict[int, Row] = {}
        with self._writing():
            (self.folder / ARRAYS).mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                self.folder / DATABASE, isolation_level=None, timeout=1.0, check_same_thread=False
            )
        try:
            with self._writing():
                # Exclusive before WAL: no shared memory, and a second driver is refused.
                self._db.execute("pragma locking_mode=exclusive")
                self._db.execute("pragma journal_mode=wal")
                self._db.execute("pragma synchronous=full")
                self._db.execute("begin exclusive")
                self._db.execute("commit")
                self._db.executescript(_SCHEMA)
                remove_partials(self.folder / ARRAYS)
                if not self._db.execute("select 1 from training limit 1").fetchone():
                    self._db.execute("delete from audit")  # nothing was trained yet
            self._keep("schema", SCHEMA_VERSION)
            for part, digest in identity.items():
                self._keep(f"identity.{part}", digest)
            self._refuse_another(identity)
            self._finished = {row.training.number: row for row in rows_in(self._db, self.folder)}
        except BaseException:
            self._db.close()
            raise

    def fixed(self, key: str, value: int) -> int:
        """Return a number of the plan as it was first stored; store this one if there is none."""
        self._keep(key, str(value))
        found = self._db.execute("select value from audit where key = ?", (key,)).fetchone()
        return int(found[0])

    def say(self, call: Mapping[str, object]) -> None:
        """Store what the latest call asks for, which `lightning-audit status` prints."""
        with self._writing():
            self._db.execute(
                "insert or replace into audit values (?, ?)", (LATEST_CALL, json.dumps(call))
            )

    @property
    def finished(self) -> int:
        """Number of trainings that have ended."""
        return len(self._finished)

    def has(self, number: int) -> bool:
        """Return whether the training of this number has ended."""
        return number in self._finished

    def rows(self) -> list[Row]:
        """Return all rows in the order of the plan."""
        return [self._finished[number] for number in sorted(self._finished)]

    def add(self, rows: Sequence[Row]) -> None:
        """Store trainings that have ended, in one transaction.

        A training that is already stored does not change.

        Raises:
            StoreError: they cannot be written; none of ``rows`` is stored then.
        """
        new = [row for row in rows if not self.has(row.training.number)]
        with self._writing(), self._transaction():
            self._db.executemany(
                "insert or ignore into training values (?,?,?,?,?,?,?,?,?,?)",
                [self._written(row) for row in new],
            )
        self._finished.update({row.training.number: row for row in new})

    def lost(self, numbers: Sequence[int], error: str) -> None:
        """Store why trainings are started again.

        Raises:
            StoreError: it cannot be written.
        """
        text, now = visible(error)[:MOST_CHARACTERS], time.time()
        with self._writing(), self._transaction():
            rows = [(number, now, text) for number in numbers]
            self._db.executemany("insert into attempt values (?,?,?)", rows)

    def attempts(self) -> list[tuple[int, str]]:
        """Return number and error of each attempt that was lost, in order."""
        return list(self._db.execute("select number, error from attempt order by rowid"))

    def prefix(self, most: int | None = None) -> Prefix:
        """Return what has ended before the first training that has not, ``most`` at most."""
        return prefix_of(self._finished, self._canaries, most)

    def close(self) -> None:
        """Close the store, for another driver."""
        self._db.close()

    def _written(self, row: Row) -> tuple[object, ...]:
        """Return the values of a row, after its array is on the disk."""
        training, name, score = row.training, None, None
        if row.scores is not None and self._canaries > 1:
            name = f"{training.number:07d}.npz"
            with replacing(self.folder / ARRAYS / name) as file:
                np.savez(file, scores=np.array(row.scores))
                file.flush()
                os.fsync(file.fileno())
        elif row.scores is not None:
            score = row.scores[0]
        state = "done" if row.scores is not None else "failed"
        error = visible(row.error)[:MOST_CHARACTERS] or None
        coins = "".join(map(str, training.coins))
        times = (row.seconds, error, time.time())
        return (training.number, coins, training.seed, state, row.attempts, score, name, *times)

    def _keep(self, key: str, value: str) -> None:
        with self._writing():
            self._db.execute("insert or ignore into audit values (?, ?)", (key, value))

    def _refuse_another(self, identity: Mapping[str, str]) -> None:
        kept = dict(self._db.execute("select key, value from audit"))
        if kept["schema"] != SCHEMA_VERSION:
            raise StoreError(
                f"{self.folder} has layout {shown(kept['schema'])}, this release reads "
                f"{SCHEMA_VERSION}; finish the audit with the release that began it, or give "
                "store= a new folder."
            )
        other = [part for part, digest in identity.items() if kept[f"identity.{part}"] != digest]
        if other:
            raise StoreError(
                f"{self.folder} holds trainings with another {', another '.join(other)}; give "
                "store= a new folder, or the arguments with which the store was begun."
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite itself may have rolled back
                self._db.execute("rollback")
            raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Convert errors of SQLite and of the file system to one sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreError(
                    f"{self.folder} is in use by another audit; wait for its end, or give store= "
                    "another folder."
                ) from error
            raise self._unusable(error) from error
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> StoreError:
        reason = reason_of(error)
        advice = "free disk space and" if "full" in reason or "space" in reason else "fix that and"
        return StoreError(
            f"the store {self.folder} cannot be written ({reason}); {advice} make the same call "
            f"again, which continues after the {len(self._finished):,} trainings that are stored."
        )


def rows_in(db: sqlite3.Connection, folder: Path) -> Iterator[Row]:
    """Yield the rows of a database, with the arrays in the folder of its store.

    Raises:
        StoreError: an array cannot be read.
    """
    columns = "number, coins, seed, state, attempts, score, arrays, seconds, error"
    for number, coins, seed, state, attempts, score, arrays, seconds, error in db.execute(
        f"select {columns} from training"
    ):
        training = PlannedTraining(number, tuple(map(int, coins)), seed)
        scores = None
        if state == "done":
            scores = (score,) if arrays is None else _array(folder / ARRAYS / Path(arrays).name)
        yield Row(training, scores, seconds, error or "", attempts)


def _array(path: Path) -> tuple[float, ...]:
    try:
        with open_npz(path) as archive:
            return tuple(archive.numbers("scores", "f", 1).tolist())
    except ValueError as error:
        raise StoreError(
            f"{path} cannot be read ({error}); restore the file, or start with a new store."
        ) from error


def prefix_of(finished: Mapping[int, Row], canaries: int, most: int | None = None) -> Prefix:
    """Return the rows before the first training that has not ended, ``most`` at most."""
    rows: list[Row] = []
    while len(rows) != most and (row := finished.get(len(rows))) is not None:
        rows.append(row)
    missing = (math.nan,) * canaries
    shape = (len(rows), canaries) if canaries > 1 else (len(rows),)
    scores = np.array([row.scores or missing for row in rows], dtype=np.float64)
    coins = np.array([row.training.coins for row in rows], dtype=np.bool_)
    failed = np.array([row.scores is None for row in rows], dtype=np.bool_)
    return Prefix(scores.reshape(shape), coins.reshape(shape), failed)


# --- What a store holds while an audit may be writing it: counts, times and evidence.

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


def duration(seconds: float) -> str:
    """Return a time in s, min or h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
