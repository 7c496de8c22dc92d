"""Validation of array arguments, shared by the modules of `stats`."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate

Floats = NDArray[np.float64]


def each(check: Callable[[str, Any], object], name: str, value: float | NDArray[Any]) -> Floats:
    """Apply a scalar check to a number or to the extremes of an array, and return floats."""
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        check(name, value.item() if isinstance(value, np.ndarray) else value)
    elif value.size:
        # Every allowed range is an interval, and both extremes are nan if any element is.
        check(name, float(value.min()))
        check(name, float(value.max()))
    return np.asarray(value, dtype=np.float64)


def places(wrong: NDArray[np.bool_]) -> str:
    """Return how many elements of an array are wrong, and the index of the first one."""
    first = np.argwhere(wrong)[0].tolist()
    index = first[0] if len(first) == 1 else tuple(first)
    return f"{np.count_nonzero(wrong)} of {wrong.size}, the first at index {index}"


def non_negative(name: str, value: Any) -> None:
    if value != np.inf:
        _validate.non_negative(name, value)


def finite_number(name: str, value: Any) -> None:
    _validate.non_negative(name, abs(value) if np.isfinite(value) else value)


def delta_in_unit(name: str, value: Any) -> None:
    _validate.open_unit(
        name, value, "Gaussian noise is never pure DP, and delta = 1 gives no privacy"
    )


def closed_unit(name: str, value: Any) -> None:
    if value != 0:
        _validate.rate(name, value, "an error rate is a probability; 0 is also allowed")


def like_input(values: Floats) -> float | Floats:
    return float(values) if values.ndim == 0 else values


def significance_level(significance: float) -> float:
    advice = "it is the probability with which the limit may fail, such as 0.05"
    return _validate.open_unit("significance", significance, advice)


def delta_or_zero(delta: float) -> float:
    if isinstance(delta, Real) and not isinstance(delta, bool) and delta == 0:
        return 0.0
    return _validate.open_unit("delta", delta, "or 0 for pure DP; delta = 1 gives no privacy")


def whole_counts(
    successes: int | NDArray[Any], trials: int | NDArray[Any]
) -> tuple[Floats, Floats]:
    """Return successes k and trials n as floats of one shape, with k at most n."""
    k, n = np.broadcast_arrays(_whole("successes", successes), _whole("trials", trials))
    excess = k > n
    if np.any(excess):
        raise ValueError(
            f"successes={int(k[excess][0])} must be at most trials={int(n[excess][0])}; "
            "pass the number of events and the number of all observations."
        )
    return k, n


def _whole(name: str, value: int | NDArray[Any]) -> Floats:
    counts = np.asarray(value)
    advice = "pass event counts, not rates or scores"
    # A boolean array is usually the outcomes themselves, passed instead of their sum.
    if counts.dtype.kind not in "iuf":
        raise ValueError(f"{name} has dtype {counts.dtype}, must hold whole numbers >= 0; {advice}")
    bad = ~((counts >= 0) & (counts == np.floor(counts)) & np.isfinite(counts))
    if np.any(bad):
        raise ValueError(f"{name}={counts[bad][0].item()!r} must be a whole number >= 0; {advice}")
    return counts.astype(np.float64)
