"""Validation of arguments for the posterior of epsilon and of the attacks' strength."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._confusion import ConfusionCounts, whole

Counts = NDArray[np.int64]
LogDensity = Callable[[Floats], Floats]

# Priors that the grids of the posterior resolve; a narrower one falls between two nodes.
_VARIANCES = (1e-4, 1e6)
_LARGEST_SHAPE = 300
# Above this, a float skips whole numbers.
_LARGEST_COUNT = 2**53


def attack_counts(
    false_negatives: ArrayLike, n_in: ArrayLike, false_positives: ArrayLike, n_out: ArrayLike
) -> ConfusionCounts:
    """Return outcomes of attacks from their errors and the numbers of their challenges.

    Args:
        false_negatives: Errors with the canary in, Y in the paper, ``[n]`` or a number.
        n_in: Challenges with the canary in, N_1, ``[n]`` or a number.
        false_positives: Errors with the canary out, X in the paper, ``[n]`` or a number.
        n_out: Challenges with the canary out, N_0, ``[n]`` or a number.

    Returns:
        The counts, a vector of attacks, ``[n]``.

    Raises:
        ValueError: If a count is not a whole number >= 0, or exceeds the number of challenges.

    Example:
        >>> attack_counts([10, 20], 100, [5, 0], 100).tp
        array([90, 80])
    """
    fn, inside = _within("false_negatives", false_negatives, "n_in", n_in)
    fp, outside = _within("false_positives", false_positives, "n_out", n_out)
    if fn.size != fp.size and 1 not in (fn.size, fp.size):
        raise ValueError(
            f"false_negatives has shape {fn.shape} and false_positives {fp.shape}, must be one for "
            "both; give the two error counts of each attack."
        )
    return ConfusionCounts(fn=fn, tp=inside - fn, fp=fp, tn=outside - fp)


def attack_vector(counts: ConfusionCounts) -> ConfusionCounts:
    if len(counts.shape) > 1 or not counts.fn.size:
        raise ValueError(
            f"counts have shape {counts.shape}, must be a vector of at least one attack; "
            "pass the error counts of every attack, one row each"
        )
    return ConfusionCounts(
        *(np.atleast_1d(v) for v in (counts.fn, counts.tp, counts.fp, counts.tn))
    )


def strength_prior(shapes: tuple[float, float]) -> LogDensity:
    """Return the log density, up to a constant, of a Beta prior of the strength."""
    advice = "two shapes of a Beta prior: 1 and 1 is the uniform one, below 1 it has no maximum"
    if not isinstance(shapes, tuple | list) or len(shapes) != 2:
        raise ValueError(f"strength_shapes={shapes!r} must be two numbers >= 1; {advice}")
    a, b = (_validate.positive("strength_shapes", shape, advice) for shape in shapes)
    if not 1 <= min(a, b) <= max(a, b) <= _LARGEST_SHAPE:
        raise ValueError(
            f"strength_shapes={shapes!r} must be two numbers >= 1, up to {_LARGEST_SHAPE}; {advice}"
        )

    def log_density(strength: Floats) -> Floats:
        density = special.xlogy(a - 1.0, strength) + special.xlog1py(b - 1.0, -strength)
        return np.asarray(density, dtype=np.float64)

    return log_density


def prior_variance(value: Any) -> float:
    advice = "10 is the published choice"
    variance = _validate.positive("epsilon_variance", value, advice)
    low, high = _VARIANCES
    if not low <= variance <= high:
        raise ValueError(f"epsilon_variance={value!r} must be in [{low:g}, {high:g}]; {advice}")
    return variance


def known_strength(value: Any) -> float:
    if isinstance(value, Real) and not isinstance(value, bool) and value == 0:
        return 0.0
    advice = (
        "0 is allowed as well; pass 0.999 for the strongest attacks, as 1 leaves them no region"
    )
    return _validate.open_unit("strength", value, advice)


def _within(
    errors_name: str, errors: ArrayLike, trials_name: str, trials: ArrayLike
) -> tuple[Counts, Counts]:
    k, n = _whole(errors_name, errors), _whole(trials_name, trials)
    k, n = np.broadcast_arrays(np.atleast_1d(k), np.atleast_1d(n))
    excess = k > n
    if np.any(excess):
        raise ValueError(
            f"{errors_name}={int(k[excess][0])} must be at most {trials_name}={int(n[excess][0])}; "
            "pass the errors of each attack and the number of its challenges"
        )
    return k, n


def _whole(name: str, value: ArrayLike) -> Counts:
    advice = "pass counts of errors and of challenges, not rates or scores"
    counts = whole(name, value, advice)
    if np.any(counts > _LARGEST_COUNT):
        raise ValueError(f"{name}={int(np.max(counts))} must be at most 2^53; {advice}")
    return counts.astype(np.int64)
