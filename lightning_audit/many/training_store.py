"""The store of an audit over many trainings: one row a training, in SQLite, and arrays in files.

The driver alone writes. A row is written once and never changed; it is there only if its array is.
Nothing that can be computed from the rows is stored.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightning_audit._validate import shown
from lightning_audit.files.npz import open_npz
from lightning_audit.files.printable import visible
from lightning_audit.files.replacing import reason_of, remove_partials, replacing
from lightning_audit.many.game.plan import PlannedTraining

#: File of the rows, and folder of the arrays.
DATABASE, ARRAYS = "trainings.sqlite", "arrays"
#: Layout of the tables.
SCHEMA_VERSION = "1"
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
                f"{SCHEMA_VERSION}; start with a new store."
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
