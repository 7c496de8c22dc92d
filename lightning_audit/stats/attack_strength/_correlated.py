"""Masses of the error rates of attacks whose decisions are correlated, for many correlations.

The counts (X, Y) of false positives and false negatives of an attack are bivariate normal given
its rates, with binomial variances times an inflation and one correlation. In the angles of the
rates, rate = sin^2 angle, the density has neither poles nor much change of width: cells of one size
do. The part of a cell outside of R(eps, delta) does not depend on the correlations, so that one
matrix times the densities of all of them gives all masses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.attack_strength._strength import Support as Support
from lightning_audit.stats.attack_strength._strength import log_likelihood, log_mass

Counts = NDArray[np.int64]

# Standard deviations to either side of the observed rates, and cells on each axis.
_REACH = 7.0
CELLS = 64
# Part of the largest density of a cell that is left out.
_NEGLIGIBLE = 1e-15


@dataclass(frozen=True)
class Correlations:
    """Points of a quadrature over the correlations, and their prior weights.

    Args:
        inflation: variance over that of independent decisions, > 0, ``[nodes]``.
        correlation: correlation of the two counts, in (-1, 1), ``[nodes]``.
        log_weight: logarithm of the prior's weight, ``[nodes]``.
    """

    inflation: Floats
    correlation: Floats
    log_weight: Floats


@dataclass
class CorrelatedMasses:
    """Masses inside and outside of regions, for each attack and each point of the correlations.

    Args:
        errors: false positives and false negatives, ``[attacks, 2]``.
        trials: challenges out and in, >= 1, ``[attacks, 2]``.
        correlations: the points.
        levels: the values of eps that are asked for.
        cells: cells on each axis.
    """

    errors: Counts
    trials: Counts
    correlations: Correlations
    levels: Floats
    cells: int = CELLS
    _tables: dict[float, Floats] = field(default_factory=dict)
    _densities: list[tuple[Floats, Floats, Floats]] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = [self._density(*pair) for pair in zip(self.errors, self.trials, strict=True)]
        self._densities = [(angles, sizes, mass) for angles, sizes, mass, _ in found]
        #: Logarithms of the likelihood of an attack's counts, averaged over all rates.
        self.log_totals = np.stack([total for *_, total in found], axis=1)

    def log_likelihoods(self, delta: float, support: Support, strengths: int) -> list[Floats]:
        """Log likelihood at (levels, levels) for each point; see `_strength.log_likelihood`."""
        return [
            log_likelihood(_AtNode(self, k), self.levels, delta, support, strengths, 0)
            + np.sum(self.log_totals[k])
            for k in range(self.correlations.inflation.size)
        ]

    def outside(self, delta: float) -> Floats:
        """Masses outside R(level, delta), ``[nodes, attacks, levels]``."""
        if delta not in self._tables:
            limits = np.exp(-0.5 * self.levels)
            masses = [
                _parts_below(angles, sizes, delta, limits) @ mass
                for angles, sizes, mass in self._densities
            ]
            self._tables[delta] = np.transpose(np.stack(masses), (2, 0, 1))
        return self._tables[delta]

    def _density(self, errors: Counts, trials: Counts) -> tuple[Floats, Floats, Floats, Floats]:
        """Cells' angles ``[kept, 2]`` and sizes ``[2]``, their masses and the log of the total."""
        inflation, r = self.correlations.inflation, self.correlations.correlation
        widest = float(np.sqrt(np.max(inflation)))
        axes, sizes = [], []
        for count, n in zip(errors.tolist(), trials.tolist(), strict=True):
            reach = _REACH * 0.5 * widest / np.sqrt(n)
            middle = np.arcsin(np.sqrt(count / n))
            low, high = max(middle - reach, 0.0), min(middle + reach, 0.5 * np.pi)
            size = (high - low) / self.cells
            axes.append(low + size * (np.arange(self.cells) + 0.5))
            sizes.append(size)
        angles = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        rates = np.sin(angles) ** 2
        z = (errors - trials * rates) / np.sqrt(trials * rates * (1.0 - rates))
        square, product = np.sum(z**2, axis=1), z[:, 0] * z[:, 1]
        logs = -0.5 * (square[:, None] - 2.0 * r * product[:, None]) / (inflation * (1.0 - r**2))
        peak = np.max(logs, axis=0)
        mass = np.exp(logs - peak)
        kept = np.max(mass, axis=1) > _NEGLIGIBLE
        mass = mass[kept]
        total = np.sum(mass, axis=0)
        # The angles' Jacobian cancels the standard deviations but for these factors.
        factor = np.log(2.0 / np.pi * sizes[0] * sizes[1]) - 0.5 * np.sum(np.log(trials))
        log_total = peak + np.log(total) + factor - np.log(inflation) - 0.5 * np.log1p(-(r**2))
        return angles[kept], np.array(sizes), mass / total, log_total


