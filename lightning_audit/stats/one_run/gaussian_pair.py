r"""Lower bound on the epsilon of a pair of Gaussians, from the scores of one run.

One run's scores of the canaries that were in are taken as a sample of N(m_1, s_1^2), those of the
canaries that were out as one of N(m_0, s_0^2), and epsilon is that of the pair
(`stats.tradeoff.gaussian_divergence`). To audit one run by such a pair is an idea of Agrawal
et al. 2026. The confidence region below is ours, and not taken from them.

Epsilon depends on d = (m_1 - m_0) / s_0 and r = s_1 / s_0 only. With the sums of squares SS_1 and
SS_0 within the groups and the difference D of their means,

* SS_1 / (n_1 - 1) over SS_0 / (n_0 - 1) is r^2 times an F statistic;
* D over the root of (r^2 / n_1 + 1 / n_0) (SS_1 / r^2 + SS_0) / nu, nu = n_1 + n_0 - 2, is
  noncentral t with nu degrees of freedom, at the noncentrality d / sqrt(r^2 / n_1 + 1 / n_0): group
  1 over r has the variance of group 0.

At the true r the two are independent: a ratio of two chi-squares tells nothing of their sum, nor of
the means. So the region of all (d, r) with r in the F interval of level s', and with d at least the
noncentral t's lower limit for that r at level s', holds the truth with probability (1 - s')^2,
which is the 1 - s that is asked for. For each r epsilon is least at the least d >= 0: two unimodal
densities have min(p, e^epsilon q) above a level on the overlap of two intervals, which shrinks as
their middles part. What is left is one dimension, r, where epsilon need have no single minimum. It
is searched by parts (`_least`) with lower bounds that hold on the whole of each part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, delta_in_unit, significance_level
from lightning_audit.stats.bounds.gaussian import mean_and_squares, noncentrality_lower
from lightning_audit.stats.one_run.white_box import check_groups, finite_groups
from lightning_audit.stats.tradeoff.gaussian_divergence import one_way_epsilon

__all__ = ["epsilon_gaussian_pair", "epsilon_gaussian_pair_from_scores"]


#: Parts that the interval of ratios is first cut into, and then each part that may hold the least.
_FIRST_PARTS, _PARTS = 16, 4
# The bound may be below the least epsilon of the region by this share and this much.
_SLACK, _LEAST_SLACK = 1e-4, 1e-6


def epsilon_gaussian_pair(
    n_in: int,
    n_out: int,
    difference: float,
    squares_in: float,
    squares_out: float,
    delta: float,
    significance: float,
) -> float:
    """Lower bound on epsilon from the means and the sums of squares of two Gaussian groups.

    Exceeds the pair's epsilon with probability at most ``significance`` if all scores are
    independent and Gaussian, of one mean and variance within each group; then it holds for any
    numbers of scores. For the scores of one training it is asymptotic: they are Gaussian in the
    limit of a long training only, and alike within a group only if the data give the same along
    every canary. **It is not valid where they do not**: three canaries of 300 along which the data
    are large and no leakage give a positive bound in nearly every run. Of one release or step,
    `lightning_audit.stats.one_run.white_box.mu_white_box` holds whatever the data are.

    The region of the module's text is searched for its least epsilon, up to a relative 1e-4, on the
    side of the smaller bound. Only a larger mean of those that were in counts as leakage by the
    means; unequal variances count in either direction.

    Args:
        n_in: Number of canaries that were in.
        n_out: Number of canaries that were out.
        difference: Mean score of those in minus that of those out.
        squares_in: Sum of squared deviations from their mean of those in, > 0.
        squares_out: The same of those out, > 0.
        delta: Delta in (0, 1).
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0, and 0 where a group has fewer than two scores.

    Raises:
        ValueError: If an argument is out of its range, a sum of squares only where both groups
            have two scores.

    Example:
        >>> round(epsilon_gaussian_pair(500, 500, 1.0, 499.0, 499.0, 1e-5, 0.05), 2)
        3.72
        >>> round(epsilon_gaussian_pair(500, 500, 0.0, 998.0, 499.0, 1e-5, 0.05), 2)
        5.37

    References:
        Agrawal, Wei, Singh, Magdon-Ismail and Zikas, "Let's Ask Gauss: Improved One-Run Privacy
        Auditing", 2026 (arXiv 2606.12733), for the idea; the region is derived above.
    """
    delta_in_unit("delta", delta)
    # Both statistics fail with this probability, independently of each other.
    level = -math.expm1(0.5 * math.log1p(-significance_level(significance)))
    check_groups(n_in, n_out, difference, "scores")
    if n_in < 2 or n_out < 2:
        return 0.0
    advice = "scores that do not vary are not Gaussian, and no bound follows from them"
    for name, squares in (("squares_in", squares_in), ("squares_out", squares_out)):
        _validate.positive(name, squares, advice)
    groups = _Groups(float(n_in), float(n_out), difference, squares_in, squares_out, level)
    return _least(groups, delta)


def epsilon_gaussian_pair_from_scores(
    scores_in: ArrayLike, scores_out: ArrayLike, delta: float, significance: float
) -> float:
    """Lower bound on epsilon from scores that are Gaussian in each group.

    Scores in and out are ``[n_in]`` and ``[n_out]``, in one unit, whichever; see
    `epsilon_gaussian_pair` for the other arguments, and for what is supposed.

    Raises:
        ValueError: If scores are not one-dimensional, not finite or all alike within a group, or
            ``delta`` or ``significance`` is not in (0, 1).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> inside, outside = 1.0 + rng.standard_normal(500), rng.standard_normal(500)
        >>> 3.0 < epsilon_gaussian_pair_from_scores(inside, outside, 1e-5, 0.05) < 4.377
        True
    """
    groups = finite_groups(scores_in, scores_out, "scores")
    for name, scores in zip(("scores_in", "scores_out"), groups, strict=True):
        if scores.size > 1 and scores.min() == scores.max():
            raise ValueError(
                f"{name} holds {scores[0]:g} only, must hold scores that vary: Gaussian ones do; "
                "take one_run, which assumes nothing of the scores."
            )
    # The unit does not matter, and in this one no square is too large.
    unit = max(float(np.abs(scores).max(initial=0.0)) for scores in groups) or 1.0
    inside, outside = (scores / unit for scores in groups)
    (mean_1, squares_1), (mean_0, squares_0) = mean_and_squares(inside), mean_and_squares(outside)
    return epsilon_gaussian_pair(
        inside.size, outside.size, mean_1 - mean_0, squares_1, squares_0, delta, significance
    )


@dataclass(frozen=True)
class _Groups:
    """Statistics of both groups, and the level of each of the two limits."""

    n1: float
    n0: float
    difference: float
    squares1: float
    squares0: float
    level: float

    def log_ratios(self) -> tuple[float, float]:
        """Confidence limits of log r, by the F distribution."""
        f1, f0 = self.n1 - 1.0, self.n0 - 1.0
        seen = math.log(self.squares1 / f1) - math.log(self.squares0 / f0)
        # The lower quantile of F, and that of 1 / F, where no digits are lost to 1 - level / 2.
        low, high = (float(special.fdtri(*f, 0.5 * self.level)) for f in ((f0, f1), (f1, f0)))
        return 0.5 * (seen + math.log(low)), 0.5 * (seen - math.log(high))

    def noncentrality(self, r: Floats) -> Floats:
        """Lower limits of the noncentrality, at least zero, if r is the ratio."""
        freedom = np.full(r.shape, self.n1 + self.n0 - 2.0)
        noise = self.error(r) * np.sqrt((self.squares1 / r**2 + self.squares0) / freedom)
        return noncentrality_lower(self.difference / noise, freedom, self.level)

    def error(self, r: Floats) -> Floats:
        """Standard deviation of the difference of the means, in units of the one of group 0."""
        return np.sqrt(r**2 / self.n1 + 1.0 / self.n0)


def _least(groups: _Groups, delta: float) -> float:
    """Lower bound on epsilon over the whole region, at most a slack below its least epsilon.

    On a part r_a <= r <= r_b, with rho = r_b / r_a and one d, the density of N(d, r^2) is at least
    1 / rho of that for r_a and at most rho times that for r_b. So an epsilon that is enough for
    delta at any r of the part is, plus log rho, enough for rho delta at r_a, and for delta at r_b
    with the pair swapped. The squared noise of t is convex in r^2, so that t is least at an end of
    the part, as the error is at r_a: their limits give the part's least d.
    """
    low, high = groups.log_ratios()
    edges = np.linspace(low, high, _FIRST_PARTS + 1)
    if low < 0.0 < high:
        # Where no leakage is to be seen epsilon is zero here.
        edges = np.unique(np.append(edges, 0.0))
    start, end = edges[:-1], edges[1:]
    settled, reached = math.inf, math.inf
    while start.size:
        r_a, r_b, step = np.exp(start), np.exp(end), end - start
        limits = groups.noncentrality(np.concatenate([r_a, r_b])).reshape(2, -1)
        error = groups.error(r_a)
        here, part = limits[0] * error, limits.min(axis=0) * error
        at, raised = np.full(r_a.shape, delta), delta * np.exp(step)
        found = one_way_epsilon(
            np.concatenate([here, here / r_a, part, part / r_b]),
            np.concatenate([r_a, 1.0 / r_a, r_a, 1.0 / r_b]),
            np.concatenate([at, at, np.minimum(raised, 0.5 * (1.0 + delta)), at]),
        ).reshape(4, -1)
        reached = min(reached, float(found[:2].max(axis=0).min()))
        # Any epsilon is enough for a delta of one; half way there is near enough.
        forward = np.where(raised < 0.5 * (1.0 + delta), found[2], 0.0)
        bound = np.maximum(np.maximum(forward, found[3]) - step, 0.0)
        enough = bound >= (1.0 - _SLACK) * reached - _LEAST_SLACK
        settled = min(settled, float(bound[enough].min(initial=math.inf)))
        cuts = np.linspace(start[~enough], end[~enough], _PARTS + 1)
        start, end = cuts[:-1].ravel(), cuts[1:].ravel()
    return min(settled, reached)
