"""The record of an audit: one fixed-size binary entry per step, appended, readable after a crash.

`observations.bin` is a line of JSON (the meaning of the columns) followed by the entries. A process
that is killed leaves every entry up to the last flush; readers skip an incomplete last one. All
numbers are functions of the noisy gradient and of the audit's own coins: by post-processing, the
record reveals no more than the privatized gradients at the observed coordinates.

**Converts this package's objects to plain data and back, for checkpoints.** A snapshot consists of
dicts, lists, strings, numbers and arrays only: reading it runs no code but this package's. It
contains every attribute, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.files import as_type, open_regular, read_json, reason_of, replacing
from lightning_audit.layout import FloatArray
from lightning_audit.record.report_directory import (
    RECORD_NAME,
    archive_name,
    record_name,
    set_aside,
)

# --- The record of an audit: one fixed-size binary entry per step, readable after a crash.

_log = logging.getLogger(__name__)

_FORMAT = "lightning-audit observations"
#: Incremented when readers of the old layout would misread the new one.
_VERSION = 1
#: Number of steps between flushes to the operating system.
FLUSH_EVERY = 1000

#: Largest first line of a record in bytes, and largest number of lags; no model needs more.
_LONGEST_HEADER = 2**24
_MOST_LAGS = 10**6

#: Values of the column `canaries`; EARLIER: drawn to enter a part of a split batch before the last.
NOT_PLANNED, INJECTED, DROPPED, EARLIER = 0, 1, 2, 3
#: Values for steps whose coins count.
ENTERED = (INJECTED, EARLIER)


@dataclass(frozen=True)
class RecordHeader:
    """Meaning of the entries of a record.

    Args:
        canaries: label of each canary, ``[k]``.
        tensors: name of each tensor, ``[L]``.
        witnesses: number of probe coordinates in each tensor, ``[L]``.
        lags: number of lags at which reused noise is tested.
        signal: largest shift that a correctly clipped canary shows: 1, or more if low precision
            rounds.
        coin_probability: known probability with which a canary is in, the same in every step.
        game: mechanism to which a step's epsilon refers, "step" or "subsampled"; see `InputCanary`.
        noise_coefficients: coefficients of noise that is correlated over steps; the entries then
            describe its draws. None for independent noise.
        planned_steps: number of steps with canaries of the whole training, when it began; None if
            unknown. Bets stake most on its end. Not compared between headers: a training may
            continue for longer.
        planned_end: number of steps of the whole training, with and without canaries, when it
            began; None if unknown. One bound looks only there. Not compared, either.
    """

    canaries: tuple[str, ...]
    tensors: tuple[str, ...]
    witnesses: tuple[int, ...]
    lags: int
    signal: float = 1.0
    coin_probability: float = 0.5
    game: Literal["step", "subsampled"] = "step"
    noise_coefficients: tuple[float, ...] | None = None
    planned_steps: int | None = field(default=None, compare=False)
    planned_end: int | None = field(default=None, compare=False)

    @property
    def canary_kinds(self) -> tuple[str, ...]:
        """Class name of each canary, from the start of its label, ``[k]``."""
        return tuple(label.partition("(")[0].strip() for label in self.canaries)

    def tensor_of(self, label: str) -> str:
        """Return what a canary's label has in brackets: its tensor, if it lies in one."""
        return label.partition("(")[2].removesuffix(")").removesuffix(", moving")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Layout of one entry: the columns among the fields of `Observation`."""
        return _layout(len(self.canaries), len(self.tensors), self.lags)


_NOTHING: FloatArray = np.zeros(0)


def _nothing() -> FloatArray:
    return _NOTHING


def _column(kind: str = "<f8", size: str = "") -> dict[str, tuple[str, str]]:
    """Return the metadata of a field that is a column of the record.

    Args:
        kind: numpy's name of the type.
        size: "k", "L", "lags" or "2" for an array of that length; empty for a number.
    """
    return {"column": (kind, size)}


@dataclass(frozen=True, eq=False)
class Observation:
    """What one step of a private optimizer showed: all that checks, bounds and record are given.

    The first fields are the columns of the record, functions of released gradients and of the
    audit's coins. An observation of several steps (`of`) has no others, and the steps as the first
    axis of each column but those of the claim. The others stay in memory; those of the noise and of
    whole tensors are read between the noise and the update, canaries included.

    Args:
        step: number of the step, from 0.
        epoch: number of the epoch.
        canaries: NOT_PLANNED, INJECTED, DROPPED or EARLIER.
        replaced: whether a backward pass ran between the reading and the end of the update, so that
            the update used another gradient than the one that was read.
        noise_multiplier: claimed standard deviation of the noise, in units of the clipping norm.
        max_grad_norm: the claimed clipping norm.
        scale: the claimed divisor of the noisy sum.
        sample_rate: the sampling rate; NaN if unknown.
        coins: 1 for each canary that was in, ``[k]``.
        readings: inner products with the canaries' directions, in units of the signal, ``[k]``.
        tensor_squares: sums of squares of centered residuals in units of the noise, ``[L]``.
        lag_count: number of residuals that are compared with those of earlier steps, ``[lags]``.
        lag_squares: sums of squares of their differences, over the variance of these.
        epoch_count: the same for the same place in the previous and in the first epoch, ``[2]``.
        epoch_squares: as ``lag_squares``.
        broadcast_count: the same for entries of one tensor.
        broadcast_squares: as ``lag_squares``.
        pair_count: the same for the same entries of several tensors.
        pair_squares: as ``lag_squares``.
        values: entries of the noisy gradient without canaries, ``[n]``; NaN if a parameter had no
            gradient. If the gradient was replaced, the entries after the update.
        witnesses: readings at the probe coordinates, in units of the clipping norm, ``[w]``.
        dead: which entries were exactly zero when read, canaries included, ``[n]``; None if none.
        dead_witnesses: the same at the probe coordinates, ``[w]``; None if none of all was.
        dead_tensors: whether they are exactly the entries of some tensors, but not of all.
        live: share of each canary's squared norm on the other entries, ``[k]``.
        dead_canary: whether an inserted canary was read as exactly zero somewhere.
        unclear: whether an optimizer that is not torch's own changed the gradient without a
            backward pass, so that it is not known which gradient the update used.
        at_cut: whether it was read right after the noise was added, before the updating optimizer
            was called.
        behind: whether a backward pass after the noise changed the gradient that was read there;
            replays show whether it was one of private records.
        factor: factor by which the gradient was multiplied between the cut and the update; None if
            it was changed in another way, or not read at the cut.
        used: the gradient after the update, ``[n]``; None if its bits are those of ``values``.
        moves: changes of the weights; None if they were not read.
        raw: whether the gradient that was read is that of a backward pass, not written to since.
        along: release, gradient after the update, and minus the change of the weights, each along
            the canaries and in units of its own size, ``[k]``; the latter two None if they are
            those of the release, or were not read. None without canaries.
        followed: release and gradient after the update at the probe coordinates, ``[w]``; the
            latter None if it is the release. None if the release was not read at the cut.
        released: the gradient times its stated divisor at some coordinates, in units of the
            clipping norm, ``[m]``; None if no noise was read or is claimed.
        sums: the clipped sums that it is made of, ``[m]``; None if unknown.
        noise: their difference in units of the claimed noise, ``[m]``; None if it is not known to
            be the noise alone.
        divisors: numbers over the stated divisor by which the sum may have been divided instead.
        terms: samples in the whole sum, canaries included; None if unknown.
        sum_norm: norm of the whole sum; None if it was not computed.
        split: whether the sum was made in several parts.
        lack: the reason why ``sums`` is None, if it is known.
        entries: number of entries of each tensor, ``[L]``; None if whole tensors were not read.
        squares: sums of the squares of the gradient times its divisor, over the claimed variance of
            the noise, ``[L]``.
        noise_squares: the same for the gradient without the clipped sums, ``[L]``.
        block: the gradient without the clipped sums at the first and the last entries of each
            tensor, in units of the noise; None if it was not requested.
    """

    step: Any = field(default=0, metadata=_column("<i8"))
    epoch: int = field(default=0, metadata=_column("<i4"))
    canaries: Any = field(default=NOT_PLANNED, metadata=_column("u1"))
    replaced: Any = field(default=False, metadata=_column("u1"))
    noise_multiplier: float = field(default=0.0, metadata=_column())
    max_grad_norm: float = field(default=1.0, metadata=_column())
    scale: float = field(default=1.0, metadata=_column())
    sample_rate: float = field(default=math.nan, metadata=_column())
    coins: FloatArray = field(default_factory=_nothing, metadata=_column("u1", "k"))
    readings: FloatArray = field(default_factory=_nothing, metadata=_column(size="k"))
    tensor_squares: FloatArray = field(default_factory=_nothing, metadata=_column(size="L"))
    lag_count: FloatArray = field(default_factory=_nothing, metadata=_column(size="lags"))
    lag_squares: FloatArray = field(default_factory=_nothing, metadata=_column(size="lags"))
    epoch_count: FloatArray = field(default_factory=_nothing, metadata=_column(size="2"))
    epoch_squares: FloatArray = field(default_factory=_nothing, metadata=_column(size="2"))
    broadcast_count: float = field(default=0.0, metadata=_column())
    broadcast_squares: float = field(default=0.0, metadata=_column())
    pair_count: float = field(default=0.0, metadata=_column())
    pair_squares: float = field(default=0.0, metadata=_column())

    values: FloatArray = field(default_factory=_nothing)
    witnesses: FloatArray = field(default_factory=_nothing)
    dead: NDArray[np.bool_] | None = None
    dead_witnesses: NDArray[np.bool_] | None = None
    dead_tensors: bool = False
    live: FloatArray = field(default_factory=_nothing)
    dead_canary: bool = False
    unclear: bool = False
    at_cut: bool = False
    behind: bool = False
    factor: float | None = None
    used: FloatArray | None = None
    moves: Moves | None = None
    raw: bool = False
    along: tuple[FloatArray, FloatArray | None, FloatArray | None] | None = None
    followed: tuple[FloatArray, FloatArray | None] | None = None

    released: FloatArray | None = None
    sums: FloatArray | None = None
    noise: FloatArray | None = None
    divisors: tuple[float, ...] = ()
    terms: int | None = None
    sum_norm: float | None = None
    split: bool = False
    lack: str = ""
    entries: FloatArray | None = None
    squares: FloatArray | None = None
    noise_squares: FloatArray | None = None
    block: FloatArray | None = None

    def having(self, **values: Any) -> Observation:
        """Return a copy with other values; `dataclasses.replace` takes twenty times as long."""
        made = object.__new__(Observation)
        vars(made).update(vars(self), **values)
        return made

    @classmethod
    def of(cls, entries: Any) -> Observation:
        """Return the observation of steps of one claim, from entries of the header's dtype.

        Args:
            entries: an entry of a record, or several in order, ``[n]``.

        Returns:
            The claim, and the other columns with the steps as their first axis, ``[n, ...]``.
        """
        rows = np.atleast_1d(entries)
        kinds = {name: "<f8" if size else kind for name, (kind, size) in _COLUMNS.items()}
        values: dict[str, Any] = {name: rows[name].astype(kind) for name, kind in kinds.items()}
        return cls(**values | {name: values[name][0].item() for name in _CLAIM})

    @classmethod
    def blocks(cls, entries: Any, end: int | None = None) -> Iterator[Observation]:
        """Yield the steps of a record as observations of consecutive steps of one claim.

        Args:
            entries: the entries in order, ``[n]``.
            end: number of steps after which a block ends; None for no such number.
        """
        kinds = [*(entries[name] for name in _CLAIM), entries["canaries"] == EARLIER]
        kinds.append(entries["step"] >= (end or 0))
        known = np.nan_to_num(np.stack(kinds, axis=1, dtype=np.float64), nan=-1.0)
        changes = np.flatnonzero((known[1:] != known[:-1]).any(axis=1)) + 1
        cuts = np.union1d(changes, np.arange(_MOST, len(entries), _MOST))
        yield from map(cls.of, filter(len, np.split(entries, cuts)))

    def where(self, steps: Any) -> Observation:
        """Return some of the steps, a mask ``[n]``, of an observation of several."""
        if steps.all():
            return self
        chosen = {name: getattr(self, name)[steps] for name in _COLUMNS if name not in _CLAIM}
        return dataclasses.replace(self, **chosen)

    def entry(self, header: RecordHeader) -> Any:
        """Return the entry of each step in a record; columns without a value are zero."""
        entry = np.zeros(np.shape(self.step), dtype=header.dtype)
        for name, (_, size) in _COLUMNS.items():
            value = getattr(self, name)
            if not size or len(value):
                entry[name] = value
        return entry

    @property
    def noise_readings(self) -> FloatArray:
        """The noise if it is known without the data, else `scaled_release`, ``[m]``.

        Data make the squares stochastically larger, so tests for too little noise stay valid.
        """
        return self.scaled_release if self.noise is None else self.noise

    @property
    def scaled_release(self) -> FloatArray:
        """The release, data and noise together, in units of the claimed noise, ``[m]``."""
        assert self.released is not None
        return np.asarray(self.released / self.noise_multiplier)


@dataclass(frozen=True)
class Moves:
    """Entries of the weights and their changes around one update.

    Args:
        update: change from the reading of the gradient to the end of the update, ``[n]``.
        start: the weights when the gradient was read, ``[n]``.
        outside: change since the end of the previous update, ``[n]``; None if that was not read.
    """

    update: FloatArray
    start: FloatArray
    outside: FloatArray | None


#: Type and size of each column, by its name.
_COLUMNS: dict[str, tuple[str, str]] = {
    one.name: one.metadata["column"] for one in dataclasses.fields(Observation) if one.metadata
}
#: Columns of the claim, and the largest number of steps of one claim that are tested at once.
_CLAIM, _MOST = ("noise_multiplier", "max_grad_norm", "scale", "sample_rate"), 32


@functools.cache
def _layout(canaries: int, tensors: int, lags: int) -> np.dtype[Any]:
    sizes = {"k": (canaries,), "L": (tensors,), "lags": (lags,), "2": (2,), "": ()}
    return np.dtype([(name, kind, sizes[size]) for name, (kind, size) in _COLUMNS.items()])


class ObservationStore:
    """Writer of entries to ``directory/observations.bin``; for further optimizers `record_name`.

    Files of an earlier run in the directory are moved to ``previous-1``, ``previous-2``...: no
    record is overwritten, and a gate never reads the report of another run.

    A failure to write to the open record raises nothing: the record ends there, and `trouble`
    holds the reason.

    Args:
        directory: directory of the record; created if absent.
        header: meaning of the entries.
        run: name of the run, by which `resume` identifies it.
        number: number of the optimizer, from 1. The first one's record must be opened first: this
            moves all files of earlier runs; opening another moves only its own.

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
        # Mode "x", so that an existing link is not followed.
        self._file: BinaryIO = open(self.directory / record_name(number), "xb")  # noqa: SIM115
        self._start_at(header, number)
        self._try(lambda: self._file.write(line + b"\n"))
        self._try(self._file.flush)

    def _start_at(self, header: RecordHeader, number: int, entries: int = 0) -> None:
        self.header = header
        self.number = number
        self.entries = entries
        #: What could not be written, and why; empty if nothing failed.
        self.trouble = ""
        self._pending = 0

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a failure came before the file was opened
            self._file.close()

    @property
    def path(self) -> Path:
        """Path of the record."""
        return self.directory / record_name(self.number)

    @classmethod
    def resume(
        cls,
        directory: str | os.PathLike[str],
        header: RecordHeader,
        run: str,
        entries: int,
        number: int = 1,
    ) -> ObservationStore | None:
        """Reopen the record of a run that stopped, truncated to its first ``entries``.

        Later entries belong to steps that were undone.

        Returns:
            The record, open for the next entry; None if the directory has no writable record of
            this run with at least ``entries``.
        """
        store = cls.__new__(cls)
        store.directory = Path(directory)
        path = store.directory / record_name(number)
        try:
            found, wrote, whole = _read_header(path)
            length = len(read_observations(path)[1])
            if (found, wrote) != (header, run) or length < entries or path.is_symlink():
                return None
            store._file = file = open(path, "r+b")  # noqa: SIM115  # kept
        except (OSError, ValueError):
            return None
        store._start_at(header, number, entries)
        store._try(lambda: file.truncate(whole + entries * header.dtype.itemsize))
        store._try(lambda: file.seek(0, os.SEEK_END))
        return store

    def append(self, observation: Observation) -> None:
        """Add the entry of one step, or those of several."""
        steps = np.size(observation.step)
        self._try(lambda: self._file.write(observation.entry(self.header).tobytes()))
        # Lost entries are counted too, so that a resumed run detects that the record is too short.
        self.entries += steps
        self._pending += steps
        if self._pending >= FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Flush all entries to the operating system, so that they survive this process."""
        if not self._file.closed:
            self._try(self._file.flush)
            self._try(self._see_whether_it_is_there)
        self._pending = 0

    def close(self, *, archive: bool = True) -> None:
        """Close the record; with ``archive``, also write its columns as .npz."""
        if self._file.closed:
            return
        self.flush()
        if archive:
            path = self.directory / archive_name(self.number)
            self._try(lambda: self._archive(path), f"{path} could not be written")
        with contextlib.suppress(OSError):
            self._file.close()

    def _archive(self, path: Path) -> None:
        _, entries = read_observations(self.path)
        columns: dict[str, Any] = {key: entries[key] for key in entries.dtype.names or ()}
        with replacing(path) as file:
            np.savez(file, header=json.dumps(dataclasses.asdict(self.header)), **columns)

    def _see_whether_it_is_there(self) -> None:
        """Raise OSError if the file was removed or replaced: later writes would be lost."""
        try:
            same = os.path.samestat(os.lstat(self.path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            same = False
        if not same:
            raise OSError("it was removed or replaced by another file")

    def _try(self, write: Callable[[], object], what: str = "") -> None:
        """Write, unless an earlier write failed."""
        if self.trouble:
            return
        try:
            write()
        except (OSError, ValueError) as error:
            what = what or f"the record {self.path} ends before entry {self.entries}"
            self.trouble = f"{what}: {reason_of(error)}"
            _log.warning("privacy audit: %s; the training continues", self.trouble)
            # Close the file: buffered entries would be written later, after a gap.
            with contextlib.suppress(OSError):
                self._file.close()


def read_observations(path: str | os.PathLike[str]) -> tuple[RecordHeader, NDArray[Any]]:
    """Read a record, also of a run that was killed or is still in progress.

    Args:
        path: an ``observations.bin``.

    Returns:
        The header and the complete entries, ``[steps]``.

    Raises:
        OSError: the file is absent or may not be read.
        ValueError: the file is no record, or was written by a newer version.
    """
    header, _, start = _read_header(path)
    # A killed process may have left an incomplete entry.
    whole = (os.path.getsize(path) - start) // header.dtype.itemsize
    if not whole:
        return header, np.zeros(0, dtype=header.dtype)
    # Memory-mapped: the record of a million steps takes a gigabyte.
    return header, np.memmap(path, header.dtype, mode="r", offset=start, shape=(whole,))


def run_of(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the run that wrote a record; None if there is no record."""
    try:
        return _read_header(path)[1]
    except (OSError, ValueError):
        return None


