"""Reads the noisy gradient, removes the canaries, and compares it with the one the update uses.

By post-processing, anything computed from a noisy gradient is as private as that gradient. So the
gradient is read at the *cut*, the first point where the noise is known to be included. If an
implementation exposes this point, the session calls `GradientTap.noise_is_in` there. Otherwise the
step hooks of the innermost torch optimizer work for every implementation: they run after clipping,
noise, scaling and reduction, and before the update.

A tap is passive: it installs no step hooks and makes no callbacks. The session drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.hooks.boundary import Handles, entry
from lightning_audit.hooks.gradient_reader import Entries, GradientReader, factor_of
from lightning_audit.layout import FloatArray, IndexArray

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
        reader: reads them with the gradients; None for one of its own.
    """

    def __init__(
        self,
        params: Sequence[torch.nn.Parameter],
        coordinates: dict[int, IndexArray],
        reader: GradientReader | None = None,
    ) -> None:
        self._params = params
        self._reader = reader or GradientReader(params, coordinates)
        #: Comparison of a few entries at every step.
        self.fingerprint = WeightFingerprint(params, self._reader)
        self._number = 0
        self._before: Entries | None = None
        self._after: tuple[int, Entries] | None = None

    def start(self) -> None:
        """Read the weights before an update; a later call replaces an earlier one."""
        self.fingerprint.start()
        watched = self._number < _FIRST or self._number % _EVERY == 0
        self._before = self._reader.read(self._params) if watched else None

    def end(self) -> Callable[[], Moves] | None:
        """Read after an update; return a function that tells the changes, None if not read."""
        self.fingerprint.end()
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


