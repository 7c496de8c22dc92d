"""The record of an audit: one fixed-size binary entry a step, appended, readable after a crash.

`observations.bin` is a line of JSON (what the columns mean) followed by the entries. A process
that is killed leaves every entry up to the last flush; a half-written last one is left out on
reading. All numbers in it are functions of the noisy gradient and of the audit's own coins: it
reveals what the privatized gradients reveal on the observed coordinates, and no more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.files.bounded import open_regular
from lightning_audit.files.json_reader import as_type, read_json
from lightning_audit.files.replacing import reason_of, replacing
from lightning_audit.record.report_directory import (
    RECORD_NAME,
    archive_name,
    record_name,
    set_aside,
)

_log = logging.getLogger(__name__)

_FORMAT = "lightning-audit observations"
#: Raised when a reader of the old layout would misread the new one.
_VERSION = 1
#: Steps after which the entries are handed to the operating system.
FLUSH_EVERY = 1000

#: Bytes of a record's first line, and lags in it, that are read: more than any model needs.
_LONGEST_HEADER = 2**24
_MOST_LAGS = 10**6

#: Values of the column `canaries`; EARLIER: drawn to enter an earlier part of a split batch
#: than the last.
NOT_PLANNED, INJECTED, DROPPED, EARLIER = 0, 1, 2, 3
#: Those of steps whose coins count.
ENTERED = (INJECTED, EARLIER)


@dataclass(frozen=True)
class RecordHeader:
    """What the entries of a record mean.

    Args:
        canaries: label of each canary, ``[k]``.
        tensors: name of each tensor, ``[L]``.
        witnesses: witness coordinates read in each tensor, ``[L]``.
        lags: number of lags at which re-used noise is looked for.
        signal: largest shift that correct clipping shows: 1, or more where low precision rounds.
        coin_probability: known probability with which a canary is in, the same in every step.
        game: what a step's epsilon is of, "step" or "subsampled"; see `InputCanary`.
        noise_coefficients: of noise that is correlated over steps; the entries are of its draws.
            None for independent noise.
        planned_steps: with canaries, of the whole training when it began; None if unknown. Bets
            stake most on its end. Another number is no other record: training may go on longer.
    """

    canaries: tuple[str, ...]
    tensors: tuple[str, ...]
    witnesses: tuple[int, ...]
    lags: int
    signal: float = 1.0
    coin_probability: float = 0.5
    game: Literal["step", "subsampled"] = "step"
    noise_coefficients: tuple[float, ...] | None = None
    planned_steps: int | None = dataclasses.field(default=None, compare=False)

    @property
    def canary_kinds(self) -> tuple[str, ...]:
        """Class of each canary, which its label begins with, ``[k]``."""
        return tuple(label.partition("(")[0].strip() for label in self.canaries)

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Layout of one entry; sums of squares are of centred residuals in units of sigma."""
        k, tensors = len(self.canaries), len(self.tensors)
        return np.dtype(
            [
                ("step", "<i8"),
                ("epoch", "<i4"),
                ("canaries", "u1"),  # NOT_PLANNED, INJECTED, DROPPED or EARLIER
                ("replaced", "u1"),  # the update used another gradient than the one read
                ("noise_multiplier", "<f8"),
                ("max_grad_norm", "<f8"),
                ("scale", "<f8"),
                ("sample_rate", "<f8"),  # NaN if unknown
                ("coins", "u1", (k,)),
                ("readings", "<f8", (k,)),  # <u, g> * scale / max_grad_norm, plus the coin
                ("tensor_squares", "<f8", (tensors,)),
                ("lag_count", "<f8", (self.lags,)),
                ("lag_squares", "<f8", (self.lags,)),
                ("epoch_count", "<f8", (2,)),  # same place in the previous, the first epoch
                ("epoch_squares", "<f8", (2,)),
                ("broadcast_count", "<f8"),
                ("broadcast_squares", "<f8"),
                ("pair_count", "<f8"),
                ("pair_squares", "<f8"),
            ]
        )


