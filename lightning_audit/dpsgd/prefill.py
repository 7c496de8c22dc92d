"""Canary rows without a copy: written beforehand into the buffer that Opacus fills in backward.

Opacus adds each layer's per-sample gradients to ``param._current_grad_sample`` and makes that
tensor the ``grad_sample`` when the layer's backward is done. A buffer that is there before the
backward, with rows to spare that hold the canaries, ends up as the same tensor that appending the
rows would give, bit for bit, and nothing is copied. Where that is not certain `obstacle` says why,
and the rows are appended by copy.

Between the backward pass and the step the gradients show the batch's rows alone, as a view: code
of the user that reads, scales or replaces them there meets no canary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from opacus.grad_sample.grad_sample_module import create_or_accumulate_grad_sample
from opacus.layers.dp_rnn import RNNLinear

from lightning_audit.dpsgd.views import numpy_view
from lightning_audit.layout import Direction, by_tensor

_BUFFER = "_current_grad_sample"


class RowPrefill:
    """Buffers for the per-sample gradients of one backward pass.

    Args:
        params: the parameters of the private optimizer.
        modules: all modules that may compute their gradients.
    """

    def __init__(
        self, params: Sequence[torch.nn.Parameter], modules: Iterable[torch.nn.Module]
    ) -> None:
        self._params = params
        self._hooked = [
            (module, list(module.parameters())) for module in modules if _hook(module) is not None
        ]
        self._buffers: list[torch.Tensor] = []
        #: The batch's rows of each buffer.
        self._own: list[torch.Tensor] = []
        self._batch = 0

    def in_use(self) -> bool:
        """Whether a forward pass has used a parameter; True where that cannot be told."""
        return not self._hooked or any(getattr(p, "_forward_counter", 0) for p in self._params)

    def obstacle(self) -> str:
        """Why the coming backward's rows cannot be written beforehand; empty if they can."""
        if not self._hooked:
            return "no module computes its per-sample gradients in Opacus' backward hooks"
        if not _opacus_adds():
            return "this version of Opacus adds gradients up in another way"
        if any(getattr(p, "grad_sample", None) is not None for p in self._params):
            return "several backward passes are summed up in one step"
        if any(hasattr(p, _BUFFER) for p in self._params):
            return "an earlier backward pass was not finished"
        if any(getattr(p, "_forward_counter", 0) < 1 for p in self._params):
            return "not every trained parameter took part in the forward pass"
        sizes = set()
        for module, params in self._hooked:
            recorded = module.__dict__.get("activations") or []
            if not recorded:
                continue
            hook = _hook(module)
            if isinstance(module, RNNLinear) or hasattr(module, "max_batch_len"):
                return "a recurrent layer's batches have several sizes"
            if hook is None or not hook.keywords.get("batch_first", False):
                return "the batch is not the first dimension"
            inputs = [tensor for call in recorded for tensor in call]
            own = {p.dtype for p in params}
            if any(t.is_floating_point() and t.dtype not in own for t in inputs):
                return "layers compute in another precision than their parameters"
            # Opacus takes the batch's size from the last input, most layers theirs from the first.
            sizes |= {tensor.shape[0] if tensor.dim() else -1 for tensor in inputs}
        if len(sizes) != 1 or min(sizes) < 0:
            return "layers see batches of several sizes"
        self._batch = sizes.pop()
        return ""

    def fill(self, directions: Sequence[Direction], norm: float) -> None:
        """Lay out buffers with a row for each direction behind the batch's; see `write_rows`.

        Only where `obstacle` is empty.
        """
        rows = self._batch + len(directions)
        self._buffers = [p.new_empty((rows, *p.shape), requires_grad=False) for p in self._params]
        for buffer in self._buffers:
            buffer[self._batch :].zero_()
        write_rows(self._buffers, directions, norm)
        self._own = [buffer[: self._batch] for buffer in self._buffers]
        for param, buffer in zip(self._params, self._buffers, strict=True):
            setattr(param, _BUFFER, _Unwritten(param, buffer, self._batch))

    def conceal(self) -> None:
        """After the backward pass: let the gradients show the batch's rows alone."""
        for param, buffer, own in zip(self._params, self._buffers, self._own, strict=False):
            exchange(param, buffer, own)

    def confirm(self) -> list[torch.Tensor]:
        """Put the canaries' rows back; the gradients with them, or nothing where one is absent."""
        self.conceal()
        if not all(
            any(held is own for held in _held(param))
            for param, own in zip(self._params, self._own, strict=False)
        ):
            self.withdraw()
        buffers = self._buffers
        for param, buffer, own in zip(self._params, buffers, self._own, strict=False):
            exchange(param, own, buffer)
        # The step frees the gradients when it is done; a reference here would keep them.
        self._buffers, self._own = [], []
        return buffers

    def withdraw(self) -> None:
        """Leave the batch's rows alone in whatever the buffers have become."""
        self.conceal()
        for j, buffer in enumerate(self._buffers):
            param: Any = self._params[j]
            held = getattr(param, _BUFFER, None)
            if held is buffer:
                param._current_grad_sample = self._own[j]  # a part of the backward pass is in it
            elif isinstance(held, _Unwritten) and held.tensor is buffer:
                del param._current_grad_sample
        self._buffers, self._own = [], []