@dataclass(frozen=True)
class _AtNode:
    """The masses at one point of the correlations, as `_strength.log_likelihood` asks for them."""

    masses: CorrelatedMasses
    node: int

    @property
    def size(self) -> int:
        return len(self.masses.errors)

    @property
    def times(self) -> Counts:
        return np.ones(self.size, dtype=np.int64)

    def log_outside(self, levels: Floats, delta: float, nodes: int) -> Floats:
        return log_mass(self._table(levels, delta))

    def log_inside(
        self, levels: Floats, delta: float, wanted: NDArray[np.bool_], nodes: int
    ) -> Floats:
        inside: Floats = log_mass(1.0 - self._table(levels, delta))
        inside[~wanted] = 0.0
        return inside

    def _table(self, levels: Floats, delta: float) -> Floats:
        first = int(np.searchsorted(self.masses.levels, levels[0]))
        table: Floats = self.masses.outside(delta)[self.node]
        return table[:, first : first + levels.size]


def _parts_below(angles: Floats, sizes: Floats, delta: float, limits: Floats) -> Floats:
    """Part of each cell outside R(-2 ln limit, delta), ``[limits, cells]``.

    A pair of rates is outside where u = sqrt(x / (1 - delta - y)) is below the limit, x being the
    smaller rate; above the diagonal the complements of the rates stand for them. In the angles u is
    nearly linear, and the part of a cell where a linear function is below a limit is that of a sum
    of two uniform numbers.
    """
    above = np.sum(np.sin(angles) ** 2, axis=1) > 1.0
    turned = np.where(above[:, None], 0.5 * np.pi - angles, angles)
    swap = turned[:, 0] > turned[:, 1]
    small, large = np.min(turned, axis=1), np.max(turned, axis=1)
    of_small, of_large = np.where(swap, sizes[1], sizes[0]), np.where(swap, sizes[0], sizes[1])
    rest = 1.0 - delta - np.sin(large) ** 2
    possible = rest > 0.0
    rest = np.where(possible, rest, 1.0)
    u = np.where(possible, np.sin(small) / np.sqrt(rest), np.inf)
    a = 0.5 * of_small * np.cos(small) / np.sqrt(rest)
    b = 0.5 * of_large * np.sin(small) * np.sin(large) * np.cos(large) / rest**1.5
    wide, narrow = np.maximum(a, b), np.minimum(a, b)
    narrow = np.maximum(narrow, 1e-3 * wide)
    result = np.zeros((limits.size, u.size))
    # Levels that decrease in u: cells entirely below or above a limit need no formula.
    low, high = u - wide - narrow, u + wide + narrow
    for i, limit in enumerate(limits.tolist()):
        result[i] = high <= limit
        crossed = np.flatnonzero((low < limit) & (high > limit))
        t, w, n = limit - u[crossed], wide[crossed], narrow[crossed]
        ramps = (np.maximum(t + sign, 0.0) ** 2 for sign in (w + n, w - n, n - w, -w - n))
        p, q, r, s = ramps
        result[i, crossed] = np.clip((p - q - r + s) / (8.0 * w * n), 0.0, 1.0)
    return result