def _read_header(path: str | os.PathLike[str]) -> tuple[RecordHeader, str, int]:
    """Return the header of a record, the name of its run, and the offset of the entries."""
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
    except ValueError as error:
        raise ValueError(
            f"path={os.fspath(path)!r} is no record of lightning-audit ({error}); pass the "
            f"{RECORD_NAME} of a report directory."
        ) from error
    if version > _VERSION:
        raise ValueError(
            f"path={os.fspath(path)!r} has version {version}, this lightning-audit reads up to "
            f"{_VERSION}; upgrade lightning-audit to read it."
        )
    return header, run, len(line)


# --- Converts this package's objects to plain data and back, for checkpoints.

#: Registries whose objects a snapshot names instead of holding them: kind -> their class, and all
#: of them by name; and what returns the names of the packages whose objects it may hold.
_NAMED: dict[str, tuple[type, Mapping[str, Any]]] = {}
_PACKAGES: list[Callable[[], set[str]]] = []
#: Names of the checks of other packages, by the module that an entry point names.
OTHERS: dict[str, list[str]] = {}


def name_in_snapshots(
    kind: str, owner: type, registry: Mapping[str, Any], packages: Callable[[], set[str]]
) -> None:
    """Let snapshots name the objects of a registry, and hold objects of the packages that add some.

    Args:
        kind: key of the name in the data.
        owner: class of the objects.
        registry: the objects by name.
        packages: returns the names of the packages.
    """
    _NAMED[kind] = owner, registry
    _PACKAGES.append(packages)


