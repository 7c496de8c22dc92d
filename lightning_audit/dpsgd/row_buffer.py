"""The buffer that Opacus adds a parameter's per-sample gradients to, with canaries behind them."""

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
    """Stands in the buffer's place until the first gradients are added to it.

    They are copied into a tensor that is made then, as late as Opacus would make it, and that takes
    the place of this object. Zeros to add to would take as long to write as the gradients.

    Args:
        param: the parameter.
        batch: number of the batch's rows.
        spare: number of rows behind them.
        parts: what these hold, none for zeros alone.
        norm: what the parts are multiplied by.
    """

    def __init__(
        self, param: torch.nn.Parameter, batch: int, spare: int, parts: RowParts, norm: float
    ) -> None:
        #: All rows, once they are there, and the batch's alone.
        self.whole = torch.empty(0)
        self._own = torch.empty(0)
        self._param, self._batch, self._spare = param, batch, spare
        self._parts, self._norm = parts, norm
        self._boundary = current()
        setattr(param, BUFFER, self)

    # Else Python would take what can be indexed for an endless sequence.
    __iter__ = None

    # What Opacus does is `buffer[:n] += gradients`: Python's three calls for it.

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
        """The audit has failed: hold the batch's rows alone, as Opacus would."""
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
        """Let the parameter's per-sample gradients show the batch's rows alone."""
        exchange(self._param, self.whole, self._own)

    def arrived(self) -> bool:
        """Whether the rows are among the parameter's per-sample gradients, concealed or not."""
        held = getattr(self._param, "grad_sample", None)
        tensors = held if isinstance(held, list) else [held]
        return any(tensor is self._own or tensor is self.whole for tensor in tensors)

    def reveal(self) -> torch.Tensor:
        """Let them show all rows; the tensor of these."""
        exchange(self._param, self._own, self.whole)
        return self.whole

    def withdraw(self) -> None:
        """Leave the batch's rows alone wherever the buffer got to, and nothing of it elsewhere."""
        self.conceal()
        held = getattr(self._param, BUFFER, None)
        if held is self:
            delattr(self._param, BUFFER)
        elif held is self.whole:  # a part of the backward pass is in it
            setattr(self._param, BUFFER, self._own)


def exchange(param: Any, old: torch.Tensor, new: torch.Tensor) -> None:
    """Put a tensor in the place of another among a parameter's per-sample gradients, if it is."""
    held = getattr(param, "grad_sample", None)
    if isinstance(held, list):
        held[:] = [new if tensor is old else tensor for tensor in held]
    elif held is old:
        param.grad_sample = new


@cache
def opacus_adds() -> bool:
    """Whether the installed Opacus fills a buffer that it finds as `RowBuffer` expects."""
    param = torch.nn.Parameter(torch.zeros(()))
    buffer = RowBuffer(param, batch=2, spare=1, parts=(), norm=1.0)
    try:
        for _ in range(2):
            create_or_accumulate_grad_sample(
                param=param, grad_sample=torch.ones(1), max_batch_len=2
            )
    except Exception:  # whatever it tried, `RowBuffer` is not for it
        return False
    return getattr(param, BUFFER) is buffer.whole and buffer.whole.tolist() == [2.0, 0.0, 0.0]
