"""How the weights move: in the update, and outside of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.taps.tensor_views import entries_at, numpy_view

#: Steps that are watched: the first ones, and one in so many later.
_FIRST, _EVERY = 100, 8
#: Entries of each tensor that are compared at every step.
_ENTRIES = 4


@dataclass(frozen=True)
class Moves:
    """Entries of the weights around one update.

    Args:
        update: what the update added, from the reading of its gradient on, ``[n]``.
        start: the weights before it, ``[n]``.
        outside: what was added since the update before; None where that was not watched, ``[n]``.
    """

    update: FloatArray
    start: FloatArray
    outside: FloatArray | None


class WeightWatch:
    """Reads the weights at the coordinates where gradients are read.

    Args:
        params: the parameters, in the order of the layout.
        coordinates: tensor -> flat coordinates to read.
    """

    def __init__(
        self, params: Sequence[torch.nn.Parameter], coordinates: dict[int, IndexArray]
    ) -> None:
        self._params = params
        self._index = coordinates
        #: Compares a few entries at every step.
        self.fingerprint = WeightFingerprint(params)
        self._number = 0
        self._before: FloatArray | None = None
        self._after: tuple[int, FloatArray] | None = None

    def start(self) -> None:
        """Before an update, or nearer to it."""
        self.fingerprint.start()
        watched = self._number < _FIRST or self._number % _EVERY == 0
        self._before = self._read() if watched else None

    def end(self) -> Moves | None:
        """After an update; None where it was not watched."""
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
        """The step broke off."""
        self._before = None

    def _read(self) -> FloatArray:
        return entries_at([self._params[j] for j in self._index], self._index)


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
