"""Whether weights change from the end of one update to where the next step's noise is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lightning_audit.taps.tensor_views import numpy_view

#: Entries of each tensor that are compared.
_ENTRIES = 4


class WeightFingerprint:
    """Compares a few entries of each tensor, at every step.

    Where a tensor's memory cannot be seen, as on a GPU, the number of its changes by torch is
    compared instead, which misses what is done to ``p.data``.

    Args:
        params: the parameters.
    """

    def __init__(self, params: Sequence[torch.nn.Parameter]) -> None:
        self._params = params
        self._places: list[int] = []
        self._views: list[Any] = []
        self._after: list[Any] | None = None
        self._new_epoch = False
        #: Steps before which weights had changed within an epoch, and between two.
        self.within, self.between = 0, 0

    def start_epoch(self) -> None:
        """The next step is the first of an epoch."""
        self._new_epoch = True

    def start(self) -> None:
        """A step's noise is in, and its update comes next."""
        if self._after is not None and self._after != self._read():
            self.between += self._new_epoch
            self.within += not self._new_epoch
        self._new_epoch = False

    def end(self) -> None:
        """An update is done."""
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
    """A view of a few entries, or None."""
    entries = numpy_view(param)
    return None if entries is None else entries[:: max(1, len(entries) // _ENTRIES)][:_ENTRIES]
