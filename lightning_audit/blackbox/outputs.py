"""Outputs of a mechanism, drawn one at a time and validated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.outputs._samples import LARGEST

__all__ = ["Mechanism", "MechanismError", "OutputSource"]

#: Function of a data set and a generator that returns a number or an array of any shape.
Mechanism = Callable[[Any, np.random.Generator], Any]


class MechanismError(Exception):
    """A mechanism cannot be audited; the message states the call and the reason."""


class OutputSource:
    """Calls a mechanism alternately on two data sets, named d0 and d1 in messages."""

    def __init__(
        self, mechanism: Mechanism, datasets: tuple[Any, Any], rng: np.random.Generator
    ) -> None:
        if not callable(mechanism):
            raise TypeError(
                f"mechanism={mechanism!r} must be a function of a data set and a generator."
            )
        self._mechanism = mechanism
        self._datasets = datasets
        self._rng = rng
        self._calls = 0
        #: Shape of an output, None before the first.
        self.shape: tuple[int, ...] | None = None

    def draw(self, number: int) -> tuple[Floats, Floats]:
        """Return ``number`` outputs on each data set, ``[number, ...]``.

        Raises:
            MechanismError: If the mechanism raised an exception, or returned anything but an array
                of finite numbers in the shape of the first output.
        """
        outputs: tuple[list[Floats], list[Floats]] = ([], [])
        for _ in range(number):
            for world in (0, 1):
                outputs[world].append(self._call(world))
        return np.stack(outputs[0]), np.stack(outputs[1])

    def _call(self, world: int) -> Floats:
        self._calls += 1
        try:
            returned = self._mechanism(self._datasets[world], self._rng)
        except Exception as error:
            raise self._failed(world, f"raised {type(error).__name__}: {error}") from error
        output = self._as_array(world, returned)
        if self.shape is None:
            self.shape = output.shape
        if output.shape != self.shape:
            what = f"returned shape {output.shape} after {self.shape}; outputs must be of one shape"
            raise self._failed(world, f"{what}, because a varying shape can itself reveal the data")
        if not np.isfinite(output).all():
            count = int(np.count_nonzero(~np.isfinite(output)))
            what = f"returned {count} of {output.size} numbers that are not finite"
            raise self._failed(world, f"{what}; return a finite number in case of a failure")
        return output

    def _as_array(self, world: int, returned: Any) -> Floats:
        if hasattr(returned, "detach"):  # a tensor, perhaps with a gradient or on a device
            returned = returned.detach().cpu()
        try:
            output = np.asarray(returned)
        except (TypeError, ValueError) as error:
            raise self._failed(world, f"returned {type(returned).__name__}: {error}") from error
        if output.dtype.kind not in "iufb" or not output.size:
            what = f"returned {type(returned).__name__} of dtype {output.dtype}"
            raise self._failed(world, f"{what} and shape {output.shape}; return real numbers")
        numbers = output.astype(np.float64)
        if np.isfinite(numbers).all() and np.abs(numbers).max() > LARGEST:
            raise self._failed(world, f"returned numbers beyond {LARGEST:g}; rescale them")
        return numbers

    def _failed(self, world: int, what: str) -> MechanismError:
        return MechanismError(f"mechanism(d{world}, rng) {what} (call {self._calls}).")
