"""Arguments, shapes and rates that the posteriors of epsilon and of mu share."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, each, like_input, non_negative
from lightning_audit.stats._beta import Beta
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.posteriors._quantiles import ClaimPosterior

Region = Literal["two_sided", "one_sided"]

# 32 give twelve digits for samples of similar size, 64 also for a thousand against a million.
NODES = 64
# Mass of a rate that the quadrature omits at either end.
TAIL = 1e-26
# Smallest probability of a quantile: at 1e-200, some are not found.
LEAST = 1e-100


def rates(counts: ConfusionCounts, prior: float, tail: float = TAIL) -> tuple[Beta, Beta]:
    """Return the posteriors of FNR and FPR, one row per threshold."""
    a = _validate.positive("prior", prior)
    if not (2 * a).is_integer():
        raise ValueError(
            f"prior={prior!r} must be a whole multiple of 1/2, for which the quadrature is exact; "
            "use 0.5 (Jeffreys) or 1 (uniform)"
        )
    fn, tp, fp, tn = (
        np.asarray(value, dtype=np.float64).ravel() + a
        for value in (counts.fn, counts.tp, counts.fp, counts.tn)
    )
    return Beta.of(fn, tp, tail), Beta.of(fp, tn, tail)


def two_sided(region: Region) -> bool:
    allowed = ("two_sided", "one_sided")
    return _validate.one_of("region", region, allowed) == "two_sided"


def tail_for(probability: float) -> float:
    """Return the mass that an integral may omit if it is compared with a probability."""
    p = _validate.open_unit("probability", probability, "such as 0.05 for a lower limit")
    if p < LEAST:
        raise ValueError(
            f"probability={p!r} must be at least {LEAST:g}; no limit is computed to smaller ones."
        )
    return min(TAIL, 1e-14 * p)


def broadcast(
    name: str, value: float | NDArray[Any], counts: ConfusionCounts
) -> tuple[Floats, ConfusionCounts, tuple[int, ...]]:
    """Return points and counts of one shape, flattened, and that shape."""
    points = each(non_negative, name, value)
    shape = np.broadcast_shapes(points.shape, counts.shape)
    fn, tp, fp, tn = (
        np.broadcast_to(v, shape).ravel() for v in (counts.fn, counts.tp, counts.fp, counts.tn)
    )
    return np.broadcast_to(points, shape).ravel(), ConfusionCounts(fn, tp, fp, tn), shape


def shaped(values: Floats, shape: tuple[int, ...]) -> float | Floats:
    return like_input(values.reshape(shape))


def quantile(
    posterior: ClaimPosterior, probability: float, counts: ConfusionCounts
) -> float | Floats:
    rows = np.arange(counts.fn.size)
    return shaped(posterior.quantile(probability, rows), counts.shape)


def maximum(
    posterior: ClaimPosterior, probability: float, counts: ConfusionCounts
) -> tuple[float, int]:
    if not counts.fn.size:
        raise ValueError("counts hold no threshold, must hold at least one; pass scores to choose")
    n_in, n_out = counts.n_in, counts.n_out
    one_size = bool(np.all(n_in == n_in.flat[0]) and np.all(n_out == n_out.flat[0]))
    fn, fp = (np.asarray(v, dtype=np.float64).ravel() for v in (counts.fn, counts.fp))
    return posterior.largest_quantile(probability, fn, fp, one_size=one_size)
