"""Markov chains of a sampler along their iterations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from lightning_audit.report.figure import BLUE, GREEN, GREY, ORANGE, blank_figure, plain_axes


def trace_figure(chains: ArrayLike, names: Sequence[str]) -> Figure:
    """Draw each parameter along the chains; converged chains overlap and have no trend.

    Args:
        chains: samples, ``[chains, iterations, parameters]``.
        names: of the parameters.
    """
    samples = np.asarray(chains, dtype=np.float64)
    drawn = blank_figure((9.0, 1.0 + 1.8 * len(names)))
    rows = drawn.subplots(len(names), 1, squeeze=False, sharex=True)[:, 0]
    for k, (axes, name) in enumerate(zip(rows, names, strict=True)):
        plain_axes(axes)
        for chain, colour in zip(samples, (BLUE, ORANGE, GREEN, GREY) * len(samples), strict=False):
            axes.plot(chain[:, k], color=colour, linewidth=0.5)
        axes.set_ylabel(name)
    rows[-1].set_xlabel("iteration")
    return drawn
