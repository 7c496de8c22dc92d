"""Reads the final gradient inside the innermost optimizer's step, and takes the canary out.

One place serves every implementation: the innermost torch optimizer's step hooks run after
clipping, noise, scaling and reduction, and before the update.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.dpsgd.views import numpy_view
from lightning_audit.layout import FloatArray, IndexArray


@dataclass(frozen=True)
class Reading:
    """The gradient of one step at the observed coordinates.

    Args:
        values: entries of the final gradient, canaries already taken out, ``[n]`` in the order of
            the tap's coordinates; NaN where a parameter had no gradient. Where the gradient was
            replaced, those that were there when the update was done.
        replaced: a backward pass ran between the reading and the end of the update, which used
            another gradient than the one that was read.
        unclear: the gradient was changed without a backward pass, by an optimizer that is not
            torch's own, so that it cannot be told which gradient the update used.
    """

    values: FloatArray
    replaced: bool = False
    unclear: bool = False


class GradientTap:
    """Step hooks on one torch optimizer.

    Args:
        optimizer: the innermost optimizer.
        params: the parameters to read, in the order of the layout.
        coordinates: tensor -> flat coordinates to read, distinct in a tensor.
        before: called first in every step; returns what to take out of the gradient: an amount for
            each coordinate, ``[n]``, or None for nothing.
        after: called when the update is done, with the `Reading`.
        lost: called before the update where what was read is not finite.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Sequence[torch.nn.Parameter],
        coordinates: dict[int, IndexArray],
        before: Callable[[], FloatArray | None],
        after: Callable[[Reading], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        self._params = params
        self._before, self._after, self._lost = before, after, lost
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
        #: The gradients that were read last, where they lay, and their entries.
        self._seen: list[tuple[torch.Tensor, int]] = []
        self._entries: list[NDArray[Any]] = []
        self._depth = 0
        self._backward_ran = False
        self._handles: list[Any] = [
            optimizer.register_step_pre_hook(self._pre),
            optimizer.register_step_post_hook(self._post),
        ]
        for j in coordinates:
            register = params[j].register_post_accumulate_grad_hook
            self._handles.append(register(self._note_backward))  # type: ignore[no-untyped-call]

    @property
    def inside_step(self) -> bool:
        """Whether the optimizer is between reading the gradient and the end of its update."""
        return self._depth > 0

    def reset(self) -> None:
        """Forget a step that broke off between its hooks."""
        self._depth, self._left = 0, None
        self._seen, self._entries = [], []

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self.reset()

    @torch.no_grad()
    def _pre(self, *_: Any) -> None:
        self._depth += 1
        if self._depth > 1:  # a subclass calls its parent's step, which fires the hooks again
            return
        self._read()

    def _read(self) -> None:
        self._left = self._gather(self._before())
        self._backward_ran = False
        if self._lost is not None and not math.isfinite(float(self._left.sum())):
            self._lost()

    @torch.no_grad()
    def _post(self, *_: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        left = self._left
        if self._depth or left is None:  # the hooks may have come off and on inside a step
            return
        self._left = None
        used = self._read_again()
        # As bits: NaN must equal itself here.
        if torch.equal(left.view(torch.int64), used.view(torch.int64)):
            self._after(Reading(left.cpu().numpy()))
        elif self._backward_ran:
            self._after(Reading(used.cpu().numpy(), replaced=True))
        else:
            self._after(Reading(left.cpu().numpy(), unclear=not self._trusted))

    def _read_again(self) -> torch.Tensor:
        """What is left of the gradient when the update is done."""
        used = self._gather()
        self._seen, self._entries = [], []  # or they would live on through the next backward pass
        return used

    def _note_backward(self, _: torch.Tensor) -> None:
        self._backward_ran = True

    def _gather(self, taken: FloatArray | None = None) -> torch.Tensor:
        """Read the gradient, after taking out the amount given for each coordinate."""
        views = self._views()
        if views is None:
            return self._gather_by_torch(taken)
        values = np.empty(self._size)
        for entries, index, span in zip(views, self._index.values(), self._spans, strict=True):
            read = entries[index]
            if taken is not None and (amounts := taken[span]).any():
                read -= amounts.astype(read.dtype)
                entries[index] = read
            values[span] = read
        return torch.from_numpy(values)

    def _views(self) -> list[NDArray[Any]] | None:
        """The gradients' memory, tensor by tensor; None unless all of it can be seen by numpy."""
        grads = [self._params[j].grad for j in self._index]
        if self._seen and all(map(_unmoved, grads, self._seen)):
            return self._entries
        self._seen = []
        found = [None if grad is None else numpy_view(grad) for grad in grads]
        views = [view for view in found if view is not None]
        if len(views) < len(found):
            return None
        self._seen = [(grad, grad.data_ptr()) for grad in grads if grad is not None]
        self._entries = views
        return views

    def _gather_by_torch(self, taken: FloatArray | None) -> torch.Tensor:
        """As `_gather`, on any device; NaN where a parameter has no gradient."""
        pieces = []
        for (j, where), span in zip(self._where.items(), self._spans, strict=True):
            param = self._params[j]
            grad = param.grad
            if grad is None:
                empty = torch.full((len(where),), torch.nan, dtype=torch.float64)
                pieces.append(empty.to(param.device))
                continue
            at = torch.unravel_index(where, grad.shape)
            values = grad[at]
            if taken is not None and (amounts := taken[span]).any():
                values -= torch.from_numpy(amounts).to(grad.device, grad.dtype)
                grad[at] = values
            pieces.append(values.to(torch.float64))
        return torch.cat(pieces)


def _unmoved(grad: torch.Tensor | None, seen: tuple[torch.Tensor, int]) -> bool:
    """Whether a gradient is the tensor that was seen, in the memory where it was then."""
    if grad is None or grad is not seen[0]:
        return False
    return grad.data_ptr() == seen[1] and grad.is_contiguous()
