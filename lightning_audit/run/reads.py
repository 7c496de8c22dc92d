"""Whether a training's records were read: by memory, by item, or by a loader over them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch._C import _len_torch_function_stack
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils import _pytree
from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_audit.hooks.boundary import Boundary, current

#: Most places in memory and items that are kept between two steps.
_MOST_READS = 20_000
#: No records.
_NONE = np.zeros(0, dtype=np.int64)
#: Longest container of a data set whose items are looked at.
_SHORT = 64


class Records:
    """The records of some loaders: the data sets that give them, and the memory that holds them.

    What is unknown is left out: the inner data sets of a wrapper with another length, and arrays
    with another length than their data set or with rows that interleave in memory.

    Args:
        loaders: loaders, or data sets, in any nesting.
    """

    def __init__(self, loaders: Any) -> None:
        #: By id, data sets with the sorted numbers of their records that are used; None for all.
        self.sets: dict[int, tuple[Any, Any]] = {}
        for each in _pytree.tree_leaves(loaders):
            self._take(each if isinstance(each, Dataset) else getattr(each, "dataset", None), None)
        # Where their rows begin in memory, sorted, and the bytes of a row.
        self._places: list[tuple[NDArray[np.int64], int]] = []
        for data, rows in self.sets.values():
            for item in _parts(data):
                begin, step, size = _rows(item)
                if size and len(item):
                    own = np.arange(len(item)) if rows is None else rows
                    self._places.append((begin + own * step, size))

    def _take(self, data: Any, rows: Any) -> None:
        known = self.sets.get(id(data), (data, _NONE))[1]
        if data is None or known is None or (rows is not None and np.isin(rows, known).all()):
            return
        rows = rows if rows is None or known is _NONE else np.union1d(known, rows)
        self.sets[id(data)] = (data, rows)
        if isinstance(data, Subset):
            inner = np.asarray(data.indices, dtype=np.int64)
            self._take(data.dataset, np.sort(inner if rows is None else inner[rows]))
        elif isinstance(data, ConcatDataset):
            for part, end in zip(data.datasets, data.cumulative_sizes, strict=True):
                own = rows if rows is None else rows - (end - len(part))  # type: ignore[arg-type]
                self._take(part, own if own is None else own[(own >= 0) & (rows < end)])
        else:
            for item in _parts(data):
                self._take(item if isinstance(item, Dataset) else None, rows)

    def lie_in(self, starts: NDArray[np.int64], sizes: Any) -> bool:
        """Return whether some records lie in one of the parts of memory, of ``sizes`` bytes."""
        for begins, row in self._places:
            last = np.searchsorted(begins, starts + sizes) - 1
            if ((last >= 0) & (begins[last] + row > starts)).any():
                return True
        return False

    def spans(self) -> list[tuple[int, int]]:
        """Return the first and last addresses of the parts of memory that hold records."""
        return [(int(at[0]), int(at[-1]) + row) for at, row in self._places if len(at)]

    def give(self, data: Any, numbers: Any) -> bool:
        """Return whether a data set gives some of the records by these numbers; None for all."""
        rows = self.sets.get(id(data), (None, _NONE))[1]
        if rows is None or numbers is None or not len(rows):
            return rows is None or len(rows) > 0
        with contextlib.suppress(Exception):  # keys
            count, one = len(data), isinstance(numbers, int)
            asked = np.asarray(numbers % count if one else np.arange(count)[numbers])
            return bool((rows[np.searchsorted(rows[:-1], asked)] == asked).any())
        return False

    def share(self, other: Records) -> bool:
        """Return whether some of the records are among others."""
        given = [pair for pair in other.sets.values() if not isinstance(pair[0], Subset)]
        lie = (self.lie_in(*place) for place in other._places)
        return any(self.give(*pair) for pair in given) or any(lie)


def _flat(held: Iterable[Any]) -> list[Any]:
    """Return items, and those in short containers."""
    several = (each if isinstance(each, list | tuple) else (each,) for each in held)
    return [item for each in several if len(each) <= _SHORT for item in each]


def _parts(data: Any) -> list[Any]:
    """Return the arrays and data sets that a data set holds, as many records long as itself."""
    held = [*getattr(data, "__dict__", {}).values()]
    items = [i for i in _flat(held) if isinstance(i, torch.Tensor | np.ndarray | Dataset)]
    with contextlib.suppress(Exception):  # one without a length
        return [item for item in items if length_hint(item, -1) == len(data)]
    return []


def _rows(value: Any) -> tuple[int, int, int]:
    """Return where an array begins in memory, the step from row to row, and the bytes of a row.

    All are 0 if the rows have no memory, or none to themselves.
    """
    if isinstance(value, np.ndarray):
        begin, steps = value.ctypes.data, value.strides
    elif not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_meta:
        return 0, 0, 0
    else:
        begin, steps = value.data_ptr(), tuple(value.itemsize * step for step in value.stride())
    pairs = zip(value.shape[1:], steps[1:], strict=True)
    row = value.itemsize + sum((n - 1) * step for n, step in pairs)
    return (begin, steps[0], row) if 0 < row <= steps[0] else (0, 0, 0)


#: What was read: returns whether some records were.
Read: TypeAlias = Callable[[Records], bool]
#: Functions that read a tensor and make none, and those that read unknown rows of the first one.
_TELLING = re.compile("item|tolist|numpy|equal|allclose|__(array|float|int|bool|index|setitem)__")
_INDEXING = re.compile("__setitem__|gather|take|masked_select")
#: Functions that read no entry, that write into their first argument, and that only copy.
_FORM = frozenset(("__get__", "__len__", "dim", "size", "numel", "data_ptr"))
_WRITING = re.compile(r"__(set|setitem|i\w+)__|_?[a-z].*[^_]_")
_COPYING = frozenset(("copy_", "_foreach_copy_", "__set__"))
#: Raised for tensors without memory, and for an index that selects no rows.
_UNREADABLE = (RuntimeError, IndexError, TypeError, ValueError)


def _arrays(items: Iterable[Any]) -> list[Any]:
    """Return tensors and arrays, and those in lists."""
    each = (i if isinstance(i, list | tuple) else (i,) for i in items)
    return [i for several in each for i in several if isinstance(i, torch.Tensor | np.ndarray)]


def _storage(value: Any) -> tuple[int, int]:
    """Return where the memory of a tensor or an array begins and ends."""
    if isinstance(value, np.ndarray):
        return value.ctypes.data, value.ctypes.data + value.nbytes
    storage = value.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _places(value: Any, index: Any = ()) -> tuple[Any, int]:
    """Return where the parts of an array that an index selects begin, and the bytes of a part."""
    begin, end = _storage(value)
    if isinstance(value, torch.Tensor):
        whole = value.is_contiguous() and isinstance(index, tuple) and not index
        parts = value.reshape(1, -1) if whole else value
        start, step, size = _rows(parts)
        if size:
            first = index[0] if isinstance(index, tuple) and index else index
            numbers = torch.arange(len(parts))[first].flatten().numpy()
            return start + step * numbers, size
    return np.array([begin]), end - begin


class Reads(TorchFunctionMode):
    """What was read since the last step: memory by functions within this context, and more.

    In a plain loop (``loop``), reads of its records alone are noted while ``open``, and which
    tensors are copies of what was there before the first read: these do not depend on it.

    Args:
        records: returns those of the training.
        begins: called before the first read since `clear`.
    """

    def __init__(
        self, records: Callable[[], Records] = lambda: Records(()), begins: Any = lambda: None
    ) -> None:
        super().__init__()
        self._records, self._begins, self._process = records, begins, os.getpid()
        self._boundary = current() or Boundary()
        self.loop = self.open = False
        #: Between which addresses the records lie; None if that may have changed.
        self.spans: list[tuple[int, int]] | None = None
        #: Whether a module was evaluated on other records; set back by the fence.
        self.others = False
        self.clear()

    def clear(self) -> None:
        """Forget what was read: a step begins."""
        self.seen: dict[Any, Read] = {}
        # Whether a read has begun, or one whose values cannot be followed; where memory was written
        # since: by copies of what was there before, and otherwise.
        self._begun = self._unknown = False
        self._copied, self._made = set[int](), set[int]()

    def enter(self, *, loop: bool) -> None:
        """Enter this context below those of the user in this thread, or leave it."""
        self.open = loop
        if loop or _len_torch_function_stack():
            modes = [_pop_mode() for _ in range(_len_torch_function_stack())]  # type: ignore[no-untyped-call]
            modes = [mode for mode in reversed(modes) if mode is not self]
            default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
            at = int(default is not None and modes[:1] == [default])  # which must be the lowest
            for mode in (*modes[:at], *[self] * loop, *modes[at:]):
                _push_mode(mode)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the tensors that a function reads; a view reads nothing."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or self._boundary.failure:  # type: ignore[attr-defined, no-untyped-call]
            return func(*args, **kwargs)
        given, users = (*args, *kwargs.values()), current() is None
        if self.loop and not (users and self.open and self._look(self._may_read, name, given)):
            return func(*args, **kwargs)
        made = func(*args, **kwargs)
        self._look(self._note, name, given, made)
        return made

    def _look(self, look: Callable[..., Any], *given: Any) -> Any:
        """Look at a call of the user's; an internal error detaches the audit, as at any entry."""
        try:
            return look(*given)
        except _UNREADABLE:
            return None
        except Exception as error:
            if not self._boundary.fails(error):
                raise

    def _may_read(self, name: str, given: Sequence[Any]) -> bool:
        """Return whether a function may read records, or use what was made of some."""
        if not self._begun and name not in _FORM and any(map(self._is_near, _arrays(given))):
            self._begin()
        return self._begun

    def _is_near(self, value: Any) -> bool:
        """Return whether records are in the memory of a tensor or an array, maybe in other rows."""
        if self.spans is None:
            self.spans = self._records().spans()
        begin, end = _storage(value)
        return any(begin < high and low < end for low, high in self.spans)

    def _begin(self) -> None:
        if self.loop and not self._begun and os.getpid() == self._process:  # not a loader's worker
            self._begins()
            self._begun = True

    def _note(self, name: str, given: Sequence[Any], made: Any) -> None:
        into = {_storage(t) for t in _arrays((made,)) if isinstance(t, torch.Tensor)}
        before, tells = len(self.seen), bool(into or _TELLING.fullmatch(name))
        for each in _flat(given[1:] if _INDEXING.fullmatch(name) else given) if tells else ():
            plain = type(each) in (torch.Tensor, np.ndarray) and each.nbytes
            if plain and _storage(each) not in into and before < _MOST_READS:
                index = given[1] if name == "__getitem__" else ()
                index = given[2] if name == "index_select" and given[1] == 0 else index
                self._memory(*_places(each, index if each is given[0] else ()), each)
        if self._begun:
            self._note_writes(name, given, made, read=len(self.seen) > before)

    def _memory(self, starts: Any, size: int, each: Any) -> None:
        storage = each.untyped_storage() if isinstance(each, torch.Tensor) else None
        # Memory that is torch's own may be another tensor's later; NumPy's has shorter storages.
        held: Any = StorageWeakRef(storage) if storage and storage.resizable() else None  # type: ignore[no-untyped-call]

        def read(records: Records) -> bool:
            return not (held and held.expired()) and records.lie_in(starts, size)

        if not self.loop or read(self._records()):
            self.seen[int(starts[0]), size, len(starts)] = read

    def _note_writes(self, name: str, given: Sequence[Any], made: Any, *, read: bool) -> None:
        """Note where a function wrote, and whether that is made of what was there before."""
        writes = _WRITING.fullmatch(name) is not None
        sources = {_storage(t)[0] for t in _arrays(given[1:] if name in _COPYING else given)}
        # A factor may be made of what was read; other integers are dimensions and counts.
        factor = any(
            isinstance(i, float) or (type(i) is int and "mul" in name) for i in _flat(given)
        )
        same = bool(sources) and not (read or factor or sources & self._made)
        for where in {_storage(t)[0] for t in _arrays(given[:1] if writes else (made,))}:
            if writes or where not in sources:
                (self._copied if same else self._made).add(where)
                if not writes:  # new memory
                    (self._made if same else self._copied).discard(where)

    def holds_copy(self, value: torch.Tensor) -> bool:
        """Return whether a tensor that has changed since the first read does not depend on it."""
        where = _storage(value)[0]
        return where in self._copied and where not in self._made and not self._unknown

    def evaluates(self, given: Iterable[Any]) -> None:
        """Note that a module is evaluated: on other records, unless their source is unknown."""
        own = any(self._is_near(each) or _storage(each)[0] in self._made for each in _arrays(given))
        self.others |= self.open and not own and not self._unknown

    def loader(self, loader: Any) -> None:
        """Note that a loader is iterated."""
        given = functools.cache(lambda: Records(loader))
        self._other(id(loader), lambda records: records.share(given()))

    def item(self, data: Any, numbers: Any) -> None:
        """Note that a data set gives items."""
        self._other((id(data), str(numbers)), lambda records: records.give(data, numbers))

    def _other(self, key: Any, read: Read) -> None:
        own = not self.loop or read(self._records())
        self.others |= not own
        if own and len(self.seen) < _MOST_READS:
            self._begin()
            self._unknown, self.seen[key] = True, read
