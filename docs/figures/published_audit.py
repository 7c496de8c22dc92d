"""The published test of a claimed trade-off function from samples of a mechanism's outputs.

A test of "P or Q" with error rates (alpha, beta) refutes the claim that the mechanism is f-DP if
``beta < f(alpha)`` or, with the worlds exchanged, ``alpha < f(beta)``. The samples are split. The
estimated curve of one part gives the likelihood ratio at which it is furthest below the claim, and
a nearest-neighbor classifier is built for it. The errors are counted on the other part, which
neither has used. `SequentialTradeoffTest` of the package needs no split, and may look at any time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, significance_level
from lightning_audit.stats.binomial import clopper_pearson_upper
from lightning_audit.stats.output_estimates import (
    NeighbourRatio,
    claim_of_both_orders,
    estimate_by_kernel,
    estimate_by_neighbours,
    sample_pair,
)
from lightning_audit.stats.tradeoff import TradeoffFunction

Box = Literal["clopper_pearson", "hoeffding"]

# Likelihood ratios among which `audit_tradeoff` chooses.
_THRESHOLDS = np.geomspace(1e-4, 1e4, 801)


@dataclass(frozen=True)
class TradeoffAudit:
    """Result of a test of a claimed trade-off function.

    Args:
        rejected: Whether the claim is refuted, at the significance.
        threshold: Likelihood ratio above which the test guesses the second world.
        false_positives: Samples of the first world guessed to be of the second.
        negatives: Number of tested samples of the first world.
        false_negatives: Samples of the second world guessed to be of the first.
        positives: Number of tested samples of the second world.
        alpha_upper: Upper limit of the type I error rate.
        beta_upper: Upper limit of the type II error rate; both hold together.
        margin: Distance of the corner of both limits below the claim; refuted if positive.
    """

    rejected: bool
    threshold: float
    false_positives: int
    negatives: int
    false_negatives: int
    positives: int
    alpha_upper: float
    beta_upper: float
    margin: float


def audit_tradeoff(
    samples_p: ArrayLike,
    samples_q: ArrayLike,
    claim: TradeoffFunction,
    significance: float = 0.05,
    *,
    box: Box = "clopper_pearson",
    fraction: float = 0.5,
    neighbours: int | None = None,
    seed: int = 0,
) -> TradeoffAudit:
    """Test whether a mechanism is f-DP, from independent samples of its outputs on two data sets.

    A true claim is refuted with probability at most ``significance``, for any mechanism. A claim
    that is not refuted is not proved.

    Args:
        samples_p: Outputs on one data set, ``[n]`` or ``[n, ...]``, independent of each other.
        samples_q: Outputs on its neighbor, ``[n']`` or ``[n', ...]``.
        claim: The claimed trade-off function, convex and non-increasing; it is tested for both
            orders of the worlds, because f-DP promises both.
        significance: Probability in (0, 1) of refuting a true claim.
        box: Limits of the error rates; "hoeffding" is the paper's, which is wider.
        fraction: Fraction in (0, 1) of the samples that choose the test.
        neighbours: Number of neighbors of the classifier; None for ten times the default, as in
            the paper, and at most a sixth of the samples.
        seed: Seed of the random split, to be fixed beforehand: trying several is another search.

    Returns:
        The result, with the error counts and their limits.

    Raises:
        ValueError: If samples are not finite, fewer than eight or of different dimensions; if
            another argument is outside its range; if the claim covers one order only.

    References:
        Askin et al., "General-purpose f-DP estimation and auditing in a black-box setting", USENIX
        Security 2025, arXiv:2502.07066, Algorithm 3, with the exact limits of Clopper and Pearson.
    """
    p, q = sample_pair(samples_p, samples_q, least=8)
    share = _validate.open_unit("fraction", fraction, "0.5 is usual")
    rng = np.random.default_rng(seed)
    (p, p_test), (q, q_test) = (_split(rows, share, rng) for rows in (p, q))
    threshold = _lowest(p, q, claim_of_both_orders(claim))
    wanted = _neighbours(len(p) + len(q)) if neighbours is None else neighbours
    ratio = NeighbourRatio(p, q, wanted)
    fp = int(np.count_nonzero(ratio(p_test) > threshold))
    fn = int(np.count_nonzero(ratio(q_test) <= threshold))
    alpha = float(error_rate_corner(fp, len(p_test), significance, box))
    beta = float(error_rate_corner(fn, len(q_test), significance, box))
    margin = float(tradeoff_margin(alpha, beta, claim))
    counts = fp, len(p_test), fn, len(q_test)
    return TradeoffAudit(margin > 0, threshold, *counts, alpha, beta, margin)


def error_rate_corner(
    errors: ArrayLike, trials: int, significance: float, box: Box = "clopper_pearson"
) -> Floats:
    r"""Return an upper limit of one of two error rates, such that both hold together.

    .. math:: \text{Clopper-Pearson: } p_+(k, n; \gamma / 2), \qquad
        \text{Hoeffding: } \frac{k}{n} + \sqrt{\frac{\ln(4 / \gamma)}{2 n}}

    The first is exact; the second is the paper's box, two-sided although only its upper corner
    matters. Both fail with probability at most gamma for the two rates together.

    Args:
        errors: Numbers of errors, any shape.
        trials: Number of trials, >= 1.
        significance: gamma, in (0, 1).
        box: Which of the two limits.

    Returns:
        The limits in [0, 1], in the shape of ``errors``.

    Raises:
        ValueError: If an argument is outside its range.
    """
    level = significance_level(significance)
    counts = np.asarray(errors)
    exact = np.asarray(clopper_pearson_upper(counts, trials, level / 2))
    if _validate.one_of("box", box, ("clopper_pearson", "hoeffding")) == "clopper_pearson":
        return exact
    return np.minimum(counts / trials + math.sqrt(math.log(4.0 / level) / (2.0 * trials)), 1.0)


def tradeoff_margin(alpha: float | Floats, beta: float | Floats, claim: TradeoffFunction) -> Floats:
    """Return how far points (alpha, beta) are below a claim, in either order of the worlds."""
    return np.asarray(np.maximum(claim(alpha) - beta, claim(beta) - alpha))


def _split(rows: Floats, share: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    order = rng.permutation(len(rows))
    # Of the eight required samples, at least four choose and two test.
    cut = min(max(round(share * len(rows)), 4), len(rows) - 2)
    return rows[order[:cut]], rows[order[cut:]]


def _neighbours(samples: int) -> int:
    return max(1, min(10 * math.ceil(math.sqrt(samples)), samples // 6))


def _lowest(p: Floats, q: Floats, claim: TradeoffFunction) -> float:
    """Return the likelihood ratio at which the estimated curve is furthest below the claim."""
    if p.shape[1] == 1:
        curve = estimate_by_kernel(p, q, thresholds=_THRESHOLDS, smoothing=0.0)
    else:
        curve = estimate_by_neighbours(p, q, thresholds=_THRESHOLDS)
    # The distance over its error, or the expected margin, finds less: if nothing is far below the
    # claim, they select the ends of the curve, where everything is small.
    gap = tradeoff_margin(curve.alpha, curve.beta, claim)
    return float(curve.thresholds[int(np.argmax(gap))])
