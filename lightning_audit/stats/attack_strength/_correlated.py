"""Posterior mass of error rates of attacks with correlated decisions, for many correlations.

Given its rates, the counts (X, Y) of false positives and false negatives of an attack are
bivariate normal, with binomial variances times an inflation, and one correlation. In the angles of
the rates, rate = sin^2 angle, the width of the density hardly changes, so cells have equal size.
The part of a cell outside R(eps, delta) does not depend on the correlations. So one matrix times
the densities for all correlations gives all masses.

The normal density at a count of 0 grows without limit as the rate goes to 0, but the likelihood
of a count is at most 1. So a count of 0 means all values below .5, and a count of n all values
above n - .5: a rate of 0 then has likelihood 1, as under the binomial law. With `density` the
counts 0 and n have the normal density, as published (arXiv:2504.16683).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.attack_strength._strength import Support as Support
from lightning_audit.stats.attack_strength._strength import log_likelihood, log_mass

Counts = NDArray[np.int64]

# Range in standard deviations on either side of the observed rates, and cells on each axis.
_REACH = 7.0
CELLS = 64
# Nodes of the integral over the first of two extreme counts, and the smallest argument of its CDF.
_CORNER_NODES, _FARTHEST = 16, -37.0
_ROOT = np.sqrt(2.0 * np.pi)
# Densities below this fraction of the largest are left out.
_NEGLIGIBLE = 1e-15


@dataclass(frozen=True)
class Correlations:
    """Nodes of a quadrature over the correlations, with their prior weights.

    Args:
        inflation: Variance over that of independent decisions, > 0, ``[nodes]``.
        correlation: Correlation of the two counts, in (-1, 1), ``[nodes]``.
        log_weight: Logarithm of the prior's weight, ``[nodes]``.
    """

    inflation: Floats
    correlation: Floats
    log_weight: Floats


@dataclass
class CorrelatedMasses:
    """Masses inside and outside regions, for each attack and each node of the correlations.

    Args:
        errors: False positives and false negatives, ``[attacks, 2]``.
        trials: Challenges out and in, >= 1, ``[attacks, 2]``.
        correlations: The nodes.
        levels: Values of eps, increasing, ``[levels]``.
        density: Whether counts of 0 and n have the normal density as well.
        cells: Number of cells on each axis.
    """

    errors: Counts
    trials: Counts
    correlations: Correlations
    levels: Floats
    density: bool = False
    cells: int = CELLS
    _tables: dict[float, Floats] = field(default_factory=dict)
    _densities: list[tuple[_Cells, Floats]] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = [self._density(*pair) for pair in zip(self.errors, self.trials, strict=True)]
        self._densities = [(cells, mass) for cells, mass, _ in found]
        #: Logarithm of the likelihood of an attack's counts, averaged over all rates.
        self.log_totals = np.stack([total for *_, total in found], axis=1)

    def log_likelihoods(self, delta: float, support: Support, strengths: int) -> list[Floats]:
        """Return log likelihoods ``[levels, levels]`` by node; see `_strength.log_likelihood`."""
        return [
            log_likelihood(_AtNode(self, k), self.levels, delta, support, strengths, 0)
            + np.sum(self.log_totals[k])
            for k in range(self.correlations.inflation.size)
        ]

    def outside(self, delta: float) -> Floats:
        """Return the masses outside R(level, delta), ``[nodes, attacks, levels]``."""
        if delta not in self._tables:
            limits = np.exp(-self.levels)
            masses = [_parts_below(cells, delta, limits) @ mass for cells, mass in self._densities]
            self._tables[delta] = np.transpose(np.stack(masses), (2, 0, 1))
        return self._tables[delta]

    def _density(self, errors: Counts, trials: Counts) -> tuple[_Cells, Floats, Floats]:
        """Return the kept cells, their masses ``[kept, nodes]`` and the log of the total."""
        widest = float(np.sqrt(np.max(self.correlations.inflation)))
        extreme = ((errors == 0) | (errors == trials)) & (not self.density)
        axes = [
            # Half of the width is that of the rate, which is 0 at the extremes.
            self._axis(count / n, widest / np.sqrt(n) * (2.0 if wide else 1.0))
            for count, n, wide in zip(errors, trials, extreme, strict=True)
        ]
        middles, halves = (
            np.stack(np.meshgrid(*pair, indexing="ij"), axis=-1).reshape(-1, 2)
            for pair in zip(*(axis[:2] for axis in axes), strict=True)
        )
        logs = _log_likelihood(errors, trials, extreme, middles, self.correlations)
        for k, (*_, size) in enumerate(axes):
            if extreme[k]:
                logs += np.log(2.0 * halves[:, [k]])
            else:  # the integral of a rate's density over a cell is the angle's
                logs += np.log(2.0 * size) - 0.5 * np.log(trials[k] * self.correlations.inflation)
        peak = np.max(logs, axis=0)
        mass = np.exp(logs - peak)
        kept = np.max(mass, axis=1) > _NEGLIGIBLE
        mass = mass[kept]
        total = np.sum(mass, axis=0)
        cells = _Cells(middles[kept], halves[kept], 1.0 if self.density else 2.0)
        return cells, mass / total, peak + np.log(total)

    def _axis(self, observed: float, width: float) -> tuple[Floats, Floats, float]:
        """Return the centers and half widths of the cells of one rate, and their angular size."""
        middle, reach = np.arcsin(np.sqrt(observed)), _REACH * 0.5 * width
        low, high = max(middle - reach, 0.0), min(middle + reach, 0.5 * np.pi)
        edges, size = np.linspace(low, high, self.cells + 1), (high - low) / self.cells
        if self.density:
            angles = 0.5 * (edges[1:] + edges[:-1])
            return np.sin(angles) ** 2, 0.5 * size * np.sin(2.0 * angles), size
        rates = np.sin(edges) ** 2
        return 0.5 * (rates[1:] + rates[:-1]), 0.5 * np.diff(rates), size


@dataclass(frozen=True)
class _AtNode:
    """The masses at one node of the correlations, in the form that `log_likelihood` needs."""

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


@dataclass(frozen=True)
class _Cells:
    """Rectangles of pairs of rates.

    Args:
        middles: Centers, pairs of rates, ``[cells, 2]``.
        halves: Half widths, ``[cells, 2]``.
        power: 2 if the mass is uniform in the rates, 1 if in their square roots.
    """

    middles: Floats
    halves: Floats
    power: float


def _log_likelihood(
    errors: Counts,
    trials: Counts,
    extreme: NDArray[np.bool_],
    rates: Floats,
    correlations: Correlations,
) -> Floats:
    """Return the log likelihood of a pair of counts at pairs of rates, ``[rates, nodes]``.

    A count with a density omits the factor of its standard deviation.
    """
    spread = np.sqrt(trials * rates * (1.0 - rates))[:, :, None] * np.sqrt(correlations.inflation)
    # For an extreme count, the limit of its interval; n is the mirror image of 0.
    limit = np.where(errors == 0, 0.5, trials - 0.5)
    sign = np.where(extreme & (errors > 0), -1.0, 1.0)
    z = (np.where(extreme, limit, errors) - trials * rates)[:, :, None] / spread
    z *= sign[:, None]
    r = np.prod(sign) * correlations.correlation
    if extreme.all():
        return _log_corner(z[:, 0], z[:, 1], r)
    first, second = (1, 0) if extreme[0] else (0, 1)
    rest = np.sqrt(1.0 - r**2)
    conditional = (z[:, second] - r * z[:, first]) / rest
    logs: Floats = -0.5 * z[:, first] ** 2 - np.log(_ROOT)
    if extreme.any():
        logs += special.log_ndtr(conditional)
    else:
        logs -= 0.5 * conditional**2 + np.log(_ROOT * rest)
    return logs


def _log_corner(a: Floats, b: Floats, r: Floats) -> Floats:
    """Return the log probability that two normals of correlation r are below a and b."""
    nodes, weights = np.polynomial.legendre.leggauss(_CORNER_NODES)
    a, b = np.minimum(a, b), np.maximum(a, b)  # put the nodes at the mass
    part = special.ndtr(np.maximum(a, _FARTHEST))
    total = np.zeros(a.shape)
    for x, w in zip(nodes.tolist(), weights.tolist(), strict=True):
        first = special.ndtri(0.5 * (1.0 + x) * part)
        total += 0.5 * w * special.ndtr((b - r * first) / np.sqrt(1.0 - r**2))
    return np.log(np.maximum(part * total, np.finfo(float).tiny))


def _parts_below(cells: _Cells, delta: float, limits: Floats) -> Floats:
    """Return the fraction of each cell outside R(-ln limit, delta), ``[limits, cells]``.

    A pair of rates is outside if x / (1 - delta - y) is below the limit, where x is the smaller
    rate; above the diagonal, the complements of the rates are used. In a cell, this quotient, or
    its root, is nearly linear. The fraction of a cell where a linear function is below a limit is
    the CDF of a sum of two uniform numbers.
    """
    above = np.sum(cells.middles, axis=1) > 1.0
    turned = np.where(above[:, None], 1.0 - cells.middles, cells.middles)
    swap = turned[:, 0] > turned[:, 1]
    small, large = np.min(turned, axis=1), np.max(turned, axis=1)
    of_small = np.where(swap, cells.halves[:, 1], cells.halves[:, 0])
    of_large = np.where(swap, cells.halves[:, 0], cells.halves[:, 1])
    rest = 1.0 - delta - large
    possible = rest > 0.0
    rest = np.where(possible, rest, 1.0)
    u = (small / rest) ** (0.5 * cells.power)
    a, b = (0.5 * cells.power * u * half / at for half, at in ((of_small, small), (of_large, rest)))
    u[~possible] = np.inf
    wide, narrow = np.maximum(a, b), np.minimum(a, b)
    narrow = np.maximum(narrow, 1e-3 * wide)
    result = np.zeros((limits.size, u.size))
    # The quotient u increases: cells entirely below or above a limit need no formula.
    low, high = u - wide - narrow, u + wide + narrow
    for i, limit in enumerate((limits ** (0.5 * cells.power)).tolist()):
        result[i] = high <= limit
        crossed = np.flatnonzero((low < limit) & (high > limit))
        t, w, n = limit - u[crossed], wide[crossed], narrow[crossed]
        ramps = (np.maximum(t + sign, 0.0) ** 2 for sign in (w + n, w - n, n - w, -w - n))
        p, q, r, s = ramps
        result[i, crossed] = np.clip((p - q - r + s) / (8.0 * w * n), 0.0, 1.0)
    return result
