"""The record of an audit: one fixed-size binary entry a step, appended, readable after a crash.

`observations.bin` is a line of JSON (what the columns mean) followed by the entries. A process
that is killed leaves every entry up to the last flush; a half-written last one is left out on
reading. All numbers in it are functions of the noisy gradient and of the audit's own coins: it
reveals what the privatized gradients reveal on the observed coordinates, and no more.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD_NAME = "observations.bin"
ARCHIVE_NAME = "observations.npz"
REPORT_NAME = "report.json"

_FORMAT = "lightning-audit observations"
_VERSION = 1
#: Steps after which the entries are handed to the operating system.
FLUSH_EVERY = 1000

#: Values of the column `canaries`.
NOT_PLANNED, INJECTED, DROPPED = 0, 1, 2


@dataclass(frozen=True)
class RecordHeader:
    """What the entries of a record mean.

    Args:
        canaries: label of each canary, ``[k]``.
        tensors: name of each tensor, ``[L]``.
        witnesses: witness coordinates read in each tensor, ``[L]``.
        lags: number of lags at which re-used noise is looked for.
        signal: largest shift that correct clipping shows: 1, or more where low precision rounds.
    """

    canaries: tuple[str, ...]
    tensors: tuple[str, ...]
    witnesses: tuple[int, ...]
    lags: int
    signal: float = 1.0

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Layout of one entry; sums of squares are of centred residuals in units of sigma."""
        k, tensors = len(self.canaries), len(self.tensors)
        return np.dtype(
            [
                ("step", "<i8"),
                ("epoch", "<i4"),
                ("canaries", "u1"),  # NOT_PLANNED, INJECTED or DROPPED
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
    """Appends entries to ``directory/observations.bin``.

    Files of an earlier run in the directory are moved to ``previous-1``, ``previous-2``...: no
    record is overwritten, and a gate never reads the report of another run.

    Args:
        directory: where the record lies; made if absent.
        header: what the entries mean.

    Raises:
        OSError: the directory cannot be written.
    """

    def __init__(self, directory: str | os.PathLike[str], header: RecordHeader) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        set_aside(self.directory)
        self.header = header
        line = json.dumps(
            {"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(header)}
        ).encode()
        self._file = open(self.directory / RECORD_NAME, "wb")  # noqa: SIM115  # lives with the run
        self._file.write(line + b"\n")
        self._file.flush()
        self._pending = 0

    def append(self, entry: NDArray[np.void]) -> None:
        """Add one entry of the header's dtype."""
        self._file.write(entry.tobytes())
        self._pending += 1
        if self._pending >= FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Hand all entries to the operating system: they outlive this process from then on."""
        self._file.flush()
        self._pending = 0

    def close(self, *, archive: bool = True) -> None:
        """Close the record; with ``archive``, write it as .npz too, column by column."""
        if self._file.closed:
            return
        self._file.close()
        if archive:
            _, entries = read_observations(self.directory / RECORD_NAME)
            partial = self.directory / f".{ARCHIVE_NAME}.partial.npz"
            columns: dict[str, Any] = {name: entries[name] for name in entries.dtype.names or ()}
            np.savez(partial, header=json.dumps(dataclasses.asdict(self.header)), **columns)
            os.replace(partial, self.directory / ARCHIVE_NAME)


def set_aside(directory: Path) -> Path | None:
    """Move an earlier run's files into a numbered folder beside them; None if there are none."""
    names = [n for n in (RECORD_NAME, ARCHIVE_NAME, REPORT_NAME) if (directory / n).exists()]
    if not names:
        return None
    number = 1
    while (directory / f"previous-{number}").exists():
        number += 1
    folder = directory / f"previous-{number}"
    folder.mkdir()
    for name in names:
        os.replace(directory / name, folder / name)
    return folder


def read_observations(path: str | os.PathLike[str]) -> tuple[RecordHeader, NDArray[np.void]]:
    """Read a record, also of a run that was killed or is still going on.

    Args:
        path: an ``observations.bin``.

    Returns:
        The header and the whole entries, ``[steps]``.

    Raises:
        ValueError: the file is no record, or was written by a newer version.
    """
    with open(path, "rb") as file:
        line = file.readline()
        start = file.tell()
    newline = line.endswith(b"\n")
    try:
        fields = json.loads(line)
        version = int(fields["version"])
        if fields["format"] != _FORMAT or not newline:
            raise ValueError("another format")
        if version <= _VERSION:
            header = RecordHeader(
                canaries=tuple(fields["canaries"]),
                tensors=tuple(fields["tensors"]),
                witnesses=tuple(fields["witnesses"]),
                lags=int(fields["lags"]),
                signal=float(fields["signal"]),
            )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"path={os.fspath(path)!r} is no record of lightning-audit; name the {RECORD_NAME} of "
            "a report directory."
        ) from error
    if version > _VERSION:
        raise ValueError(
            f"path={os.fspath(path)!r} has version {version}, this lightning-audit reads up to "
            f"{_VERSION}; upgrade lightning-audit to read it."
        )
    # A killed process may have left part of an entry.
    whole = (os.path.getsize(path) - start) // header.dtype.itemsize
    if not whole:
        return header, np.zeros(0, dtype=header.dtype)
    # Not read into memory: the record of a million steps takes a gigabyte.
    return header, np.memmap(path, header.dtype, mode="r", offset=start, shape=(whole,))
