"""Reads the noisy gradient, removes the canaries, and compares it with the one the update uses.

By post-processing, anything computed from a noisy gradient is as private as that gradient. So the
gradient is read at the *cut*, the first point where the noise is known to be included. If an
implementation exposes this point, the session calls `GradientTap.noise_is_in` there. Otherwise the
step hooks of the innermost torch optimizer work for every implementation: they run after clipping,
noise, scaling and reduction, and before the update.

A tap is passive: it installs no step hooks and makes no callbacks. The session drives it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.hooks.boundary import Handles, entry
from lightning_audit.layout import Direction, FloatArray, IndexArray, RowParts, by_tensor

# --- Views of a tensor's memory as a numpy array, in which single entries are accessed faster.


def numpy_view(tensor: torch.Tensor) -> NDArray[Any] | None:
    """Return the entries of a tensor as a flat numpy array that shares its memory, or None.

    Indexing a few dozen entries takes torch several times as long as numpy, and a step does so for
    every tensor. Only contiguous float32 and float64 tensors on a CPU have such a view.
    """
    plain = tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64)
    if not plain or not tensor.is_contiguous():
        return None
    entries: NDArray[Any] = tensor.detach().numpy().reshape(-1)
    return entries


def numpy_views(tensors: Sequence[torch.Tensor | None]) -> list[NDArray[Any]] | None:
    """Return the `numpy_view` of each tensor; None unless all of them have one."""
    views: list[NDArray[Any]] = []
    for tensor in tensors:
        view = None if tensor is None else numpy_view(tensor)
        if view is None:
            return None
        views.append(view)
    return views


def entries_at(tensors: Sequence[torch.Tensor], coordinates: dict[int, IndexArray]) -> FloatArray:
    """Return the entries of tensors at given coordinates, in double precision, ``[n]``.

    Args:
        tensors: one tensor per key of ``coordinates``, in its order, on any device.
        coordinates: tensor -> flat coordinates to read.
    """
    pieces: list[FloatArray] = []
    away: list[tuple[int, torch.Tensor]] = []
    for tensor, index in zip(tensors, coordinates.values(), strict=True):
        view = numpy_view(tensor)
        if view is None:
            where = torch.from_numpy(index).to(tensor.device)
            away.append((len(pieces), tensor.detach().reshape(-1)[where]))
            pieces.append(np.zeros(0))
        else:
            pieces.append(view[index].astype(np.float64))
    if away:  # one copy for all: each copy from a device synchronizes
        device = away[0][1].device
        read = torch.cat([t.to(device) for _, t in away]).cpu().double().numpy()
        ends = np.cumsum([len(t) for _, t in away])[:-1]
        for (place, _), values in zip(away, np.split(read, ends), strict=True):
            pieces[place] = values
    return np.concatenate(pieces)


@torch.no_grad()
def add_along(
    tensors: Sequence[torch.Tensor | None], directions: Sequence[Direction], weights: FloatArray
) -> None:
    """Add each direction, times its weight, to the tensors of a layout.

    Args:
        tensors: one per tensor of the layout; None is skipped.
        directions: directions over the layout, ``[n]``.
        weights: their factors, ``[n]``.
    """
    writes: list[tuple[Any, ...]] = []
    puts: list[tuple[Any, ...]] = []
    for j, parts in by_tensor(directions).items():
        tensor = tensors[j]
        if tensor is None:
            continue
        entries = numpy_view(tensor)
        if entries is not None:
            writes += [
                (entries, part.index, (weights[row] * part.value).astype(entries.dtype))
                for row, part in parts
            ]
            continue
        rows, index, value = _joined(parts)
        if not tensor.dim():
            tensor = tensor.reshape(1)  # same memory, but can be indexed
        at = torch.unravel_index(torch.from_numpy(index).to(tensor.device), tensor.shape)
        added = torch.from_numpy(weights[rows] * value).to(tensor.device, tensor.dtype)
        puts.append((tensor, at, added))
    for entries, index, amount in writes:  # all or nothing: a failure above wrote nothing
        entries[index] += amount
    for tensor, at, added in puts:
        tensor.index_put_(at, added, accumulate=True)


def write_rows(
    buffers: Sequence[torch.Tensor], directions: Sequence[Direction], norm: float
) -> None:
    """Write ``norm`` times each direction into the last rows of the buffers, which are zeros.

    Args:
        buffers: one tensor ``[rows, *shape]`` per tensor of the layout.
        directions: vectors over the layout, ``[n]``.
        norm: their factor, in the unit of a per-sample gradient.
    """
    for j, parts in by_tensor(directions).items():
        write_parts(buffers[j][len(buffers[j]) - len(directions) :], parts, norm)


def write_parts(rows: torch.Tensor, parts: RowParts, norm: float) -> None:
    """Write ``norm`` times the directions' parts in one tensor into rows of zeros.

    Args:
        rows: one row per direction, contiguous, ``[n, *shape]``.
        parts: parts of the directions in this tensor.
        norm: factor of the directions, in the unit of a per-sample gradient.
    """
    shape = rows.shape[1:]
    view = numpy_view(rows)
    if view is not None:
        size = math.prod(shape)
        for row, part in parts:
            view[row * size + part.index] = norm * part.value
        return
    number, index, value = _joined(parts)
    at = (number, *np.unravel_index(index, shape)) if shape else (number,)
    where = tuple(torch.from_numpy(i).to(rows.device) for i in at)
    rows[where] = torch.from_numpy(norm * value).to(rows.device, rows.dtype)


def _joined(parts: RowParts) -> tuple[IndexArray, IndexArray, FloatArray]:
    """Return indices of directions, coordinates and entries, ``[m]``, to copy all at once."""
    return (
        np.repeat([row for row, _ in parts], [len(part.index) for _, part in parts]),
        np.concatenate([part.index for _, part in parts]),
        np.concatenate([part.value for _, part in parts]),
    )


#: Largest residual of a gradient that was multiplied by one number, relative to its norm.
_PROPORTIONAL = 1e-4


def factor_of(left: torch.Tensor, arrived: torch.Tensor) -> float | None:
    """Return the number by which ``left`` was multiplied to give ``arrived``; None if none.

    Args:
        left: entries of a gradient, ``[n]``.
        arrived: the same entries later, ``[n]``.
    """
    square = float(left @ left)
    if not (math.isfinite(square) and square > 0.0 and bool(torch.isfinite(arrived).all())):
        return None
    factor = float(left @ arrived) / square
    rest = float((arrived - factor * left).norm())
    return factor if factor > 0.0 and rest <= _PROPORTIONAL * float(arrived.norm()) else None


# --- Reads changes of the weights, in the update and outside of it.

#: Steps that are read: the first `_FIRST`, then one in `_EVERY`.
_FIRST, _EVERY = 100, 8
#: Number of entries of each tensor that are compared at every step.
_ENTRIES = 4


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


class WeightWatch:
    """Reader of the weights at the coordinates of the gradient readings.

    Args:
        params: the parameters, in the order of the layout.
        coordinates: tensor -> flat coordinates to read.
    """

    def __init__(
        self, params: Sequence[torch.nn.Parameter], coordinates: dict[int, IndexArray]
    ) -> None:
        self._params = params
        self._index = coordinates
        #: Comparison of a few entries at every step.
        self.fingerprint = WeightFingerprint(params)
        self._number = 0
        self._before: FloatArray | None = None
        self._after: tuple[int, FloatArray] | None = None

    def start(self) -> None:
        """Read the weights before an update; a later call replaces an earlier one."""
        self.fingerprint.start()
        watched = self._number < _FIRST or self._number % _EVERY == 0
        self._before = self._read() if watched else None

    def end(self) -> Moves | None:
        """Return the changes after an update; None if it was not read."""
        self.fingerprint.end()
        before, number = self._before, self._number
        self.forget()
        self._number += 1
        if before is None:
            return None
        earlier, now = self._after, self._read()
        self._after = (number, now)
        outside = before - earlier[1] if earlier and earlier[0] == number - 1 else None
        return Moves(now - before, before, outside)

    def since(self) -> FloatArray | None:
        """Return the changes since the last update, ``[n]``; None if it was not read."""
        last = self._after
        return self._read() - last[1] if last and last[0] == self._number - 1 else None

    def forget(self) -> None:
        """Discard a step that was not completed."""
        self._before = None

    def _read(self) -> FloatArray:
        return entries_at([self._params[j] for j in self._index], self._index)


class WeightFingerprint:
    """Comparison of a few entries of each tensor at every step.

    If a tensor has no numpy view, as on a GPU, its torch version counter is compared instead,
    which misses changes to ``p.data``.

    Args:
        params: the parameters.
    """

    def __init__(self, params: Sequence[torch.nn.Parameter]) -> None:
        self._params = params
        self._places: list[int] = []
        self._views: list[Any] = []
        self._after: list[Any] | None = None
        self._new_epoch = False
        #: Number of steps before which weights had changed, within an epoch and between epochs.
        self.within, self.between = 0, 0

    def start_epoch(self) -> None:
        """Mark the next step as the first of an epoch."""
        self._new_epoch = True

    def start(self) -> None:
        """Compare before an update, after the step's noise."""
        if self._after is not None and self._after != self._read():
            self.between += self._new_epoch
            self.within += not self._new_epoch
        self._new_epoch = False

    def end(self) -> None:
        """Store the entries after an update."""
        self._after = self._read()

    def _read(self) -> list[Any]:
        places = [p.data_ptr() for p in self._params]
        if places != self._places:
            self._places, self._views = places, [_few(p) for p in self._params]
        return [
            p._version if view is None else view.tolist()
            for p, view in zip(self._params, self._views, strict=True)
        ]