class WeightFingerprint:
    """Comparison of a few entries of each tensor at every step, by their bits.

    Args:
        params: the parameters.
        home: reader with whose readings the entries come home; None to look at each step's end.
    """

    def __init__(
        self, params: Sequence[torch.nn.Parameter], home: GradientReader | None = None
    ) -> None:
        self._params = params
        few = {
            j: np.arange(0, p.numel(), max(1, p.numel() // _ENTRIES))[:_ENTRIES]
            for j, p in enumerate(params)
        }
        self._reader = GradientReader(params, few, home)
        self._after: Entries | None = None
        self._waiting: list[tuple[Entries, Entries, bool]] = []
        self._new_epoch = False
        self._counts = [0, 0]

    @property
    def within(self) -> int:
        """Number of steps before which weights had changed since the last one, in one epoch."""
        self._compare()
        return self._counts[0]

    @property
    def between(self) -> int:
        """The same number for the first steps of epochs."""
        self._compare()
        return self._counts[1]

    def start_epoch(self) -> None:
        """Mark the next step as the first of an epoch."""
        self._new_epoch = True

    def start(self) -> None:
        """Read before an update, after the step's noise."""
        self._compare()  # what came home with the last step
        if self._after is not None:
            self._waiting.append((self._after, self._reader.read(self._params), self._new_epoch))
        self._new_epoch = False

    def end(self) -> None:
        """Read after an update."""
        self._after = self._reader.read(self._params)

    def _compare(self) -> None:
        for after, now, new_epoch in self._waiting:
            self._counts[new_epoch] += not np.array_equal(after.array, now.array, equal_nan=True)
        self._waiting = []


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
#: Largest number of entries copied at once.
_AT_ONCE = 2**22


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
    reader: GradientReader,
    at: IndexArray,
    grads: Entries,
    *,
    sums: bool,
    norm: bool,
) -> Callable[[], NoiseReading] | None:
    """Read a step between its noise and its update.

    Args:
        params: the parameters, in the order of the layout.
        released: the noisy gradient, one tensor per parameter.
        reader: reads the entries.
        at: positions of the noise's coordinates among the reader's.
        grads: the reader's entries of the noisy gradient.
        sums: whether ``summed_grad`` contains the sums to which the noise was added.
        norm: whether to compute the norm of the whole sum.

    Returns:
        Tells the reading when it is home; None if a gradient is missing or has lower than single
        precision.
    """
    if not _all_fine(released, reader):
        return None
    held = [clipped_sum(p, g) for p, g in zip(params, released, strict=True)] if sums else []
    if not (sums and _all_fine(held, reader)):
        return lambda: NoiseReading(grads.array[at], None)
    norms = [_norm(part) for part in held if part is not None] if norm else []
    whole = reader.also(torch.stack([n.to(norms[0].device) for n in norms])) if norms else None
    parts = reader.read(held)

    def told() -> NoiseReading:
        length = None if whole is None else float(np.linalg.norm(whole.array))
        return NoiseReading(grads.array[at], parts.array[at], length)

    return told


def _norm(entries: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = entries.norm()
    return norm


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
    reader: GradientReader,
    *,
    block: bool,
) -> Callable[[], TensorReading] | None:
    """Read whole tensors of a step between its noise and its update.

    Args:
        params: the parameters, in the order of the layout.
        released: the noisy gradient, one tensor per parameter.
        divisor: divisor of the noisy sum.
        reader: brings the values home.
        block: whether to return the first and the last entries of each tensor, about `BLOCK` in
            all.

    Returns:
        Tells the reading when it is home; None if a gradient or a sum is missing, or has neither
        single nor double precision.
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
    both = reader.also(torch.cat([own.to(device) for own in squares]))
    edge = reader.also(torch.cat([end.to(device) for end in ends])) if block else None
    sizes = np.array([float(p.numel()) for p in params])
    return lambda: TensorReading(
        sizes, both.array[::2], both.array[1::2], None if edge is None else edge.array
    )


def _squares(flat: torch.Tensor, sums: torch.Tensor, divisor: float) -> torch.Tensor:
    """Return the sums of squares of gradient times divisor, and of that minus the clipped sum."""
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


def _all_fine(tensors: Sequence[torch.Tensor | None], reader: GradientReader) -> bool:
    own = [tensors[j] for j in reader.tensors]
    return all(t is not None and _is_fine(t) for t in own)


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
        self.weights = WeightWatch(params, coordinates, self.reader)
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
        self._left = self._arrived = self._raw_entries = None
        self._at_cut, self._source = False, None
        self.reader.end_step()  # else memory is held in the next backward

    @torch.no_grad()
    def noise_is_in(self, tensors: Sequence[torch.Tensor | None] | None = None) -> bool:
        """Begin a step at the cut, after its noise and before any post-processing.

        Args:
            tensors: one tensor per parameter, of its shape, edited in place; None for ``p.grad``.

        Returns:
            Whether the gradient must be read now.
        """
        self._source = tensors
        if self._at_cut and self._left is not None and self.reader.holds(self.grads()):
            # Something was added in place; the canary has already been removed.
            self._left = self._read_now()
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
        self._arrived = self._read_now()
        self._backward_before, self._backward_ran = self._backward_ran, False
        return False

    def _begin(self) -> None:
        """Store, before the canaries are removed, whether the gradient is raw."""
        self.taken_out, self._raw_entries = False, None
        self._raw = all(self._is_raw(j) for j in self._index)
        self._backward_left = {}

    @torch.no_grad()
    def raw(self) -> Entries:
        """Return the entries of the gradient that is to be read, canaries included."""
        if self._raw_entries is None:
            self._raw_entries = self._read_now()
        return self._raw_entries

    @torch.no_grad()
    def read(self, taken: FloatArray | None) -> None:
        """Read the gradient, and remove the canary.

        Args:
            taken: amount to subtract at each coordinate, ``[n]``; None for nothing.
        """
        if self.taken_out:  # a source has removed its canary itself
            self._raw_entries = None
        self._left = raw = self.raw()
        if taken is not None:
            self._left = self.reader.take_out(self.grads(), raw, taken)
            self.taken_out = True
        self.weights.start()
        self._arrived = self._source = None
        self._backward_ran = self._backward_before = False

    @torch.no_grad()
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
        if arrived is not None and self._backward_before and factor is None:
            return Reading(now, replaced=True)
        if again and not at_cut:
            return Reading(values, unclear=True)
        if not same and backward:
            return Reading(now, replaced=True)
        # In-place changes by one of torch's own optimizers are part of its update.
        if self._trusted:
            same, now = True, started
        untouched = same and (arrived is None or factor is not None)
        return Reading(
            values,
            unclear=not (same or trusted or at_cut),
            at_cut=at_cut,
            factor=factor,
            used=None if untouched else now,
            moves=None if moves is None else moves(),
            raw=self._raw,
            dead=dead if dead.any() else None,
        )

    def _note_backward(self, param: torch.Tensor) -> None:
        self._backward_ran = True
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
        return [self._grad(j) for j in range(len(self._params))]

    def _read_now(self) -> Entries:
        return self.reader.read(self.grads())
