"""Buffer to which Opacus adds a parameter's per-sample gradients, with canaries after them."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

import torch
from opacus.grad_sample.grad_sample_module import create_or_accumulate_grad_sample

from lightning_audit.layout import RowParts
from lightning_audit.taps.boundary import current, entry
from lightning_audit.taps.tensor_views import write_parts

#: Where Opacus looks for a buffer.
BUFFER = "_current_grad_sample"


class RowBuffer:
    """Placeholder for Opacus' buffer until the first gradients are added to it.

    Only then is a tensor allocated, as late as by Opacus, and the gradients are copied into it. The
    tensor replaces this object. A buffer of zeros would take as long to write as the gradients.

    Args:
        param: the parameter.
        batch: number of the batch's rows.
        spare: number of rows after them.
        parts: entries of the spare rows; empty for zeros.
        norm: factor of the parts.
    """

    def __init__(
        self, param: torch.nn.Parameter, batch: int, spare: int, parts: RowParts, norm: float
    ) -> None:
        #: All rows after the gradients were added, and a view of the batch's rows.
        self.whole = torch.empty(0)
        self._own = torch.empty(0)
        self._param, self._batch, self._spare = param, batch, spare
        self._parts, self._norm = parts, norm
        self._boundary = current()
        setattr(param, BUFFER, self)

    # Otherwise Python would iterate over it as an endless sequence, since it can be indexed.
    __iter__ = None

    # Opacus executes `buffer[:n] += gradients`, for which Python makes the following three calls.

    def _slice(self, rows: slice) -> RowBuffer:
        return self

    def _add(self, gradients: torch.Tensor) -> RowBuffer:
        count, size = len(gradients), self._batch + self._spare
        whole = gradients.new_empty((size, *gradients.shape[1:]))
        whole[:count].copy_(gradients)
        whole[count:].zero_()
        if self._parts:
            write_parts(whole[self._batch :], self._parts, self._norm)
        self.whole, self._own = whole, whole[: self._batch]
        return self

    def _add_alone(self, gradients: torch.Tensor) -> RowBuffer:
        """Allocate the batch's rows only, as Opacus would: the audit has failed."""
        whole = gradients.new_zeros((self._batch, *gradients.shape[1:]))
        whole[: len(gradients)] = gradients
        self.whole = self._own = whole
        return self

    def _put(self, rows: slice, written: RowBuffer) -> None:
        setattr(self._param, BUFFER, self.whole)

    def _put_alone(self, rows: slice, written: RowBuffer) -> None:
        setattr(self._param, BUFFER, self._own)

    _of = attrgetter("_boundary")
    __getitem__ = entry(_slice, _slice, _of)
    __iadd__ = entry(_add, _add_alone, _of)
    __setitem__ = entry(_put, _put_alone, _of)

    def conceal(self) -> None:
        """Replace the parameter's per-sample gradients by the view of the batch's rows."""
        exchange(self._param, self.whole, self._own)

    def arrived(self) -> bool:
        """Return whether the rows are in the parameter's per-sample gradients, hidden or not."""
        held = getattr(self._param, "grad_sample", None)
        tensors = held if isinstance(held, list) else [held]
        return any(tensor is self._own or tensor is self.whole for tensor in tensors)

    def reveal(self) -> torch.Tensor:
        """Replace the view by all rows, and return these."""
        exchange(self._param, self._own, self.whole)
        return self.whole

    def withdraw(self) -> None:
        """Remove the canaries' rows from the parameter's gradients and buffer."""
        self.conceal()
        held = getattr(self._param, BUFFER, None)
        if held is self:
            delattr(self._param, BUFFER)
        elif held is self.whole:  # a part of the backward pass is in it
            setattr(self._param, BUFFER, self._own)


def exchange(param: Any, old: torch.Tensor, new: torch.Tensor) -> None:
    """Replace ``old`` by ``new`` in a parameter's per-sample gradients, if it is there."""
    held = getattr(param, "grad_sample", None)
    if isinstance(held, list):
        held[:] = [new if tensor is old else tensor for tensor in held]
    elif held is old:
        param.grad_sample = new


@cache
def opacus_adds() -> bool:
    """Return whether the installed Opacus fills an existing buffer as `RowBuffer` expects."""
    param = torch.nn.Parameter(torch.zeros(()))
    buffer = RowBuffer(param, batch=2, spare=1, parts=(), norm=1.0)
    try:
        for _ in range(2):
            create_or_accumulate_grad_sample(
                param=param, grad_sample=torch.ones(1), max_batch_len=2
            )
    except Exception:  # any exception shows that `RowBuffer` cannot be used
        return False
    return getattr(param, BUFFER) is buffer.whole and buffer.whole.tolist() == [2.0, 0.0, 0.0]
