"""Reads and edits a few entries of a layout's tensors, where these are.

Everything that a step moves between host and device goes through this module: at most one parcel
out for the canaries, one for what is taken out, and one parcel home. A reading stays on its device
until its values are looked at; the first look brings every reading of the step home in one copy.
The CPU is a device like any other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.layout import Direction, FloatArray, IndexArray, by_tensor

Tensors = Sequence[torch.Tensor | None]

# ------------------------------------------------------------------ memory


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a strided tensor as a vector, gaps included, without a copy."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor.view(-1)
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.as_strided((1 + sum((n - 1) * step for n, step in pairs),), (1,))


def offsets(index: IndexArray, tensor: torch.Tensor) -> IndexArray:
    """Return where flat coordinates of a tensor lie in its `memory`."""
    if tensor.is_contiguous():
        return index
    at = np.unravel_index(index, tensor.shape)
    return np.asarray(sum(i * step for i, step in zip(at, tensor.stride(), strict=True)))


# ------------------------------------------------------------------ parcels


def send(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Copy arrays of eight-byte numbers to a device, all in one copy."""
    host = torch.from_numpy(np.concatenate([a.view(np.uint8) for a in arrays]))
    if device.type == "cuda":
        host = host.pin_memory()
    away = host.to(device, non_blocking=True)
    pieces = torch.split(away, [a.nbytes for a in arrays])
    return [
        piece.view(torch.int64 if a.dtype == np.int64 else torch.float64)
        for piece, a in zip(pieces, arrays, strict=True)
    ]


class Parcel:
    """Tensors that come home in one copy, without waiting for it until one is looked at."""

    def __init__(self) -> None:
        self._away: list[torch.Tensor] = []
        self._home: list[torch.Tensor] = []
        self._event: Any = None
        #: Whether the copy has begun, so that nothing more goes in.
        self.departed = False

    def add(self, tensor: torch.Tensor) -> int:
        """Add a tensor, which must not be written to until `depart`; return its number."""
        self._away.append(tensor)
        return len(self._away) - 1

    def depart(self) -> None:
        """Start the copy."""
        self.departed = True
        if not self._away:
            return
        # The largest numbers first, so that all are aligned.
        order = sorted(range(len(self._away)), key=lambda k: -self._away[k].element_size())
        flat = [self._away[k].reshape(-1).view(torch.uint8) for k in order]
        device = flat[0].device
        packed = torch.cat([part.to(device) for part in flat])
        if device.type == "cuda":
            host = torch.empty(len(packed), dtype=torch.uint8, pin_memory=True)
            host.copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            host = packed.cpu()
        pieces = dict(zip(order, torch.split(host, [len(part) for part in flat]), strict=True))
        kinds = [tensor.dtype for tensor in self._away]
        self._home = [pieces[k].view(kind) for k, kind in enumerate(kinds)]
        self._away = []

    def get(self, number: int) -> torch.Tensor:
        """Return a tensor in host memory; waits for the copy."""
        self.depart()
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._home[number]


class Entries:
    """Entries of a layout's tensors, on their device until looked at.

    Args:
        size: number of entries, ``[n]``.
        parts: entries in their own precision, and their positions among all; None for all.
        parcel: brings them home.
    """

    def __init__(
        self, size: int, parts: list[tuple[torch.Tensor, IndexArray | None]], parcel: Parcel
    ) -> None:
        self._size, self.parts, self._parcel = size, parts, parcel
        self._numbers = [parcel.add(values) for values, _ in parts]
        self._array: FloatArray | None = None

    @property
    def array(self) -> FloatArray:
        """The entries in double precision, ``[n]``; the first look brings home all that waits."""
        if self._array is None:
            found = [self._parcel.get(number).double().numpy() for number in self._numbers]
            if len(found) == 1 and self.parts[0][1] is None:
                self._array = found[0]
            else:
                self._array = np.empty(self._size)
                for values, (_, at) in zip(found, self.parts, strict=True):
                    self._array[at] = values
        return self._array


# ------------------------------------------------------------------ reader


class _Source:
    """The memory of a list of tensors, in groups of one device and precision."""

    def __init__(self, reader: GradientReader, tensors: list[torch.Tensor | None]) -> None:
        self.tensors = tensors
        self._seen = [None if t is None else (t.data_ptr(), t.stride()) for t in tensors]
        groups: dict[Any, list[int]] = {}
        for k, (tensor, like) in enumerate(zip(tensors, reader.like, strict=True)):
            own = like if tensor is None else tensor
            groups.setdefault((own.device, own.dtype), []).append(k)
        self.groups = [
            (key, *reader.group(key, tensors, members)) for key, members in groups.items()
        ]

    def holds(self, tensors: list[torch.Tensor | None]) -> bool:
        """Return whether these are the same tensors, at the same addresses."""
        return all(
            one is other and (one is None or (one.data_ptr(), one.stride()) == seen)
            for one, other, seen in zip(self.tensors, tensors, self._seen, strict=True)
        )