def _few(param: torch.nn.Parameter) -> Any:
    """Return a view of a few entries, or None."""
    entries = numpy_view(param)
    return None if entries is None else entries[:: max(1, len(entries) // _ENTRIES)][:_ENTRIES]


# --- Reading of one step's gradient, from its noise to the end of its update.


@dataclass(frozen=True)
class Reading:
    """The gradient of one step at the observed coordinates.

    Args:
        values: entries of the noisy gradient without canaries, ``[n]`` in the order of the tap's
            coordinates; NaN if a parameter had no gradient. If the gradient was replaced, the
            entries after the update.
        replaced: whether a backward pass ran between the reading and the end of the update, so that
            the update used another gradient than the one that was read.
        unclear: whether an optimizer that is not torch's own changed the gradient without a
            backward pass, so that it is not known which gradient the update used.
        at_cut: whether it was read right after the noise was added, before the updating optimizer
            was called.
        factor: factor by which the gradient was multiplied between the cut and the update; None if
            it was changed in another way, or not read at the cut.
        used: the gradient after the update, ``[n]``; None if its bits are those of ``values``.
        moves: changes of the weights; None if they were not read.
        raw: whether the gradient that was read is that of a backward pass, not written to since.
        dead: which entries were exactly zero when read, canaries included, ``[n]``; None if none
            was.
    """

    values: FloatArray
    replaced: bool = False
    unclear: bool = False
    at_cut: bool = False
    factor: float | None = None
    used: FloatArray | None = None
    moves: Moves | None = None
    raw: bool = False
    dead: NDArray[np.bool_] | None = None


# --- Reads the noisy gradient together with its clipped sum, if the optimizer keeps the sum.

#: Largest number of noise entries whose values are read.
BLOCK = 16384
#: Largest number of entries copied at once; largest size of a small tensor.
_AT_ONCE, _SMALL = 2**22, 2**14


@dataclass(frozen=True)
class NoiseReading:
    """A step's gradient and its clipped sum at the same coordinates, canaries included in both.

    Args:
        released: entries of the noisy gradient, ``[n]``.
        sums: entries of the clipped sum before the noise, ``[n]``; None if the sum is not kept.
        sum_norm: norm of the whole clipped sum; None if the sum is not kept or not requested.
    """

    released: FloatArray
    sums: FloatArray | None
    sum_norm: float | None = None


@torch.no_grad()
def read_noise(
    params: Sequence[torch.nn.Parameter],
    released: Sequence[torch.Tensor | None],
    coordinates: dict[int, IndexArray],
    *,
    sums: bool,
    norm: bool,
) -> NoiseReading | None:
    """Read a step between its noise and its update.

    Args:
        params: the parameters, in the order of the layout.
        released: the noisy gradient, one tensor per parameter.
        coordinates: tensor -> flat coordinates to read.
        sums: whether ``summed_grad`` contains the sums to which the noise was added.
        norm: whether to compute the norm of the whole sum.

    Returns:
        The reading; None if a gradient is missing or has lower than single precision.
    """
    grads = _entries([released[j] for j in coordinates], coordinates)
    if grads is None:
        return None
    held = [clipped_sum(p, g) for p, g in zip(params, released, strict=True)] if sums else []
    parts = _entries([held[j] for j in coordinates], coordinates) if sums else None
    whole = None
    if norm and parts is not None:
        norms = [part.norm() for part in held if part is not None]
        whole = float(torch.stack([n.to(norms[0].device) for n in norms]).cpu().double().norm())
    return NoiseReading(grads, parts, whole)


@dataclass(frozen=True)
class TensorReading:
    """A step's gradient and clipped sum over whole tensors, canaries included in both.

    Args:
        entries: number of entries of each tensor, ``[L]``.
        released: sum of squares of the gradient times its divisor, ``[L]``.
        noise: sum of squares of the gradient times its divisor minus the clipped sum, ``[L]``.
        block: the noise (the same difference) at the first and the last entries of each tensor,
            ``[m]``; None if not requested.
    """

    entries: FloatArray
    released: FloatArray
    noise: FloatArray
    block: FloatArray | None


@torch.no_grad()
def read_tensors(
    params: Sequence[torch.nn.Parameter],
    released: Sequence[torch.Tensor | None],
    divisor: float,
    *,
    block: bool,
) -> TensorReading | None:
    """Read whole tensors of a step between its noise and its update.

    Args:
        params: the parameters, in the order of the layout.
        released: the noisy gradient, one tensor per parameter.
        divisor: divisor of the noisy sum.
        block: whether to return the first and the last entries of each tensor, about `BLOCK` in
            all.

    Returns:
        The reading; None if a gradient or a sum is missing, or has neither single nor double
        precision.
    """
    pairs = [(g, clipped_sum(p, g)) for p, g in zip(params, released, strict=True)]
    squares, ends = [], []
    most = max(2, BLOCK // max(len(pairs), 1))
    for grad, held in pairs:
        if grad is None or held is None or not (_is_fine(grad) and _is_fine(held)):
            return None
        flat, sums = grad.detach().reshape(-1), held.detach().reshape(-1)
        if flat.shape != sums.shape or flat.device != sums.device:
            return None
        squares.append(_squares(flat, sums, divisor))
        if block:
            half = min(most, len(flat)) // 2
            where = [slice(0, half), slice(len(flat) - half, len(flat))]
            ends += [flat[at] * divisor - sums[at] for at in where]
    if not squares:
        return None
    device = squares[0].device
    both = torch.stack([own.to(device) for own in squares]).cpu().double().numpy()
    edge = torch.cat([end.to(device) for end in ends]).cpu().double().numpy() if block else None
    sizes = np.array([float(p.numel()) for p in params])
    return TensorReading(sizes, both[:, 0], both[:, 1], edge)


def _squares(flat: torch.Tensor, sums: torch.Tensor, divisor: float) -> torch.Tensor:
    """Return the sums of squares of gradient times divisor, and of that minus the clipped sum."""
    views = numpy_views([flat, sums]) if len(flat) <= _SMALL else None
    if views is not None:  # numpy is faster for small tensors
        scaled = views[0].astype(np.float64) * divisor
        rest = scaled - views[1]
        return torch.from_numpy(np.array([scaled @ scaled, rest @ rest]))
    found = torch.zeros(2, dtype=torch.float64, device="cpu" if flat.is_mps else flat.device)
    for start in range(0, len(flat), _AT_ONCE):
        grad = flat[start : start + _AT_ONCE] * divisor
        rest = grad - sums[start : start + _AT_ONCE]
        found += torch.stack([_square(grad), _square(rest)]).to(found.device)
    return found


def _square(entries: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares, in double precision; computed on the CPU for MPS."""
    if entries.device.type == "mps":
        entries = entries.cpu()
    norm: torch.Tensor = torch.linalg.vector_norm(entries, dtype=torch.float64)
    return norm.square()


def _is_fine(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64)


def clipped_sum(param: torch.nn.Parameter, grad: torch.Tensor | None) -> torch.Tensor | None:
    """Return the clipped sum that Opacus keeps, unless it became the gradient in place.

    Args:
        param: a parameter.
        grad: its noisy gradient.
    """
    held: torch.Tensor | None = getattr(param, "summed_grad", None)
    if held is None or grad is None or held.data_ptr() == grad.data_ptr():
        return None
    return held


def clipped_sums(params: Sequence[torch.nn.Parameter]) -> list[torch.Tensor | None]:
    """Return the `clipped_sum` of each parameter for its ``p.grad``."""
    return [clipped_sum(p, p.grad) for p in params]


def _entries(
    tensors: Sequence[torch.Tensor | None], coordinates: dict[int, IndexArray]
) -> FloatArray | None:
    held = [t for t in tensors if t is not None and t.dtype in (torch.float32, torch.float64)]
    return entries_at(held, coordinates) if len(held) == len(tensors) else None


# --- Reads the noisy gradient, removes the canaries, and compares it with the one the update uses.


class GradientTap:
    """Reader of the gradient of each step of one torch optimizer.

    A step calls `enters`, `arrives` and `leaves`, and `noise_is_in` if the cut is known. If
    `noise_is_in` or `arrives` returns True, the caller must call `read` next.

    Args:
        optimizer: the innermost optimizer.
        params: the parameters to read, in the order of the layout.
        coordinates: tensor -> flat coordinates to read, distinct in a tensor.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Sequence[torch.nn.Parameter],
        coordinates: dict[int, IndexArray],
    ) -> None:
        self._params = params
        # torch's own optimizers may add momentum or weight decay to p.grad in place: the gradient
        # that the update starts from is the one that was read.
        self._trusted = type(optimizer).__module__.startswith("torch.optim.")
        self._index = coordinates
        self._where = {
            j: torch.from_numpy(index).to(params[j].device) for j, index in coordinates.items()
        }
        ends = np.cumsum([0, *(len(index) for index in coordinates.values())]).tolist()
        self._spans = [slice(*pair) for pair in itertools.pairwise(ends)]
        self._size = ends[-1]
        self._left: torch.Tensor | None = None
        #: Whether the gradient was read at the cut, from which tensors, and what the update got.
        self._at_cut = False
        self._source: Sequence[torch.Tensor | None] | None = None
        self._arrived: torch.Tensor | None = None
        #: Whether the canaries were removed from the step's gradient.
        self.taken_out = False
        #: Which entries were zero before the canaries were removed.
        self._dead: NDArray[np.bool_] | None = None
        #: The gradients that were read last, their addresses, and views of their entries.
        self._seen: list[tuple[torch.Tensor, int]] = []
        self._entries: list[NDArray[Any]] = []
        #: Reads the weights around each update.
        self.weights = WeightWatch(params, coordinates)
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
    def inside_step(self) -> bool:
        """Whether the step is between reading the gradient and the end of its update."""
        return self._depth > 0 or self._at_cut

    def reset(self) -> None:
        """Discard a step that was interrupted between its hooks."""
        self._depth, self.taken_out = 0, False
        self.weights.forget()
        self._forget()

    def reads_at(self, level: int) -> bool:
        """Return whether a gradient not yet read is read at this level of `enters`."""
        return level == 1

    def skips(self) -> None:
        """End a step of the optimizer without reading it."""
        self._depth = max(self._depth - 1, 0)

    def _forget(self) -> None:
        self._left = self._arrived = self._dead = None
        self._at_cut, self._source = False, None
        self._seen, self._entries = [], []  # else memory is held in the next backward

    @torch.no_grad()
    def noise_is_in(self, tensors: Sequence[torch.Tensor | None] | None = None) -> bool:
        """Begin a step at the cut, after its noise and before any post-processing.

        Args:
            tensors: one tensor per parameter, of its shape, edited in place; None for ``p.grad``.

        Returns:
            Whether the gradient must be read now.
        """
        self._source = tensors
        if self._at_cut and self._seen and all(map(_unmoved, self._grads(), self._seen)):
            # Something was added in place; the canary has already been removed.
            self._left = self._gather()
            self._source = None
            return False
        self._at_cut = True
        self._begin()
        return True

    def enters(self) -> int:
        """Begin a step of the optimizer; return the number of nested steps, including it."""
        self._depth += 1
        return self._depth

    @torch.no_grad()
    def arrives(self, level: int) -> bool:
        """Proceed to the update of a step, whose gradients are computed.

        Args:
            level: return value of `enters` for the step.

        Returns:
            Whether the gradient must be read now.
        """
        # A subclass calls its parent's step, which fires the hooks again.
        return level == 1 and self._arrives_at_update()

    def _arrives_at_update(self) -> bool:
        """Return whether to read the updating optimizer's gradient: not if read at the cut."""
        if not self._at_cut:
            self._begin()
            return True
        self._arrived = self._gather()
        self._backward_before, self._backward_ran = self._backward_ran, False
        return False

    def _begin(self) -> None:
        """Store, before the canaries are removed, whether the gradient is raw."""
        self.taken_out = False
        self._raw = all(self._is_raw(j) for j in self._index)
        self._backward_left = {}

    @torch.no_grad()
    def read(self, taken: FloatArray | None) -> bool:
        """Read the gradient, and remove the canary.

        Args:
            taken: amount to subtract at each coordinate, ``[n]``; None for nothing.

        Returns:
            Whether all of it is finite.
        """
        zeros = np.zeros(self._size, dtype=bool)
        self._left = self._gather(taken, zeros)
        self._dead = zeros if zeros.any() else None
        self.weights.start()
        self._arrived = self._source = None
        self._backward_ran = self._backward_before = False
        return math.isfinite(float(self._left.sum()))

    @torch.no_grad()
    def take_out(self, taken: FloatArray, source: Sequence[torch.Tensor | None]) -> None:
        """Remove the canary from a gradient that is not read.

        Args:
            taken: as for `read`.
            source: the gradient, one tensor per parameter, edited in place.
        """
        self._source, self._seen = source, []
        self._gather(taken)

    def remove(self) -> None:
        """Unregister the hooks."""
        self._handles.remove()
        self.reset()

    @torch.no_grad()
    def leaves(self) -> Reading | None:
        """End a step of the optimizer; return its reading after the update, else None."""
        self._depth = max(self._depth - 1, 0)
        if self._depth or self._left is None:  # the hooks may have been renewed inside a step
            return None
        return self._end(trusted=self._trusted)

    def _end(self, *, trusted: bool, again: bool = False) -> Reading:
        """Compare the gradient after the update with the one that was read.

        Args:
            trusted: whether the update started from the gradient that it was given.
            again: whether the closure ran more than once, so that it is not known which run's
                gradient this is.
        """
        left, arrived = self._left, self._arrived
        assert left is not None
        at_cut, backward, dead = self._at_cut, self._backward_ran, self._dead
        used, moves = self._gather(), self.weights.end()
        if arrived is not None and any(grad is None for grad in self._grads()):
            used = arrived  # the step dropped its gradient after the update
        self._forget()
        started = left if arrived is None else arrived
        factor = factor_of(left, arrived) if arrived is not None else None
        same = _same_bits(started, used)
        values = left.cpu().numpy()
        if arrived is not None and self._backward_before and factor is None:
            return Reading(used.cpu().numpy(), replaced=True)
        if again and not at_cut:
            return Reading(values, unclear=True)
        if not same and backward:
            return Reading(used.cpu().numpy(), replaced=True)
        # In-place changes by one of torch's own optimizers are part of its update.
        if self._trusted:
            same, used = True, started
        untouched = same and (arrived is None or factor is not None)
        return Reading(
            values,
            unclear=not (same or trusted or at_cut),
            at_cut=at_cut,
            factor=factor,
            used=None if untouched else used.cpu().numpy(),
            moves=moves,
            raw=self._raw,
            dead=dead,
        )

    def _note_backward(self, param: torch.Tensor) -> None:
        self._backward_ran = True
        if param.grad is not None:
            self._backward_left[id(param)] = (param.grad.data_ptr(), param.grad._version)

    def _is_raw(self, tensor: int) -> bool:
        grad, left = self._grad(tensor), self._backward_left.get(id(self._params[tensor]))
        return grad is not None and left == (grad.data_ptr(), grad._version)

    def _gather(
        self, taken: FloatArray | None = None, zeros: NDArray[np.bool_] | None = None
    ) -> torch.Tensor:
        """Subtract an amount at each coordinate of the gradient, and read it.

        Args:
            taken: the amounts, ``[n]``; None for nothing.
            zeros: output: which entries were exactly zero before, ``[n]``.
        """
        views = self._views()
        if views is None:
            return self._gather_by_torch(taken, zeros)
        values, writes = np.empty(self._size), []
        for entries, index, span in zip(views, self._index.values(), self._spans, strict=True):
            read = entries[index]
            if zeros is not None:
                zeros[span] = read == 0.0
            if taken is not None and (amounts := taken[span]).any():
                # An entry of zero contains neither noise nor canary: nothing to subtract.
                read -= np.where(read == 0.0, 0.0, amounts).astype(read.dtype)
                writes.append((entries, index, read))
            values[span] = read
        for entries, index, read in writes:  # all or nothing: a failure above wrote nothing
            entries[index] = read
        self.taken_out = self.taken_out or taken is not None
        return torch.from_numpy(values)

    def _grad(self, tensor: int) -> torch.Tensor | None:
        """Return the gradient of a tensor of the layout, from ``p.grad`` or the source."""
        return self._params[tensor].grad if self._source is None else self._source[tensor]

    def _grads(self) -> list[torch.Tensor | None]:
        return [self._grad(j) for j in self._index]

    def grads(self) -> list[torch.Tensor | None]:
        """Return the gradients that are read now, one tensor per parameter of the layout."""
        return [self._grad(j) for j in range(len(self._params))]

    def _views(self) -> list[NDArray[Any]] | None:
        """Return numpy views of the gradients; None unless all of them have one."""
        grads = self._grads()
        if self._seen and all(map(_unmoved, grads, self._seen)):
            return self._entries
        self._seen = []
        views = numpy_views(grads)
        if views is None:
            return None
        self._seen = [(grad, grad.data_ptr()) for grad in grads if grad is not None]
        self._entries = views
        return views

    def _gather_by_torch(
        self, taken: FloatArray | None, zeros: NDArray[np.bool_] | None
    ) -> torch.Tensor:
        """Do the same as `_gather` on any device; NaN if a parameter has no gradient."""
        pieces, empty_before, writes = [], [], []
        for (j, where), span in zip(self._where.items(), self._spans, strict=True):
            grad = self._grad(j)
            if grad is None:
                empty = torch.full((len(where),), torch.nan, dtype=torch.float64)
                pieces.append(empty.to(self._params[j].device))
                empty_before.append(pieces[-1] == 0.0)
                continue
            at = torch.unravel_index(where, grad.shape)
            values = grad[at]
            empty_before.append(values == 0.0)
            if taken is not None and (amounts := taken[span]).any():
                amount = torch.from_numpy(amounts).to(grad.device, grad.dtype)
                values -= torch.where(values == 0.0, torch.zeros_like(amount), amount)
                writes.append((grad, at, values))
            pieces.append(values.to(torch.float64))
        for grad, at, values in writes:
            grad[at] = values
        self.taken_out = self.taken_out or taken is not None
        if zeros is not None:
            zeros[:] = torch.cat(empty_before).cpu().numpy()
        return torch.cat(pieces)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    # As bits: NaN must equal itself here.
    return torch.equal(one.view(torch.int64), other.view(torch.int64))


def _unmoved(grad: torch.Tensor | None, seen: tuple[torch.Tensor, int]) -> bool:
    """Return whether a gradient is the tensor that was read, at the same address."""
    if grad is None or grad is not seen[0]:
        return False
    return grad.data_ptr() == seen[1] and grad.is_contiguous()