def _is_known(module: str) -> bool:
    package = module.partition(".")[0]
    return package == __name__.partition(".")[0] or any(package in one() for one in _PACKAGES)


def snapshot(value: Any) -> Any:
    """Return plain data from which `restore` creates an equal value.

    Args:
        value: None, a bool, number, string, numpy array, an object of this package's classes, or a
            list, tuple or dict of such.

    Returns:
        The value as dicts, lists and plain values; arrays are copied.

    Raises:
        TypeError: the value, or a part of it, is of another kind, or its class cannot be imported
            by its name.

    Example:
        >>> snapshot((1, {"a": 2.0}))
        {'tuple': [1, {'dict': [['a', 2.0]]}]}
    """
    match value:
        case None | bool() | int() | float() | str():
            # numpy's float64 is a subclass of float and is stored as a float.
            return value.item() if isinstance(value, np.generic) else value
        case np.generic():
            return value.item()
        case np.ndarray():
            return value.copy()
        case list():
            return [snapshot(item) for item in value]
        case tuple():
            return {"tuple": [snapshot(item) for item in value]}
        case dict() if type(value) is dict:  # a Counter, say, would come back as a dict
            return {"dict": [[snapshot(k), snapshot(v)] for k, v in value.items()]}
    kind = type(value)
    for key, (owner, _) in _NAMED.items():
        if kind is owner:
            return {key: value.name}
    if not _is_known(kind.__module__):
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} cannot be part of a snapshot; keep plain "
            "values, arrays, or objects of this package's classes and of those that add checks."
        )
    if getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} cannot be part of a snapshot: a resume finds "
            "classes by name; define it at the top of its module."
        )
    state = {name: snapshot(item) for name, item in vars(value).items()}
    return {"object": f"{kind.__module__}:{kind.__qualname__}", "state": state}


