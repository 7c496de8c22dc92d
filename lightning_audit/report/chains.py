"""Markov chains of a sampler: whether they have forgotten their start, and how much they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit.report.drawing import BLUE, GREEN, GREY, ORANGE, blank_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ChainDiagnostics", "chain_diagnostics", "trace_figure"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ChainDiagnostics:
    """What chains of one parameter are worth.

    Args:
        ess: effective sample size: the independent samples that say as much about the middle of
            the distribution.
        ess_tail: the same about its 5 % and 95 % quantiles.
        r_hat: rank-normalised split R-hat; above 1.01 the chains are not one distribution yet.
    """

    ess: float
    ess_tail: float
    r_hat: float


def chain_diagnostics(chains: ArrayLike) -> list[ChainDiagnostics]:
    """Effective sample sizes and R-hat of each parameter, by ArviZ.

    Args:
        chains: samples, ``[chains, iterations, parameters]``, without those that shall be left out
            as burn-in; at least 2 chains of 4 iterations, from starts far apart.

    Returns:
        One for each parameter.

    Raises:
        ImportError: arviz-stats is not installed.
        ValueError: the shape is another one.

    References:
        Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization, folding, and
        localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis 2021.
    """
    samples = _samples(chains)
    try:
        from arviz_stats.base import array_stats
    except ImportError as error:
        raise ImportError(
            'the diagnostics of chains need arviz-stats; pip install "lightning-audit[mcmc]"'
        ) from error

    def value(of: Any, parameter: int, **options: Any) -> float:
        return float(of(samples[..., parameter], chain_axis=0, draw_axis=1, **options))

    return [
        ChainDiagnostics(
            value(array_stats.ess, k, method="bulk"),
            value(array_stats.ess, k, method="tail", prob=(0.05, 0.95)),
            value(array_stats.rhat, k),
        )
        for k in range(samples.shape[2])
    ]


def trace_figure(chains: ArrayLike, names: Sequence[str]) -> Figure:
    """Draw each parameter along the chains: chains at one place overlap and do not wander.

    Args:
        chains: samples, ``[chains, iterations, parameters]``.
        names: of the parameters.

    Returns:
        The figure, on an Agg canvas.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the shape is another one, or there is not one name for each parameter.
    """
    samples = _samples(chains)
    if len(names) != samples.shape[2]:
        raise ValueError(f"names={list(names)!r} must be {samples.shape[2]}, one a parameter.")
    drawn = blank_figure((9.0, 1.0 + 1.8 * len(names)))
    rows = drawn.subplots(len(names), 1, squeeze=False, sharex=True)[:, 0]
    for k, (axes, name) in enumerate(zip(rows, names, strict=True)):
        plain_axes(axes)
        for chain, colour in zip(samples, (BLUE, ORANGE, GREEN, GREY) * len(samples), strict=False):
            axes.plot(chain[:, k], color=colour, linewidth=0.5)
        axes.set_ylabel(name)
    rows[-1].set_xlabel("iteration")
    return drawn


def _samples(chains: ArrayLike) -> Floats:
    samples = np.asarray(chains, dtype=np.float64)
    if samples.ndim != 3 or samples.shape[0] < 2 or samples.shape[1] < 4:
        raise ValueError(
            f"chains have shape {samples.shape}, must be [chains, iterations, parameters] with at "
            "least 2 chains of 4 iterations; run the sampler from several starts and stack them."
        )
    return samples
