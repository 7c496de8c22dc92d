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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.taps.boundary import Handles, entry
from lightning_audit.taps.gradient_reading import Reading
from lightning_audit.taps.tensor_views import factor_of, numpy_views
from lightning_audit.taps.weight_watch import WeightWatch


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