class GradientReader:
    """Reader of the same entries of gradients, clipped sums and weights at every step.

    Args:
        params: the tensors of the layout.
        coordinates: tensor -> flat coordinates, distinct in a tensor.
        home: a reader with whose parcel the readings come home; None for one of its own.
    """

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        coordinates: dict[int, IndexArray],
        home: GradientReader | None = None,
    ) -> None:
        self._home = home
        self.tensors = list(coordinates)
        self.like = [params[j] for j in coordinates]
        self.index = list(coordinates.values())
        ends = np.cumsum([0, *map(len, self.index)]).tolist()
        self.spans = [slice(*pair) for pair in itertools.pairwise(ends)]
        self.size = ends[-1]
        self._placed: dict[Any, Any] = {}
        self._sources: list[_Source] = []
        self._parcel = Parcel()

    @property
    def parcel(self) -> Parcel:
        """What waits to be brought home."""
        if self._home is not None:
            return self._home.parcel
        if self._parcel.departed:
            self._parcel = Parcel()
        return self._parcel

    # -------------------------------------------------------------- reading

    @torch.no_grad()
    def read(self, tensors: Tensors) -> Entries:
        """Read all entries; NaN where a tensor is None.

        Args:
            tensors: one per tensor of the layout.
        """
        parts: list[tuple[Any, Any]] = []
        for (device, dtype), at, flats, where, sizes in self._source(tensors).groups:
            packed = torch.empty(sum(sizes), dtype=dtype, device=device)
            for flat, index, out in zip(flats, where, torch.split(packed, sizes), strict=True):
                if flat is None:
                    out.fill_(torch.nan)
                else:
                    torch.index_select(flat, 0, index, out=out)
            parts.append((packed, at))
        return Entries(self.size, parts, self.parcel)

    @torch.no_grad()
    def take_out(self, tensors: Tensors, before: Entries, taken: FloatArray) -> Entries:
        """Subtract an amount at each entry that is not zero; return the entries after that.

        An entry of zero contains neither noise nor canary. A failure writes nothing.

        Args:
            tensors: one per tensor of the layout.
            before: their entries as they are, not looked at yet.
            taken: the amounts, ``[n]``.
        """
        left: list[tuple[Any, Any]] = []
        writes: list[tuple[Any, Any, Any]] = []
        touched = [bool(taken[span].any()) for span in self.spans]
        for (group, at, flats, where, sizes), (values, _) in zip(
            self._source(tensors).groups, before.parts, strict=True
        ):
            (amount,) = send([taken if at is None else taken[at]], group[0])
            rest = values - amount.to(group[1]).masked_fill_(values == 0.0, 0.0)
            writes += [
                (flat, index, piece)
                for flat, index, piece, k in zip(
                    flats, where, torch.split(rest, sizes), self._members(at), strict=True
                )
                if flat is not None and touched[k]
            ]
            left.append((rest, at))
        for flat, index, piece in writes:
            flat.index_copy_(0, index, piece)
        return Entries(self.size, left, self.parcel)

    def also(self, values: torch.Tensor) -> Entries:
        """Bring home other values of the step with its readings."""
        values = values.detach().reshape(-1)
        return Entries(len(values), [(values, None)], self.parcel)

    def holds(self, tensors: Tensors) -> bool:
        """Return whether these very tensors, at the same addresses, were read in this step."""
        own = [tensors[j] for j in self.tensors]
        return any(source.holds(own) for source in self._sources)

    def end_step(self) -> None:
        """Let go of the step's gradients, and start the copy of what waits.

        On an accelerator, values may be looked at one step later without a wait.
        """
        self._sources = [s for s in self._sources if s.tensors and s.tensors[0] is self.like[0]]
        self.parcel.depart()

    # -------------------------------------------------------------- places

    def positions(self, coordinates: dict[int, IndexArray]) -> IndexArray:
        """Return the positions of some of the coordinates, which are sorted, among all."""
        places = {j: k for k, j in enumerate(self.tensors)}
        return np.concatenate(
            [
                self.spans[places[j]].start + np.searchsorted(self.index[places[j]], index)
                for j, index in coordinates.items()
            ]
        )

    def _source(self, tensors: Tensors) -> _Source:
        own = [tensors[j] for j in self.tensors]
        for source in self._sources:
            if source.holds(own):
                return source
        self._sources = [*self._sources[-2:], _Source(self, own)]
        return self._sources[-1]

    def group(self, key: Any, tensors: list[torch.Tensor | None], members: list[int]) -> Any:
        """Return positions, memory, places in it, and sizes of a group of tensors."""
        steps = tuple((k, None if (t := tensors[k]) is None else t.stride()) for k in members)
        if (key, steps) not in self._placed:
            index = [
                self.index[k] if (t := tensors[k]) is None else offsets(self.index[k], t)
                for k in members
            ]
            (sent,) = send([np.concatenate(index)], key[0])
            whole = len(members) == len(self.index)
            spans = [np.arange(self.spans[k].start, self.spans[k].stop) for k in members]
            at = None if whole else np.concatenate(spans)
            sizes = [len(i) for i in index]
            self._placed[key, steps] = at, torch.split(sent, sizes), sizes
        at, index, sizes = self._placed[key, steps]
        flats = [None if (t := tensors[k]) is None else memory(t) for k in members]
        return at, flats, index, sizes

    def _members(self, at: IndexArray | None) -> list[int]:
        if at is None:
            return list(range(len(self.spans)))
        return [k for k, span in enumerate(self.spans) if span.start in at]


