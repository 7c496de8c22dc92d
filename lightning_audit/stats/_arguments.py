"""Checks of array arguments, shared by the modules of `stats`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate

Floats = NDArray[np.float64]


def each(check: Callable[[str, Any], object], name: str, value: float | NDArray[Any]) -> Floats:
    """Apply a check of one number to a number or to an array's extremes, and return floats."""
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        check(name, value.item() if isinstance(value, np.ndarray) else value)
    elif value.size:
        # Every allowed range is an interval, and both extremes are nan if any element is.
        check(name, float(value.min()))
        check(name, float(value.max()))
    return np.asarray(value, dtype=np.float64)


def non_negative(name: str, value: Any) -> None:
    if value != np.inf:
        _validate.non_negative(name, value)


def delta_in_unit(name: str, value: Any) -> None:
    _validate.open_unit(name, value, "Gaussian noise gives no pure DP, and delta = 1 is no privacy")


def closed_unit(name: str, value: Any) -> None:
    if value != 0:
        _validate.rate(name, value, "an error rate is a probability; 0 is allowed as well")


def like_input(values: Floats) -> float | Floats:
    return float(values) if values.ndim == 0 else values
