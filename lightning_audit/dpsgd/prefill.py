"""Canary rows without a copy: written into the buffer that Opacus fills in backward.

Opacus adds each layer's per-sample gradients to ``param._current_grad_sample`` and makes that
tensor the ``grad_sample`` after the layer's backward. A buffer with spare rows that contain the
canaries becomes the same tensor, bit for bit, as appending the rows, and nothing is copied. If that
is not certain, `obstacle` returns why, and the rows are appended by copy.

Between the backward pass and the step, ``grad_sample`` is a view of the batch's rows only: user
code that reads, scales or replaces the gradients there sees no canary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from opacus.layers.dp_rnn import RNNLinear

from lightning_audit.dpsgd.row_buffer import BUFFER, RowBuffer, opacus_adds
from lightning_audit.layout import Direction, by_tensor


class RowPrefill:
    """Buffers for the per-sample gradients of one backward pass."""

    def __init__(
        self, params: Sequence[torch.nn.Parameter], modules: Iterable[torch.nn.Module]
    ) -> None:
        self._params = params
        self._hooked = [
            (module, list(module.parameters())) for module in modules if _hook(module) is not None
        ]
        self._buffers: list[RowBuffer] = []
        self._batch = 0

    def in_use(self) -> bool:
        """Return whether a forward pass has used a parameter; True if that is unknown."""
        return not self._hooked or any(getattr(p, "_forward_counter", 0) for p in self._params)

    def obstacle(self) -> str:
        """Return why the coming backward cannot contain the canaries' rows; empty if it can."""
        if not self._hooked:
            return "no module computes its per-sample gradients in Opacus' backward hooks"
        if not opacus_adds():
            return "this version of Opacus adds gradients up in another way"
        if any(getattr(p, "grad_sample", None) is not None for p in self._params):
            return "several backward passes are summed up in one step"
        if any(hasattr(p, BUFFER) for p in self._params):
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
            # Opacus takes the batch size from the last input, most layers from the first.
            sizes |= {tensor.shape[0] if tensor.dim() else -1 for tensor in inputs}
        if len(sizes) != 1 or min(sizes) < 0:
            return "layers see batches of several sizes"
        self._batch = sizes.pop()
        return ""

    def fill(self, directions: Sequence[Direction], norm: float) -> None:
        """Reserve rows after the batch's for the coming backward; see `DPSGDStep.prepare`."""
        rows = by_tensor(directions)
        self._buffers = []
        for j, param in enumerate(self._params):  # one by one: `withdraw` if a later one fails
            buffer = RowBuffer(param, self._batch, len(directions), rows.get(j, ()), norm)
            self._buffers.append(buffer)

    def conceal(self) -> None:
        """Hide the canaries' rows from the gradients after the backward pass."""
        for buffer in self._buffers:
            buffer.conceal()

    def confirm(self) -> list[torch.Tensor]:
        """Show the canaries' rows; return the gradients with them, or an empty list."""
        if not all(buffer.arrived() for buffer in self._buffers):
            self.withdraw()
        return [buffer.reveal() for buffer in self._buffers]

    def forget(self) -> None:
        """Drop the references to the gradients, which the step frees afterwards."""
        self._buffers = []

    def withdraw(self) -> None:
        """Remove the canaries' rows from the buffers or the gradients made from them."""
        for buffer in self._buffers:
            buffer.withdraw()
        self._buffers = []


def _hook(module: torch.nn.Module) -> partial[Any] | None:
    """Return Opacus' backward hook on a module, with its bound arguments; None if there is none."""
    for hook in module._backward_hooks.values():
        if not isinstance(hook, partial) or hook.func.__name__ != "capture_backprops_hook":
            continue
        if hook.func.__module__.startswith("opacus."):  # an override may fill other buffers
            return hook
    return None