# ------------------------------------------------------------------ canaries


class CanaryRows(list[Direction]):
    """A step's canaries as rows, which lie on each device after one copy.

    Args:
        directions: in the order of their rows, of norm 1.
        lengths: factor of each row, ``[k]``; None for 1.
    """

    def __init__(self, directions: Sequence[Direction], lengths: FloatArray | None = None) -> None:
        lengths = np.ones(len(directions)) if lengths is None else lengths
        pairs = zip(directions, lengths, strict=True)
        super().__init__(d if length == 1.0 else d.scaled(float(length)) for d, length in pairs)
        self.plain = list(directions)
        self._rows = by_tensor(self)
        self._sent: dict[torch.device, dict[int, list[torch.Tensor]]] = {}

    def write(self, rows: torch.Tensor, tensor: int, norm: float) -> None:
        """Write ``norm`` times each row's part in a tensor into rows of zeros, ``[k, *shape]``."""
        parts = self._rows.get(tensor, ())
        if not parts:
            return
        size = math.prod(rows.shape[1:])
        row, index, value, _ = self._on(rows.device)[tensor]
        at = row * size + index
        if not rows.is_contiguous():
            flat = np.concatenate([row * size + part.index for row, part in parts])
            (at,) = send([offsets(flat, rows)], rows.device)
        memory(rows).index_copy_(0, at, (norm * value).to(rows.dtype))

    def write_all(self, buffers: Sequence[torch.Tensor], norm: float) -> None:
        """Write into the last rows of buffers ``[n, *shape]``, one per tensor of the layout."""
        for tensor in self._rows:
            self.write(buffers[tensor][len(buffers[tensor]) - len(self) :], tensor, norm)

    @torch.no_grad()
    def add(self, tensors: Tensors, weights: FloatArray, *, plain: bool = False) -> None:
        """Add each row, times its weight, to tensors; None is skipped. A failure writes nothing.

        Args:
            tensors: one per tensor of the layout.
            weights: of the rows, ``[k]``.
            plain: whether to add directions of norm 1, regardless of the rows' lengths.
        """
        writes: list[tuple[Any, Any, Any]] = []
        for j in self._rows:
            tensor = tensors[j]
            if tensor is None:
                continue
            row, index, value, own = self._on(tensor.device)[j]
            if not tensor.is_contiguous():
                flat = np.concatenate([part.index for _, part in self._rows[j]])
                (index,) = send([offsets(flat, tensor)], tensor.device)
            entries = own if plain else value
            if (weights == weights[0]).all():
                entries = float(weights[0]) * entries
            else:
                entries = send([weights], tensor.device)[0][row] * entries
            writes.append((memory(tensor), index, entries.to(tensor.dtype)))
        for flat, index, amount in writes:
            flat.index_add_(0, index, amount)

    def _on(self, device: torch.device) -> dict[int, list[torch.Tensor]]:
        """Return rows, coordinates, entries and entries at norm 1, by tensor; sent once."""
        if device not in self._sent:
            plain = by_tensor(self.plain)
            sizes = [sum(len(p.index) for _, p in parts) for parts in self._rows.values()]
            both = [
                np.concatenate(
                    [np.full(len(p.index), row) for v in self._rows.values() for row, p in v]
                ),
                np.concatenate([p.index for v in self._rows.values() for _, p in v]),
                np.concatenate([p.value for v in self._rows.values() for _, p in v]),
                np.concatenate([p.value for j in self._rows for _, p in plain[j]]),
            ]
            sent = [torch.split(whole, sizes) for whole in send(both, device)]
            pieces = zip(*sent, strict=True)
            self._sent[device] = {j: list(own) for j, own in zip(self._rows, pieces, strict=True)}
        return self._sent[device]


def as_rows(directions: Sequence[Direction]) -> CanaryRows:
    """Return directions as canaries' rows."""
    return directions if isinstance(directions, CanaryRows) else CanaryRows(directions)


#: Largest residual of a gradient that was multiplied by one number, relative to its norm.
_PROPORTIONAL = 1e-4


def factor_of(left: FloatArray, arrived: FloatArray) -> float | None:
    """Return the number by which ``left`` was multiplied to give ``arrived``; None if none.

    Args:
        left: entries of a gradient, ``[n]``.
        arrived: the same entries later, ``[n]``.
    """
    square = float(left @ left)
    if not (math.isfinite(square) and square > 0.0 and np.isfinite(arrived).all()):
        return None
    factor = float(left @ arrived) / square
    rest = float(np.linalg.norm(arrived - factor * left))
    return (
        factor if factor > 0.0 and rest <= _PROPORTIONAL * float(np.linalg.norm(arrived)) else None
    )
