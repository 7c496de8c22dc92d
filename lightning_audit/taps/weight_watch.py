"""Reads changes of the weights, in the update and outside of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.taps.tensor_views import entries_at, numpy_view

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