class ObservationStore:
    """Appends entries to ``directory/observations.bin``, for further optimizers `record_name`.

    Files of an earlier run in the directory are moved to ``previous-1``, ``previous-2``...: no
    record is overwritten, and a gate never reads the report of another run.

    What cannot be written once the record is open raises nothing: the record ends there, and
    `trouble` says why.

    Args:
        directory: where the record lies; made if absent.
        header: what the entries mean.
        run: name of the run, by which it is known when it goes on after a stop.
        number: of the optimizer, from 1. The first one's record is opened first: it moves all
            files of earlier runs, the others their own.

    Raises:
        OSError: the directory cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        header: RecordHeader,
        run: str = "",
        number: int = 1,
    ) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        names = (record_name(number), archive_name(number))
        set_aside(self.directory, only=None if number == 1 else names)
        about = {"format": _FORMAT, "version": _VERSION, "run": run}
        line = json.dumps({**about, **dataclasses.asdict(header)}).encode()
        # Made anew, so that no link that lies there is written through.
        file = open(self.directory / record_name(number), "xb")  # noqa: SIM115  # kept
        self._start_at(file, header, number)
        self._try(lambda: file.write(line + b"\n"))
        self._try(file.flush)

    def _start_at(
        self, file: BinaryIO, header: RecordHeader, number: int, entries: int = 0
    ) -> None:
        self._file = file
        self.header = header
        self.number = number
        self.entries = entries
        #: What could not be written, and why; empty while everything could.
        self.trouble = ""
        self._pending = 0

    @property
    def path(self) -> Path:
        """Where the record lies."""
        return self.directory / record_name(self.number)

    @property
    def _archive_path(self) -> Path:
        return self.directory / archive_name(self.number)

    @classmethod
    def resume(
        cls,
        directory: str | os.PathLike[str],
        header: RecordHeader,
        run: str,
        entries: int,
        number: int = 1,
    ) -> ObservationStore | None:
        """Go on with the record of a run that stopped, cut to the entries that are known.

        ``entries`` are kept; later ones are of steps that were undone.

        Returns:
            The record, open for the next entry; None where the directory has no record of this run
            that is as long, and that can be written.
        """
        store = cls.__new__(cls)
        store.directory = Path(directory)
        path = store.directory / record_name(number)
        try:
            found, whole = _read_header(path)
            length = len(read_observations(path)[1])
            if found.header != header or found.run != run or length < entries or path.is_symlink():
                return None
            file = open(path, "r+b")  # noqa: SIM115  # kept
        except (OSError, ValueError):
            return None
        store._start_at(file, header, number, entries)
        store._try(lambda: file.truncate(whole + entries * header.dtype.itemsize))
        store._try(lambda: file.seek(0, os.SEEK_END))
        return store

    def append(self, entry: NDArray[np.void]) -> None:
        """Add one entry of the header's dtype."""
        self._try(lambda: self._file.write(entry.tobytes()))
        # Counted where it was lost, too: a run that goes on then knows that the record is short.
        self.entries += 1
        self._pending += 1
        if self._pending >= FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Hand all entries to the operating system: they outlive this process from then on."""
        if not self._file.closed:
            self._try(self._file.flush)
            self._try(self._see_whether_it_is_there)
        self._pending = 0

    def close(self, *, archive: bool = True) -> None:
        """Close the record; with ``archive``, write it as .npz too, column by column."""
        if self._file.closed:
            return
        self.flush()
        if archive:
            self._try(self._archive, f"{self._archive_path} could not be written")
        with contextlib.suppress(OSError):
            self._file.close()

    def _archive(self) -> None:
        _, entries = read_observations(self.path)
        columns: dict[str, Any] = {key: entries[key] for key in entries.dtype.names or ()}
        with replacing(self._archive_path) as file:
            np.savez(file, header=json.dumps(dataclasses.asdict(self.header)), **columns)

    def _see_whether_it_is_there(self) -> None:
        """A file that was removed or replaced can still be written, and nobody will read it."""
        try:
            same = os.path.samestat(os.lstat(self.path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            same = False
        if not same:
            raise OSError("it was removed, or another file was put in its place")

    def _try(self, write: Callable[[], object], what: str = "") -> None:
        """Write, unless that failed before."""
        if self.trouble:
            return
        try:
            write()
        except (OSError, ValueError) as error:
            what = what or f"the record {self.path} ends before entry {self.entries}"
            self.trouble = f"{what}: {reason_of(error)}"
            _log.warning("privacy audit: %s; the training goes on", self.trouble)
            # What waits to be written would be tried again, and leave a gap.
            with contextlib.suppress(OSError):
                self._file.close()


def read_observations(path: str | os.PathLike[str]) -> tuple[RecordHeader, NDArray[np.void]]:
    """Read a record, also of a run that was killed or is still going on.

    Args:
        path: an ``observations.bin``.

    Returns:
        The header and the whole entries, ``[steps]``.

    Raises:
        OSError: the file is absent or may not be read.
        ValueError: the file is no record, or was written by a newer version.
    """
    found, start = _read_header(path)
    header = found.header
    # A killed process may have left part of an entry.
    whole = (os.path.getsize(path) - start) // header.dtype.itemsize
    if not whole:
        return header, np.zeros(0, dtype=header.dtype)
    # Not read into memory: the record of a million steps takes a gigabyte.
    return header, np.memmap(path, header.dtype, mode="r", offset=start, shape=(whole,))


def run_of(path: str | os.PathLike[str]) -> str | None:
    """Name of the run that wrote a record; None where there is no record."""
    try:
        return _read_header(path)[0].run
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class _FirstLine:
    header: RecordHeader
    run: str


def _read_header(path: str | os.PathLike[str]) -> tuple[_FirstLine, int]:
    """The first line of a record, and where the entries start."""
    try:
        with open_regular(path) as file:
            line = file.readline(_LONGEST_HEADER)
        fields = read_json(line)
        if not isinstance(fields, dict) or fields.pop("format", None) != _FORMAT:
            raise ValueError("it has another format")
        version = _validate.positive_int("version", fields.pop("version", None))
        if not line.endswith(b"\n"):
            raise ValueError("its first line is cut short")
        if version <= _VERSION:
            run = as_type(str, fields.get("run"), "run")
            header = as_type(RecordHeader, fields)
            if not 0 <= header.lags <= _MOST_LAGS:
                raise ValueError(f"lags={header.lags} must be in [0, {_MOST_LAGS}]")
            found = _FirstLine(header, run)
    except ValueError as error:
        raise ValueError(
            f"path={os.fspath(path)!r} is no record of lightning-audit ({error}); name the "
            f"{RECORD_NAME} of a report directory."
        ) from error
    if version > _VERSION:
        raise ValueError(
            f"path={os.fspath(path)!r} has version {version}, this lightning-audit reads up to "
            f"{_VERSION}; upgrade lightning-audit to read it."
        )
    return found, len(line)
