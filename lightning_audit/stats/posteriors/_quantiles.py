"""Distribution function, quantiles and largest quantile of the smallest claim that holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._roots import least_nonnegative
from lightning_audit.stats.posteriors._joint import Sides

Rows = NDArray[np.intp]

# Rows of a block: its arrays fit in the cache, and memory stays small for a million thresholds.
_BLOCK = 256
# Below this probability, the complement of the mass outside has lost too many digits.
_SMALL = 0.01
# Number of candidates for the maximum that are solved together.
_TOGETHER = 4


@dataclass(frozen=True)
class ClaimPosterior:
    """Posterior of the smallest claim whose region contains both error rates, one per row.

    Args:
        sides: The rates and the family of claims.
        two_sided: Whether rates above the mirror image of the boundary refute a claim as well.
    """

    sides: Sides
    two_sided: bool

    def cdf(self, value: Floats) -> Floats:
        """Return the probability that the smallest claim is at most ``value``, by row."""
        rows = np.arange(value.size)
        inside, _, _ = self._evaluate(value, rows, small=False)
        small = inside < _SMALL
        if np.any(small):
            inside[small] = self._evaluate(value[small], rows[small], small=True)[0]
        return np.clip(inside, 0.0, 1.0)

    def pdf(self, value: Floats) -> Floats:
        """Return the density of the continuous part at ``value``, by row."""
        return self._evaluate(value, np.arange(value.size), small=False)[2]

    def quantile(self, probability: float, rows: Rows) -> Floats:
        """Return the smallest claims that hold for some rows with at least ``probability``."""
        upper = probability > 0.5
        sign, target = (-1.0, 1.0 - probability) if upper else (1.0, probability)

        def residual(value: Floats, live: Rows) -> tuple[Floats, Floats]:
            inside, outside, density = self._evaluate(value, rows[live], small=probability < _SMALL)
            # In logs of the smaller part, which are nearly straight far from the root.
            part = np.maximum(outside if upper else inside, 0.0)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                return sign * np.log(part / target), density / part

        return least_nonnegative(residual, self.sides.take(rows).start(probability))

    def largest_quantile(
        self, probability: float, fn: Floats, fp: Floats, *, one_size: bool
    ) -> tuple[float, int]:
        """Return the largest quantile, and a row that attains it.

        A row is dropped once a bound on its mass outside the best claim so far shows that the claim
        holds for it. For samples of one size, the mass below falls with either count of errors and
        the mass above rises, so both need to be evaluated only on the undominated rows.

        Args:
            probability: Probability of the quantile.
            fn: Errors with rate X, ``[n]``.
            fp: Errors with rate Y, ``[n]``.
            one_size: Whether all rows have the same numbers of observations.
        """
        rows = np.arange(fn.size)
        under = _dominating(fn, fp) if one_size else rows
        over = _dominating(-fn, -fp) if one_size else rows
        best, best_row = 0.0, 0
        alive = np.ones(fn.size, dtype=bool)
        candidates = rows[[int(np.argmax(self.sides.start(probability)))]]
        while candidates.size:
            alive[candidates] = False
            values = self.quantile(probability, candidates)
            top = int(np.argmax(values))
            if values[top] > best:
                best, best_row = float(values[top]), int(candidates[top])
            rows = np.flatnonzero(alive)
            outside = self._mass_of(best, under[rows], above=False)
            if self.two_sided:
                outside = outside + self._mass_of(best, over[rows], above=True)
            # The margin is the rounding error of a sum near one.
            alive[rows] = outside > 1.0 - probability - 1e-13
            rows = np.flatnonzero(alive)
            claim = np.full(rows.size, best)
            inside = self._evaluate(claim, rows, small=probability < _SMALL)[0]
            alive[rows] = inside < probability
            candidates = rows[np.argsort(inside)[:_TOGETHER]]
            candidates = candidates[alive[candidates]]
        return best, best_row

    def _mass_of(self, value: float, rows: Rows, *, above: bool) -> Floats:
        """Return the mass on one side of a claim, by row; equal rows are evaluated once."""
        different, place = np.unique(rows, return_inverse=True)
        mass = np.empty(different.size)
        for block in _blocks(different.size):
            part = self.sides.take(different[block]).mirrored_where(above)
            mass[block] = part.below(np.full(part.x.a.shape, value), rest=False)[0]
        return mass[place]

    def _evaluate(self, value: Floats, rows: Rows, *, small: bool) -> tuple[Floats, Floats, Floats]:
        """Return mass inside and outside the claims, and density; ``small``: exact mass inside."""
        inside, outside, density = (np.empty(value.size) for _ in range(3))
        for block in _blocks(value.size):
            sides, claim = self.sides.take(rows[block]), value[block]
            if self.two_sided:
                # The region is symmetric: put the greater part of the mass outside below.
                worse = sides.x.a / (sides.x.a + sides.x.b) + sides.y.a / (sides.y.a + sides.y.b)
                sides = sides.mirrored_where(worse > 1.0)
            mass, slope = sides.below(claim, rest=small)
            above = np.zeros(claim.size)
            # Otherwise the mass above the diagonal is below the omitted tail.
            seen = sides.x.lower_rest + sides.y.lower_rest < 1.0
            if self.two_sided and np.any(seen):
                mirrored = sides.take(np.flatnonzero(seen)).mirrored_where(True)
                above[seen], more = mirrored.below(claim[seen], rest=False)
                slope[seen] += more
            inside[block] = mass - above if small else 1.0 - (mass + above)
            outside[block] = 1.0 - inside[block] if small else mass + above
            density[block] = slope
        return inside, outside, density


def _blocks(size: int) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, size, _BLOCK)]


def _dominating(fn: Floats, fp: Floats) -> Rows:
    """Return, for each row, an undominated row with at most its counts: a staircase corner."""
    order = np.lexsort((fp, fn))
    least = np.minimum.accumulate(fp[order])
    corner = np.concatenate(([True], least[1:] < least[:-1]))
    # The last corner with at most the row's fn has the fewest fp of all of those.
    last = np.searchsorted(fn[order][corner], fn, side="right") - 1
    return order[corner][last]