def restore(data: Any) -> Any:
    """Return the value from which `snapshot` created the data.

    Returns:
        An equal value that shares no array with ``data``.

    Raises:
        ValueError: the data are no snapshot, or contain a class that this version does not have.

    Example:
        >>> restore({"tuple": [1, {"dict": [["a", 2.0]]}]})
        (1, {'a': 2.0})
    """
    match data:
        case {"tuple": items}:
            return tuple(restore(item) for item in items)
        case {"dict": items}:
            return {restore(k): restore(v) for k, v in items}
        case dict() if len(data) == 1 and (key := str(next(iter(data)))) in _NAMED:
            name, (_, registry) = data[key], _NAMED[key]
            if name not in registry:
                raise ValueError(
                    f"the snapshot holds the {key} {name!r}, which no installed package declares; "
                    f"resume with the packages that add {key}s as they were."
                )
            return registry[name]
        case {"object": name, "state": state}:
            kind = _class(name)
            value: Any = object.__new__(kind)
            for attribute, item in state.items():
                # Frozen dataclasses refuse plain assignment.
                object.__setattr__(value, attribute, restore(item))
            return value
        case dict():
            raise ValueError(
                f"keys {sorted(data)} are no part of a snapshot; take another checkpoint."
            )
        case list():
            return [restore(item) for item in data]
        case np.ndarray():
            return data.copy()
    return data


