"""What the modules of `stats` share: validated arrays, error counts, roots of many functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate

# --- Validation of array arguments, shared by the modules of `stats`.

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


# --- Outcomes of an attack: the input of every bound from counts.

Counts = NDArray[np.int64]

_NAMES = ("fn", "tp", "fp", "tn")


@dataclass(frozen=True, eq=False)
class ConfusionCounts:
    """Outcomes of guessing "in" or "out" in two worlds, at one threshold or at many.

    The direction of the attack is fixed beforehand: a large score means "in". An attack that is
    correct more often with its guesses inverted proves nothing, unless the inversion was fixed
    beforehand.

    Args:
        fn: Canary in, guessed out (type II errors); whole numbers >= 0, any common shape.
        tp: Canary in, guessed in.
        fp: Canary out, guessed in (type I errors).
        tn: Canary out, guessed out.

    Raises:
        ValueError: If a count is negative or not a whole number.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> int(counts.n_in), int(counts.n_out)
        (100, 100)
    """

    fn: Counts
    tp: Counts
    fp: Counts
    tn: Counts

    def __init__(self, fn: ArrayLike, tp: ArrayLike, fp: ArrayLike, tn: ArrayLike) -> None:
        checked = [
            whole(name, v).astype(np.int64)
            for name, v in zip(_NAMES, (fn, tp, fp, tn), strict=True)
        ]
        shape = np.broadcast_shapes(*(value.shape for value in checked))
        for name, value in zip(_NAMES, checked, strict=True):
            # A read-only view: the counts stay what was validated.
            object.__setattr__(self, name, np.broadcast_to(value, shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConfusionCounts):
            return NotImplemented
        return all(map(np.array_equal, self.cells, other.cells))

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    @property
    def shape(self) -> tuple[int, ...]:
        """Common shape of the counts; () for one threshold."""
        return self.fn.shape

    @property
    def cells(self) -> tuple[Counts, Counts, Counts, Counts]:
        """The four counts: fn, tp, fp, tn."""
        return self.fn, self.tp, self.fp, self.tn

    @property
    def n_in(self) -> Counts:
        """Number of observations with the canary in, of the common shape."""
        return np.asarray(self.fn + self.tp)

    @property
    def n_out(self) -> Counts:
        """Number of observations with the canary out, of the common shape."""
        return np.asarray(self.fp + self.tn)

    @classmethod
    def from_scores(
        cls, scores_in: ArrayLike, scores_out: ArrayLike, thresholds: ArrayLike
    ) -> ConfusionCounts:
        """Count the guesses "in if the score exceeds the threshold".

        Args:
            scores_in: Scores with the canary in, ``[n_in]``.
            scores_out: Scores with the canary out, ``[n_out]``.
            thresholds: A number, or an array of any shape, in the unit of the scores.

        Returns:
            The counts, in the shape of ``thresholds``.

        Raises:
            ValueError: If the scores are not a vector, or a score or threshold is nan.

        Example:
            >>> ConfusionCounts.from_scores([0.2, 0.9, 1.4], [-0.3, 0.6], thresholds=0.5).tp
            array(2)
        """
        inside = np.sort(score_vector("scores_in", scores_in))
        outside = np.sort(score_vector("scores_out", scores_out))
        cuts = numbers("thresholds", thresholds)
        fn = np.searchsorted(inside, cuts, side="right")
        tn = np.searchsorted(outside, cuts, side="right")
        return cls(fn=fn, tp=len(inside) - fn, fp=len(outside) - tn, tn=tn)


def whole(name: str, value: Any, advice: str = "pass event counts, not rates or scores") -> Counts:
    counts = np.asarray(value)
    # An empty list has no dtype of its own. A boolean array is usually the outcomes themselves.
    if counts.dtype.kind not in "iu" and counts.size:
        raise ValueError(f"{name}={_validate.shown(value)} must hold whole numbers >= 0; {advice}")
    if np.any(counts < 0):
        first = int(counts[counts < 0].flat[0])
        raise ValueError(f"{name}={first} must be a whole number >= 0; {advice}")
    return counts


def numbers(name: str, value: ArrayLike) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    missing = np.isnan(array)
    if np.any(missing):
        at = f" ({places(missing)})" if missing.ndim else ""
        raise ValueError(
            f"{name} holds nan, must hold numbers; a failed reading is not evidence{at}"
        )
    return array


def score_vector(name: str, value: ArrayLike) -> Floats:
    scores = numbers(name, value)
    if scores.ndim != 1:
        raise ValueError(
            f"{name} has shape {scores.shape}, must be one vector of scores; "
            "pool the observations first, one score each"
        )
    return scores


# --- Roots of many functions at once.

#: Halvings of an interval of at most one: to double precision near one.
HALVINGS = 60


def bisection(
    is_below: Callable[[Any], Any],
    low: float | Floats,
    high: float | Floats,
    halvings: int = HALVINGS,
) -> tuple[Any, Any]:
    """Halve intervals, each around one point, and return their last ends.

    Args:
        is_below: Maps the middles of the intervals to whether each is below its point.
        low: Lower ends, of any shape.
        high: Upper ends, of the same shape.
        halvings: Number of halvings.

    Returns:
        The lower and the upper ends.
    """
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        below = is_below(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low, high


Rows = NDArray[np.intp]

# Newton's error squares at each step: after a residual of this size, it is below 1e-12.
_LAST_RESIDUAL = 1e-6
_MAX_ITERATIONS = 200


def least_nonnegative(
    residual_and_slope: Callable[[Floats, Rows], tuple[Floats, Floats]], start: Floats
) -> Floats:
    """Return the smallest x >= 0 with a residual >= 0, by Newton's method inside a bracket.

    Args:
        residual_and_slope: Maps points and the rows to which they belong, both ``[m]``, to the
            residuals, increasing in the point and of order one, and to their slopes. A residual may
            be infinite.
        start: First points > 0, ``[n]``.

    Returns:
        The roots, ``[n]``; zero if the residual is not negative at zero.

    Raises:
        RuntimeError: If a residual does not change its sign, which no distribution gives.
    """
    x = start.copy()
    # Zero is evaluated only if Newton's method points there: most roots never need it.
    low, high = np.full(x.shape, -np.inf), np.full(x.shape, np.inf)
    live = np.arange(x.size)
    for _ in range(_MAX_ITERATIONS):
        if not live.size:
            return x
        here = x[live]
        residual, slope = residual_and_slope(here, live)
        low[live] = np.where(residual < 0, here, low[live])
        high[live] = np.where(residual >= 0, here, high[live])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            newton = here - residual / slope
        least, most = low[live], high[live]
        close = (np.abs(residual) <= _LAST_RESIDUAL) & np.isfinite(newton)
        narrow = np.isfinite(most) & (most - least <= 4e-16 * most)
        solved = close | (most <= 0) | narrow
        inside = (newton > least) & (newton < most)
        proposal = np.where(inside, newton, _outside(newton, least, most, here))
        proposal = np.where(proposal < 0, 0.0, proposal)
        # The last step may leave the bracket by a rounding error.
        final = np.clip(np.where(close, newton, here), np.maximum(least, 0.0), most)
        x[live] = np.where(solved, final, proposal)
        live = live[~solved]
    raise RuntimeError(f"{live.size} of {x.size} roots not found; please report the counts.")


def _outside(newton: Floats, low: Floats, high: Floats, here: Floats) -> Floats:
    """Return the next points if Newton's method leaves the bracket."""
    with np.errstate(invalid="ignore"):
        middle = 0.5 * (np.maximum(low, 0.0) + high)
    widened = np.where(np.isfinite(high), middle, 2.0 * here + 0.1)
    # If Newton's method gives no next point, as far above the root, try zero.
    return np.where((low < 0) & ~(newton > 0), 0.0, widened)
