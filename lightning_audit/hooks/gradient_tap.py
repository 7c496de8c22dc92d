"""Reads the noisy gradient, removes the canaries, and compares it with the one the update uses.

By post-processing, anything computed from a noisy gradient is as private as that gradient. So the
gradient is read at the *cut*, the first point where the noise is known to be included. If an
implementation exposes this point, the session calls `GradientTap.noise_is_in` there. Otherwise the
step hooks of the innermost torch optimizer work for every implementation: they run after clipping,
noise, scaling and reduction, and before the update.

A tap is passive: it installs no step hooks and makes no callbacks. The session drives it.

**Entries of tensors, read and edited where these are.** Everything that a step moves between host
and device goes through `send` and `Parcel`: at most one copy out for the canaries, one for what is
taken out, and one copy home. Entries stay on their device until their values are looked at; the
first look brings all of the step home. The CPU is such a device too.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.hooks.boundary import Handles, entry
from lightning_audit.hooks.step_hooks import StepHooks
from lightning_audit.layout import Direction, FloatArray, IndexArray, by_tensor
from lightning_audit.record.store import Moves, Observation

# --- Reads and edits a few entries of tensors where these are, and brings them home in one copy.

Tensors = Sequence[torch.Tensor | None]


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


def send(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Copy arrays of eight-byte numbers to a device, all in one copy."""
    host = torch.from_numpy(np.concatenate([a.view(np.uint8) for a in arrays]))
    if device.type == "cuda":
        host = host.pin_memory()
    away = host.to(device, non_blocking=True)
    pieces = away.split_with_sizes([a.nbytes for a in arrays])
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
            self._event.record(torch.cuda.current_stream(device))
        else:
            host = packed.cpu()
        pieces = dict(zip(order, host.split_with_sizes([len(part) for part in flat]), strict=True))
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
            (*key, members, *reader.group(key, tensors, members)) for key, members in groups.items()
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
    """

    def __init__(self, params: Sequence[torch.Tensor], coordinates: dict[int, IndexArray]) -> None:
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
        if self._parcel.departed:
            self._parcel = Parcel()
        return self._parcel

    # -------------------------------------------------------------- reading

    def read(self, tensors: Tensors) -> Entries:
        """Read all entries; NaN where a tensor is None.

        Args:
            tensors: one per tensor of the layout.
        """
        parts: list[tuple[Any, Any]] = []
        for device, dtype, _, at, flats, where, sizes in self._source(tensors).groups:
            packed = torch.empty(sum(sizes), dtype=dtype, device=device)
            for flat, index, out in zip(flats, where, packed.split_with_sizes(sizes), strict=True):
                if flat is None:
                    out.fill_(torch.nan)
                else:
                    torch.index_select(flat, 0, index, out=out)
            parts.append((packed, at))
        return Entries(self.size, parts, self.parcel)

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
        for (device, dtype, members, at, flats, where, sizes), (values, _) in zip(
            self._source(tensors).groups, before.parts, strict=True
        ):
            (amount,) = send([taken if at is None else taken[at]], device)
            rest = values - amount.to(dtype).masked_fill_(values == 0.0, 0.0)
            pieces = zip(flats, where, rest.split_with_sizes(sizes), members, strict=True)
            for flat, index, piece, k in pieces:
                if flat is not None and touched[k]:
                    writes.append((flat, index, piece))
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
        """Release the step's gradients, and start the copy of what waits.

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
        # The memory of tensors that lie elsewhere now is not kept.
        others = [s for s in self._sources if any(map(operator.is_not, s.tensors, own))]
        self._sources = [*others[-2:], _Source(self, own)]
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
            self._placed[key, steps] = at, sent.split_with_sizes(sizes), sizes
        at, index, sizes = self._placed[key, steps]
        flats = [None if (t := tensors[k]) is None else memory(t) for k in members]
        return at, flats, index, sizes


