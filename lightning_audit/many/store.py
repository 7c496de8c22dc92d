"""The plan of an audit over many trainings, and the store of what they gave: SQLite, a row each.

The driver alone writes. A row is written once and never changed, and nothing that can be computed
is stored: neither coins nor seeds, which the plan gives. Each row has a digest of itself, of its
training as planned, and of what the store is about. So a row that changed, or whose coins would be
others now, is refused; and the store counts its rows, so that one that is gone is missed.

**What a store holds while an audit may be writing it: counts, times and evidence.** The driver
locks the database for itself alone, so it writes these into `status.json` after transactions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sqlite3
import stat
import statistics
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_audit.files import as_type, open_regular, read_json, reason_of, replacing, visible
from lightning_audit.many.looks import GrowingLook
from lightning_audit.results.report_json import plain

# --- The plan of an audit over many trainings: each training's number, coins, seed and block.

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

    Each training has fair coins of its own, bits of SHAKE-256 of the seed and its number: the coins
    of earlier trainings say nothing about those of later ones, nor do the seeds of trainings, which
    another hash gives. Blocks are part of the plan, so that a resumed audit trains the same blocks.

    Args:
        seed: of the audit, >= 0.
        trainings: their number.
        block: number of trainings in a block.
        canaries: number of canaries, each with a coin of its own in each training.
        pairs: whether the coins of training 2i + 1 are the opposite ones of training 2i. So each
            record is in one model of each pair (Carlini et al., arXiv:2112.03570, section V).
    """

    seed: int
    trainings: int
    block: int
    canaries: int = 1
    pairs: bool = False

    def training(self, number: int) -> PlannedTraining:
        """Return the training with this number."""
        opposite = self.pairs and number % 2
        drawn = hashlib.shake_256(f"coins/{self.seed}/{number - opposite}".encode())
        octets = np.frombuffer(drawn.digest((self.canaries + 7) // 8), dtype=np.uint8)
        coins = np.unpackbits(octets, count=self.canaries) ^ opposite
        return PlannedTraining(number, tuple(coins.tolist()), self._seed(number))

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


# --- The store of an audit over many trainings: what each training gave, once.

#: File of the rows.
DATABASE = "trainings.sqlite"
#: Layout of the tables, of the identities and of the plan's coins.
LAYOUT = 4
#: Bytes of the smallest page of SQLite.
_LEAST_BYTES = 512
#: Most characters of an error that a row keeps.
MOST_CHARACTERS = 500

_SCHEMA = """
create table fact (key text primary key, value text not null, digest blob not null) without rowid;
create table training (number integer primary key, scores blob, seconds real, error text not null,
  ended real not null, digest blob not null);
create table loss (place integer primary key, number integer not null, error text not null,
  ended real not null, digest blob not null);
"""
#: What reading a damaged store may raise.
_DAMAGE = (
    *(sqlite3.Error, OSError, ArithmeticError, LookupError, TypeError, ValueError),
    *(RecursionError, MemoryError),
)


class StoreError(Exception):
    """A store that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Outcome:
    """What a training gave.

    Args:
        number: position in the plan.
        scores: one finite score a canary; None if the training failed.
        seconds: duration; None if unknown.
        error: why it failed; empty if it did not.
        fatal: whether each training would fail in the same way, so that the audit ends; not stored.
    """

    number: int
    scores: tuple[float, ...] | None
    seconds: float | None = None
    error: str = ""
    fatal: bool = False


class Prefix(NamedTuple):
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
    """The trainings of one audit that have ended, open for one driver.

    Args:
        folder: created if absent.
        plan: of this call. A store keeps the seed and the blocks with which it was begun.
        identity: what the trainings are: for each part ("train", "dataset", ...) its digest. A
            store has exactly the parts with which it was begun.

    Attributes:
        plan: this call's, with the seed and the blocks of the store.
        planned: number of trainings with which the store was begun.
        losses: how often an engine has lost each training, by number.

    Raises:
        StoreError: the store belongs to other trainings, another driver uses it, it is damaged, or
            it cannot be read or written.
    """

    def __init__(
        self, folder: str | os.PathLike[str], plan: Plan, identity: Mapping[str, str]
    ) -> None:
        self.plan, self.folder = plan, Path(folder)
        self._rows: dict[int, Outcome] = {}
        shape = plan.trainings, plan.canaries
        self._scores, self._coins = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        self._failed = np.zeros(plan.trainings, dtype=np.bool_)
        #: Number of trainings before the first one of the plan that has not ended.
        self.ready = 0
        self.losses: Counter[int] = Counter()
        self._claim: tuple[str, GrowingLook] | None = None
        self._opened, self._told = time.time(), -math.inf
        #: Trainings with a score, those that had been lost, and those that ended since it is open.
        self._done = self._again = self._ended = 0
        self._seconds = array("d")
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
        with _reading(self.folder):
            path = self.folder / DATABASE
            if path.exists():
                _refuse_no_database(path)
            self._db = sqlite3.connect(
                path, isolation_level=None, timeout=1.0, check_same_thread=False
            )
        try:
            with _reading(self.folder):
                # Exclusive before WAL: no shared memory, and a second driver is refused.
                self._db.execute("pragma locking_mode=exclusive")
                self._db.execute("pragma journal_mode=wal")
                self._db.execute("pragma synchronous=full")
                self._db.execute("begin exclusive")
                self._db.execute("commit")
            self._begin(plan, dict(identity))
        except BaseException:
            self._db.close()
            raise

    def _begin(self, plan: Plan, identity: dict[str, str]) -> None:
        """Continue what the database holds; begin a store if no training has ended in it."""
        with _reading(self.folder):
            begun = self._db.execute("select 1 from sqlite_master limit 1").fetchone()
            kept = Contents(self._db, self.folder) if begun else None
        if kept is None or not kept.count[0]:  # it may become the store of another training
            with self._writing(), self._transaction():
                for table in () if begun else _SCHEMA.strip().split(";\n"):
                    self._db.execute(table)
                self._db.execute(f"pragma user_version={LAYOUT}")
                self._db.execute("delete from loss")
                self._facts({"plan": asdict(plan), "identity": identity, "count": [0, 0]})
            kept = Contents(self._db, self.folder)
        parts = {**kept.identity, **identity}
        if other := [part for part in parts if kept.identity.get(part) != identity.get(part)]:
            devices = [facts.get("device", "cpu") for facts in (kept.identity, identity)]
            both = f" (there {devices[0]}; here {devices[1]})" if "device" in other else ""
            raise StoreError(
                f"{self.folder} holds trainings with another {', another '.join(other)}{both}; "
                "give store= a new folder, or the arguments with which the store was begun."
            )
        if (plan.canaries, plan.pairs) != (kept.plan.canaries, kept.plan.pairs):
            raise StoreError(
                f"{self.folder} holds trainings of {kept.plan.canaries:,} canaries; give store= a "
                "new folder."
            )
        self._head = kept.head
        self.planned, self.plan = kept.plan.trainings, replace(kept.plan, trainings=plan.trainings)
        with _reading(self.folder):
            self.losses = kept.losses()
            self._remember(kept.outcomes())
            self._last_error = kept.last_error()
        self._tell(now=True)

    @property
    def finished(self) -> int:
        """Number of trainings that have ended."""
        return len(self._rows)

    def has(self, number: int) -> bool:
        """Return whether the training of this number has ended."""
        return number in self._rows

    def rows(self) -> list[Outcome]:
        """Return what all trainings gave, in the order of the plan."""
        return [self._rows[number] for number in sorted(self._rows)]

    def prefix(self) -> Prefix:
        """Return what has ended before the first training of the plan that has not."""
        each = 0 if self.plan.canaries == 1 else slice(None)
        ended = slice(self.ready)
        return Prefix(self._scores[ended, each], self._coins[ended, each], self._failed[ended])

    def _remember(self, outcomes: Iterable[Outcome]) -> None:
        """Append trainings that have ended, and count them."""
        for one in outcomes:
            self._rows[one.number] = one
            self._done += one.scores is not None
            self._again += one.number in self.losses
            if one.seconds is not None:
                self._seconds.append(one.seconds)
        while self.ready < self.plan.trainings and self.has(self.ready):
            number, scores = self.ready, self._rows[self.ready].scores
            self._coins[number] = self.plan.training(number).coins
            self._failed[number] = scores is None
            self._scores[number] = math.nan if scores is None else scores
            self.ready += 1

    def say(self, claim: str, looks: GrowingLook) -> None:
        """State what is claimed, and looks of that claim, which `lightning-audit status` prints."""
        self._claim = claim, looks
        self._tell(now=True)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Store trainings that have ended, in one transaction.

        A training that is already stored does not change.

        Raises:
            StoreError: they cannot be written; none of them is stored then.
        """
        new = {one.number: one for one in outcomes if not self.has(one.number)}
        rows = [self._written(one) for one in new.values()]
        with self._writing(), self._transaction():
            self._db.executemany("insert into training values (?,?,?,?,?,?)", rows)
            self._facts({"count": [self.finished + len(new), self.losses.total()]})
        self._remember(new.values())
        self._ended += len(new)
        self._tell(error=next((one.error for one in reversed(new.values()) if one.error), ""))

    def lost(self, number: int, error: str) -> None:
        """Store why a training is started again.

        Raises:
            StoreError: it cannot be written.
        """
        place, values = self.losses.total(), (number, visible(error)[:MOST_CHARACTERS], time.time())
        with self._writing(), self._transaction():
            digest = _digest(self._head, place, *values)
            self._db.execute("insert into loss values (?,?,?,?,?)", (place, *values, digest))
            self._facts({"count": [self.finished, place + 1]})
        self.losses[number] += 1
        self._tell(error=error)

    def close(self) -> None:
        """Close the store, for another driver."""
        self._tell(now=True)
        self._db.close()

    def _tell(self, *, error: str = "", now: bool = False) -> None:
        """Write `status.json`, unless it is less than a second old."""
        self._last_error = error or self._last_error
        if not now and time.monotonic() < self._told + _BETWEEN_STATUSES:
            return
        self._told = time.monotonic()
        between = (time.time() - self._opened) / self._ended if self._ended else None
        left = max(0, self.plan.trainings - self.finished)
        status = StoreStatus(
            planned=self.plan.trainings,
            done=self._done,
            failed=self.finished - self._done,
            started_again=self._again,
            in_use=None,
            training_seconds=statistics.median(self._seconds) if self._seconds else None,
            seconds_between=between,
            seconds_left=None if between is None else between * left,
            evidence=self._evidence(),
            last_error=_type_of(self._last_error),
        )
        # The trainings are stored; on Windows the file cannot be replaced while it is read.
        with contextlib.suppress(OSError), replacing(self.folder / STATUS) as file:
            file.write(json.dumps(plain(asdict(status)), allow_nan=False).encode())

    def _evidence(self) -> Evidence | None:
        """Return the evidence of the prefix."""
        if self._claim is None or not self.ready:
            return None
        claim, looks = self._claim
        seen = looks.at(*self.prefix())
        return Evidence(
            claim=claim,
            errors=seen.errors,
            guesses=seen.guesses,
            log10_e=seen.log_e / math.log(10.0),
            log10_refuting=looks.goal / math.log(10.0),
        )

    def _written(self, one: Outcome) -> tuple[object, ...]:
        scores = None if one.scores is None else np.array(one.scores, dtype="<f8").tobytes()
        values = (scores, one.seconds, visible(one.error)[:MOST_CHARACTERS], time.time())
        digest = _digest(self._head, self.plan.training(one.number), *values)
        return (one.number, *values, digest)

    def _facts(self, facts: Mapping[str, object]) -> None:
        for key, value in facts.items():
            text = json.dumps(value)
            self._db.execute(
                "insert or replace into fact values (?,?,?)", (key, text, _digest(key, text))
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
        except (sqlite3.Error, OSError) as error:
            reason = reason_of(error)
            full = "full" in reason or "space" in reason
            raise StoreError(
                f"the store {self.folder} cannot be written ({reason}); "
                f"{'free disk space' if full else 'fix that'} and make the same call again, which "
                f"continues after the {self.finished:,} trainings that are stored."
            ) from error


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Convert any exception of a damaged store to one sentence."""
    try:
        yield
    except _DAMAGE as error:
        if "database is locked" in str(error):
            raise StoreError(
                f"{folder} is in use by another audit; wait for its end, or give store= another "
                "folder."
            ) from error
        raise StoreError(
            f"the store {folder} cannot be read ({visible(reason_of(error))}); restore {DATABASE} "
            "from a copy, or give store= a new folder."
        ) from error


def _digest(*values: object) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).digest()


class Contents:
    """What a database holds, each value compared with its digest as it is read.

    Args:
        db: the database.
        folder: of the store, for errors.

    Raises:
        StoreError: the store has another layout.
        Exception: one of those that a damaged store may raise.
    """

    def __init__(self, db: sqlite3.Connection, folder: Path) -> None:
        db.execute("pragma trusted_schema=off")
        db.execute("pragma cell_size_check=on")
        self._db = db
        if db.execute("pragma user_version").fetchone() != (LAYOUT,):
            raise StoreError(
                f"{folder} has another layout than this release reads, {LAYOUT}; finish the audit "
                "with the release that began it, or give store= a new folder."
            )
        with contextlib.closing(sqlite3.connect(":memory:")) as own:
            own.executescript(_SCHEMA)
            if _schema(db) != _schema(own):
                raise ValueError("it has other tables than a store")
        if (found := db.execute("pragma integrity_check(1)").fetchone()) != ("ok",):
            raise ValueError(str(found[0]).splitlines()[-1])
        facts = {}
        for key, text, digest in db.execute("select key, value, digest from fact"):
            _same(digest, _digest(key, text), f"its {key}")
            facts[key] = json.loads(text)
        self.plan, self.identity = Plan(**facts["plan"]), dict(facts["identity"])
        self.count = facts["count"]
        self.head = _digest(facts["plan"], facts["identity"])

    def outcomes(self) -> Iterator[Outcome]:
        """Yield what each training gave, in order."""
        for number, scores, seconds, error, ended, digest in self._counted("training", 0):
            planned = self.plan.training(number)
            wanted = _digest(self.head, planned, scores, seconds, error, ended)
            _same(digest, wanted, f"training {number}")
            found = None if scores is None else tuple(np.frombuffer(scores, "<f8").tolist())
            yield Outcome(number, found, seconds, error)

    def losses(self) -> Counter[int]:
        """Return how often each training was lost."""
        found: Counter[int] = Counter()
        for place, number, error, ended, digest in self._counted("loss", 1):
            _same(digest, _digest(self.head, place, number, error, ended), f"loss {place}")
            found[number] += 1
        return found

    def last_error(self) -> str:
        """Return the text of the last error; empty if there was none."""
        found = self._db.execute(
            "select error from (select error, ended from training where error != '' "
            "union all select error, ended from loss) order by ended desc limit 1"
        ).fetchone()
        return str(found[0]) if found else ""

    def _counted(self, table: str, place: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, as many as the store has counted."""
        count = 0
        for row in self._db.execute(f"select * from {table} order by 1"):
            count += 1
            yield row
        if count != self.count[place]:
            raise ValueError(f"it has {count} rows of {table}, and counted {self.count[place]}")


def _schema(db: sqlite3.Connection) -> list[tuple[str, ...]]:
    return db.execute("select type, name, tbl_name, sql from sqlite_master order by 2").fetchall()


def _same(found: object, wanted: bytes, what: str) -> None:
    if found != wanted:
        raise ValueError(f"{what} is not as it was written")


def _refuse_no_database(path: Path) -> None:
    """Refuse what is no file, which SQLite might wait for, or so short that it would be a new one.

    It is not opened: to close it again would end this process's locks.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{DATABASE} is no file")
    if found.st_size < _LEAST_BYTES:
        raise ValueError(f"{DATABASE} has only {found.st_size} bytes")


# --- What a store holds while an audit may be writing it: counts, times and evidence.

#: File of the status, and seconds between two that are written.
STATUS, _BETWEEN_STATUSES = "status.json", 1.0
#: Bytes of the database that SQLite locks (https://sqlite.org/lockingv3.html).
_LOCKED_FIRST, _LOCKED = 0x40000002, 510
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
        planned: trainings that the latest call asks for.
        done: trainings that gave a score.
        failed: trainings that failed, or that engines lost twice.
        started_again: ended trainings that an engine had lost.
        in_use: whether an audit uses the store; None if the system does not say.
        training_seconds: median duration of a training in its process; None if none is known.
        seconds_between: mean time between two ends since the latest call, over all its workers.
        seconds_left: time to the planned end at that pace.
        evidence: None before the first training, or if no call said what is claimed.
        last_error: type of the last error, without its text; empty if there was none.
    """

    planned: int
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
    """Read the status of the store in a folder. Call it from another process than the audit's.

    On POSIX, a process that closes a file loses its own locks on it: called in the process of a
    running audit, this would unlock its store.

    Raises:
        StoreError: there is no store, or its status is absent or damaged.
    """
    if not os.path.lexists(folder / DATABASE):
        raise StoreError(f"{folder} holds no store: there is no {DATABASE} in it.")
    try:
        stated = read_json(folder / STATUS)
        status: StoreStatus = as_type(StoreStatus, stated)
        return replace(status, in_use=_in_use(folder))
    except FileNotFoundError:
        raise StoreError(
            f"{folder} has no {STATUS}, which releases before did not write; the same command or "
            "call writes it, or says why it cannot continue the store."
        ) from None
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the status in {folder} cannot be read ({visible(reason_of(error))}); the same "
            "command or call writes it again."
        ) from error


def _type_of(error: str) -> str:
    """Return the type of an error: its text may quote data."""
    kind = _ERROR_TYPE.match(error)
    return kind.group() if kind else "unknown" if error else ""


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