class _Unwritten:
    """Stands in a buffer's place until Opacus adds to it, and makes that a copy.

    The batch's rows of the buffer need hold no zeros, which would take as long to write as the
    gradients. With the first gradients in it the buffer itself is put in place.

    Args:
        param: the parameter.
        tensor: the buffer, its rows behind the batch's written.
        batch: number of the batch's rows.
    """

    def __init__(self, param: torch.nn.Parameter, tensor: torch.Tensor, batch: int) -> None:
        self.tensor = tensor
        self._param, self._batch = param, batch

    # What Opacus does is `buffer[:n] += gradients`: Python's three calls for it.

    def __getitem__(self, rows: slice) -> _Unwritten:
        return self

    def __iadd__(self, gradients: torch.Tensor) -> _Unwritten:
        count = len(gradients)
        self.tensor[:count].copy_(gradients)
        self.tensor[count : self._batch].zero_()
        return self

    def __setitem__(self, rows: slice, written: _Unwritten) -> None:
        setattr(self._param, _BUFFER, self.tensor)


@cache
def _opacus_adds() -> bool:
    """Whether the installed Opacus fills a buffer that it finds as `_Unwritten` expects."""
    param = torch.nn.Parameter(torch.zeros(()))
    buffer = torch.full((3,), torch.nan)
    setattr(param, _BUFFER, _Unwritten(param, buffer, 2))
    try:
        for _ in range(2):
            create_or_accumulate_grad_sample(
                param=param, grad_sample=torch.ones(1), max_batch_len=2
            )
    except (AttributeError, TypeError):
        return False
    return getattr(param, _BUFFER) is buffer and buffer[:2].tolist() == [2.0, 0.0]


def exchange(param: Any, old: torch.Tensor, new: torch.Tensor) -> None:
    """Put a tensor in the place of another among a parameter's per-sample gradients, if it is."""
    held = getattr(param, "grad_sample", None)
    if isinstance(held, list):
        held[:] = [new if tensor is old else tensor for tensor in held]
    elif held is old:
        param.grad_sample = new


def write_rows(
    buffers: Sequence[torch.Tensor], directions: Sequence[Direction], norm: float
) -> None:
    """Write ``norm`` times each direction into the last rows of the buffers, which hold zeros.

    Args:
        buffers: a tensor ``[rows, *shape]`` for each tensor of the layout.
        directions: unit directions over the layout, ``[n]``.
        norm: norm of the rows, in the unit of a per-sample gradient.
    """
    for j, (row, index, value) in by_tensor(directions).items():
        buffer = buffers[j]
        row = len(buffer) - len(directions) + row
        shape = buffer.shape[1:]
        entries = numpy_view(buffer)
        if entries is not None:
            entries[row * math.prod(shape) + index] = norm * value
            continue
        at = (row, *np.unravel_index(index, shape)) if shape else (row,)
        where = tuple(torch.from_numpy(i).to(buffer.device) for i in at)
        buffer[where] = torch.from_numpy(norm * value).to(buffer.device, buffer.dtype)


def _held(param: torch.nn.Parameter) -> list[Any]:
    held = getattr(param, "grad_sample", None)
    return held if isinstance(held, list) else [held]


def _hook(module: torch.nn.Module) -> partial[Any] | None:
    """Opacus' backward hook on a module, with the arguments it was given."""
    for hook in module._backward_hooks.values():
        if isinstance(hook, partial) and hook.func.__name__ == "capture_backprops_hook":
            return hook
    return None