def _class(name: object) -> type:
    module, _, qualified = name.partition(":") if isinstance(name, str) else ("", "", "")
    kind = None
    if _is_known(module):
        with contextlib.suppress(ImportError):
            kind = getattr(importlib.import_module(module), qualified, None)
    if not isinstance(kind, type) or kind.__module__ != module:
        raise ValueError(
            f"the snapshot holds a {name!r}, which this version of lightning-audit does not have; "
            "resume with the version that wrote it."
        )
    return kind


# --- State that is declared once: what a checkpoint holds of an object, and how it is restored.


class Kept:
    """An object of which a checkpoint holds the attributes that `KEPT` names, and no others.

    An attribute is plain data, an array, an object of this package (see `snapshot`), or `Kept`
    itself. What is not named must be a function of private data that no checkpoint may hold, or be
    known again after a resume.
    """

    KEPT: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return the attributes of `KEPT` as plain data, copied."""
        found = {name: getattr(self, name) for name in self.KEPT}
        return {
            name: value.state() if isinstance(value, Kept) else snapshot(value)
            for name, value in found.items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes from a `state`.

        Raises:
            KeyError: an attribute is missing.
        """
        for name in self.KEPT:
            value = getattr(self, name)
            if isinstance(value, Kept):
                value.load(state[name])
            else:
                setattr(self, name, restore(state[name]))