class CanaryRows(list[Direction]):
    """A step's canaries as rows, which lie on each device after one copy.

    Args:
        directions: in the order of their rows, of norm 1.
        lengths: factor of each row, ``[k]``; None for 1.
    """

    def __init__(self, directions: Sequence[Direction], lengths: FloatArray | None = None) -> None:
        self._lengths = np.ones(len(directions)) if lengths is None else lengths
        pairs = zip(directions, self._lengths, strict=True)
        super().__init__(d if length == 1.0 else d.scaled(float(length)) for d, length in pairs)
        self._rows = by_tensor(directions)
        self._sent: dict[torch.device, dict[int, list[torch.Tensor]]] = {}
        self._strided: dict[Any, torch.Tensor] = {}

    def write_all(self, buffers: Sequence[torch.Tensor], norm: float) -> None:
        """Write ``norm`` times each row into the last rows of buffers, which are zeros.

        Args:
            buffers: one per tensor of the layout, ``[n, *shape]``.
            norm: norm of the longest row.
        """
        for tensor, parts in self._rows.items():
            rows = buffers[tensor][len(buffers[tensor]) - len(self) :]
            size = math.prod(rows.shape[1:])
            row, index, value, _ = self._on(rows.device)[tensor]
            at = row * size + index
            if not rows.is_contiguous():
                flat = np.concatenate([row * size + part.index for row, part in parts])
                (at,) = send([offsets(flat, rows)], rows.device)
            memory(rows).index_copy_(0, at, (norm * value).to(rows.dtype))

    def add(self, tensors: Tensors, weights: FloatArray, *, plain: bool = False) -> None:
        """Add each row, times its weight, to tensors; None is skipped. A failure writes nothing.

        Args:
            tensors: one per tensor of the layout.
            weights: of the rows, ``[k]``.
            plain: whether to add directions of norm 1, regardless of the rows' lengths.
        """
        writes: list[tuple[Any, Any, Any]] = []
        alike, sent = bool((weights == weights[:1]).all()), dict[torch.device, torch.Tensor]()
        for j in self._rows:
            tensor = tensors[j]
            if tensor is None:
                continue
            row, index, value, own = self._on(tensor.device)[j]
            if not tensor.is_contiguous():
                index = self._places(j, tensor)
            entries = own if plain else value
            if alike:
                entries = float(weights[0]) * entries
            else:
                if tensor.device not in sent:
                    (sent[tensor.device],) = send([weights], tensor.device)
                entries = sent[tensor.device][row] * entries
            writes.append((memory(tensor), index, entries.to(tensor.dtype)))
        for flat, index, amount in writes:
            flat.index_add_(0, index, amount)

    def _places(self, j: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return where the coordinates lie in a tensor with gaps or another order; sent once."""
        key = j, tensor.device, tensor.shape, tensor.stride()
        if key not in self._strided:
            flat = np.concatenate([part.index for _, part in self._rows[j]])
            (self._strided[key],) = send([offsets(flat, tensor)], tensor.device)
        return self._strided[key]

    def _on(self, device: torch.device) -> dict[int, list[torch.Tensor]]:
        """Return rows, coordinates, entries and entries at norm 1, by tensor; sent once."""
        if device not in self._sent:
            sizes = [sum(len(p.index) for _, p in parts) for parts in self._rows.values()]
            each = [pair for parts in self._rows.values() for pair in parts]
            rows = np.concatenate([np.full(len(part.index), row) for row, part in each])
            own = np.concatenate([part.value for _, part in each])
            index = np.concatenate([part.index for _, part in each])
            both = [rows, index, self._lengths[rows] * own, own]
            sent = [whole.split_with_sizes(sizes) for whole in send(both, device)]
            pieces = zip(*sent, strict=True)
            self._sent[device] = {j: list(got) for j, got in zip(self._rows, pieces, strict=True)}
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


def summed_by_opacus(params: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the clipped sums that a `DPOptimizer` holds; None where it has summed nothing."""
    return [getattr(p, "summed_grad", None) for p in params]


def clipped_sums(
    params: Sequence[torch.nn.Parameter], grads: Tensors | None = None
) -> list[torch.Tensor | None]:
    """Return the clipped sums that Opacus keeps; None for one that became the gradient in place.

    Args:
        params: the parameters.
        grads: their noisy gradients; None for ``p.grad``.
    """
    grads = [p.grad for p in params] if grads is None else grads
    return [
        None if one is None or grad is None or one.data_ptr() == grad.data_ptr() else one
        for one, grad in zip(summed_by_opacus(params), grads, strict=True)
    ]


#: Precisions in which noise is read.
FINE = (torch.float32, torch.float64)


# --- Reads changes of the weights, in the update and outside of it.

#: Steps that are read: the first `_FIRST`, then one in `_EVERY`.
_FIRST, _EVERY = 100, 8


class WeightWatch:
    """Reader of the weights at the coordinates of the gradient readings.

    Args:
        params: the parameters, in the order of the layout.
        reader: reads their entries together with the gradients'.
    """

    def __init__(self, params: Sequence[torch.nn.Parameter], reader: GradientReader) -> None:
        self._params, self._reader = params, reader
        self._number = 0
        self._before: Entries | None = None
        self._after: tuple[int, Entries] | None = None

    def start(self) -> None:
        """Read the weights before an update; a later call replaces an earlier one."""
        watched = self._number < _FIRST or self._number % _EVERY == 0
        self._before = self._reader.read(self._params) if watched else None

    def end(self) -> Callable[[], Moves] | None:
        """Read after an update; return a function that returns the changes, None if not read."""
        before, number = self._before, self._number
        self.forget()
        self._number += 1
        if before is None:
            return None
        earlier, now = self._after, self._reader.read(self._params)
        self._after = (number, now)

        def moves() -> Moves:
            start, known = before.array, earlier is not None and earlier[0] == number - 1
            outside = start - earlier[1].array if earlier is not None and known else None
            return Moves(now.array - start, start, outside)

        return moves

    def since(self) -> FloatArray | None:
        """Return the changes since the last update, ``[n]``; None if it was not read."""
        last = self._after
        if last is None or last[0] != self._number - 1:
            return None
        return self._reader.read(self._params).array - last[1].array

    def forget(self) -> None:
        """Discard a step that was not completed."""
        self._before = None


_UNCLEAR = (
    "the inner optimizer changes p.grad inside its step, so it is not known which gradient the "
    "update used; change a copy there, or use one of torch's optimizers"
)


# --- Reads the noisy gradient, removes the canaries, and compares it with the one the update uses.


class GradientTap:
    """Reader of the gradient of each step of one torch optimizer.

    A step calls `begin_step`, `due_gradient` and `end_step`, and `noise_is_in` if the cut is known.
    If `noise_is_in` or `due_gradient` returns a gradient, the caller must call `read` next.

    Args:
        optimizer: the innermost optimizer.
        params: the parameters to read, in the order of the layout.
        coordinates: tensor -> flat coordinates to read, distinct in a tensor.
    """

    _kind: type[StepHooks] = StepHooks

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Sequence[torch.nn.Parameter],
        coordinates: dict[int, IndexArray],
        note_backward: Callable[[torch.nn.Parameter], None] | None = None,
    ) -> None:
        self._optimizer, self._params, self._note = optimizer, params, note_backward
        # torch's own optimizers may add momentum or weight decay to p.grad in place: the gradient
        # that the update starts from is the one that was read.
        self._trusted = type(optimizer).__module__.startswith("torch.optim.")
        self._index = coordinates
        #: Reads the entries, and brings them home once a step.
        self.reader = GradientReader(params, coordinates)
        self._size = self.reader.size
        #: The entries with canaries, without them, and when the update begins.
        self._raw_entries: Entries | None = None
        self._left: Entries | None = None
        #: Whether the gradient was read at the cut, from which tensors, and what the update got.
        self._at_cut = False
        self._source: Sequence[torch.Tensor | None] | None = None
        self._arrived: Entries | None = None
        #: Whether the canaries were removed from the step's gradient.
        self.taken_out = False
        #: Reads the weights around each update.
        self.weights = WeightWatch(params, self.reader)
        self._depth = 0
        self._backward_ran = self._backward_before = False
        #: Addresses and version counters of the gradients after backward passes.
        self._backward_left: dict[int, tuple[int, int]] = {}
        self._raw = False
        self._handles = Handles()
        for j in coordinates:
            register = params[j].register_post_accumulate_grad_hook
            self._handles.append(register(entry(self._note_backward)))  # type: ignore[no-untyped-call]

    @property
    def is_sure(self) -> bool:
        """Whether the update is known to use the gradient that is read: it is after the noise."""
        return True

    @property
    def is_shown(self) -> bool:
        """Whether the training's own code passes its noisy gradients to the audit."""
        return False

    @property
    def inside_step(self) -> bool:
        """Whether the step is between reading the gradient and the end of its update."""
        return self._depth > 0 or self._at_cut

    def hooks(self, at_update: Callable[[int], None], end: Callable[[], None]) -> StepHooks:
        """Return hooks around the steps of the optimizer that updates; see `StepHooks`."""
        begin, skip = self.begin_step, self.skip_step
        return self._kind(self._optimizer, begin, at_update, end, at_update, skip)

    def judged(self, seen: Observation, *, asked: bool) -> tuple[Observation, str]:
        """Return the usable part of a reading, and what it has that prevents a pass, or "".

        Args:
            seen: a step's reading.
            asked: whether the step's code had requested canaries before it was read.
        """
        return seen, _UNCLEAR if seen.unclear else ""

    def reset(self) -> None:
        """Discard a step that was interrupted between its hooks."""
        self._depth = 0
        self.weights.forget()
        self._forget()

    def reads_at(self, level: int) -> bool:
        """Return whether a gradient not yet read is read at this level of `begin_step`."""
        return level == 1

    def skip_step(self) -> None:
        """End a step of the optimizer without reading it."""
        self._depth = max(self._depth - 1, 0)

    def _forget(self) -> None:
        self.taken_out = False
        self._left = self._arrived = self._raw_entries = None
        self._at_cut, self._source = False, None
        self.reader.end_step()  # else memory is held in the next backward

    def noise_is_in(self, tensors: Tensors | None = None) -> list[torch.Tensor | None] | None:
        """Begin a step at the cut, after its noise and before any post-processing.

        Args:
            tensors: one tensor per parameter, of its shape, edited in place; None for ``p.grad``.

        Returns:
            The gradient if it must be read now, one tensor per parameter; else None.
        """
        self._source = tensors
        if self._at_cut and self._left is not None and self.reader.holds(self.grads()):
            # Something was added in place; the canary has already been removed.
            self._left = self._read_now()
            self._source = None
            return None
        self._at_cut = True
        return self._begin()

    def begin_step(self) -> int:
        """Begin a step of the optimizer; return the number of nested steps, including it."""
        self._depth += 1
        return self._depth

    def due_gradient(self, level: int) -> list[torch.Tensor | None] | None:
        """Proceed to the update of a step, whose gradients are computed.

        Args:
            level: return value of `begin_step` for the step.

        Returns:
            The gradient if it must be read now, one tensor per parameter; else None.
        """
        # A subclass calls its parent's step, which fires the hooks again.
        return self._arrives_at_update() if level == 1 else None

    def _arrives_at_update(self) -> list[torch.Tensor | None] | None:
        """Return the updating optimizer's gradient to be read: not if it was read at the cut."""
        if not self._at_cut:
            return self._begin()
        self._arrived = self._read_now()
        self._backward_before, self._backward_ran = self._backward_ran, False
        return None

    def _begin(self) -> list[torch.Tensor | None]:
        """Store, before the canaries are removed, whether the gradient is raw; return it."""
        self.taken_out, self._raw_entries = False, None
        self._raw = all(self._is_raw(j) for j in self._index)
        self._backward_left = {}
        return self.grads()

    def raw(self) -> Entries:
        """Return the entries of the gradient that is to be read, canaries included."""
        if self._raw_entries is None:
            self._raw_entries = self._read_now()
        return self._raw_entries

    def read(self, taken: FloatArray | None, *, changed: bool = False) -> bool:
        """Read the gradient, and remove the canary.

        Args:
            taken: amount to subtract at each coordinate, ``[n]``; None for nothing.
            changed: whether the canary was removed from the gradient in another way.

        Returns:
            `is_sure`.
        """
        self.taken_out = changed
        if changed:
            self._raw_entries = None
        self._left = raw = self.raw()
        if taken is not None:
            self._left = self.reader.take_out(self.grads(), raw, taken)
            self.taken_out = True
        self.weights.start()
        self._arrived = self._source = None
        self._backward_ran = self._backward_before = False
        return self.is_sure

    def take_out(self, taken: FloatArray, source: Sequence[torch.Tensor | None]) -> None:
        """Remove the canary from a gradient that is not read.

        Args:
            taken: as for `read`.
            source: the gradient, one tensor per parameter, edited in place.
        """
        self._source = source
        self.reader.take_out(source, self.reader.read(source), taken)
        self.taken_out = True

    def remove(self) -> None:
        """Unregister the hooks."""
        self._handles.remove()
        self.reset()

    def end_step(self) -> Observation | None:
        """End a step of the optimizer; return its reading after the update, else None."""
        self._depth = max(self._depth - 1, 0)
        if self._depth or self._left is None:  # the hooks may have been renewed inside a step
            return None
        return self._end(trusted=self._trusted)

    def _end(self, *, trusted: bool, again: bool = False) -> Observation:
        """Compare the gradient after the update with the one that was read.

        Args:
            trusted: whether the update started from the gradient that it was given.
            again: whether the closure ran more than once, so that it is not known which run's
                gradient this is.
        """
        assert self._left is not None
        at_cut, backward, raw = self._at_cut, self._backward_ran, self.raw()
        left, arrived, used = self._left, self._arrived, self._read_now()
        dropped = any(grad is None for grad in self._grads())
        moves = self.weights.end()
        self._forget()
        # All that waits on a device comes home with the first of these.
        values, dead = left.array, raw.array == 0.0
        at_update = None if arrived is None else arrived.array
        now = used.array if at_update is None or not dropped else at_update  # dropped in the update
        started = values if at_update is None else at_update
        factor = None if at_update is None else factor_of(values, at_update)
        same = bool((started.view(np.int64) == now.view(np.int64)).all())  # NaN equals itself
        behind = arrived is not None and self._backward_before and factor is None
        if again and not at_cut:
            return Observation(values=values, unclear=True)
        if not same and backward:
            # One of torch's optimizers runs a backward pass only by the training's closure.
            if not at_cut or self._trusted:
                return Observation(values=now, replaced=True)
            behind = True
        # In-place changes by one of torch's own optimizers are part of its update.
        if self._trusted:
            same, now = True, started
        untouched = same and (arrived is None or factor is not None)
        return Observation(
            values=values,
            unclear=not (same or trusted or at_cut),
            at_cut=at_cut,
            behind=behind,
            factor=factor,
            used=None if untouched else now,
            moves=None if moves is None else moves(),
            raw=self._raw,
            dead=dead if dead.any() else None,
        )

    def is_unreleased(self) -> bool:
        """Return whether the gradients are of a backward pass since the last update, without noise.

        Those that a `DPOptimizer` of another training has replaced by its noisy sums have noise.
        """
        summed = any(total is not None for total in summed_by_opacus(self._params))
        return bool(self._backward_left) and (any(map(self._is_raw, self._index)) or not summed)

    def _note_backward(self, param: torch.nn.Parameter) -> None:
        self._backward_ran = True
        if self._note is not None:
            self._note(param)
        if param.grad is not None:
            self._backward_left[id(param)] = (param.grad.data_ptr(), param.grad._version)

    def _is_raw(self, tensor: int) -> bool:
        grad, left = self._grad(tensor), self._backward_left.get(id(self._params[tensor]))
        return grad is not None and left == (grad.data_ptr(), grad._version)

    def _grad(self, tensor: int) -> torch.Tensor | None:
        """Return the gradient of a tensor of the layout, from ``p.grad`` or the source."""
        return self._params[tensor].grad if self._source is None else self._source[tensor]

    def _grads(self) -> list[torch.Tensor | None]:
        return [self._grad(j) for j in self._index]

    def grads(self) -> list[torch.Tensor | None]:
        """Return the gradients that are read now, one tensor per parameter of the layout."""
        return [p.grad for p in self._params] if self._source is None else [*self._source]

    def _read_now(self) -> Entries:
        return self.reader.read(self.grads())
