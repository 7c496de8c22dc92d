"""The lower bounds of the literature by name, with their interpretation and assumptions.

References:
    Nasr et al. 2023, arXiv:2302.07956. Nasr et al. 2021, arXiv:2101.04535. Zanella-Béguelin et al.
    2023, arXiv:2206.05199. Lu et al. 2022, arXiv:2210.08643. Katz et al. 1978,
    doi:10.2307/2530610. Hoeffding 1956, doi:10.1214/aoms/1177728178.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    epsilon_clopper_pearson,
    epsilon_jeffreys,
    epsilon_katz,
    mu_clopper_pearson,
    mu_pooled_clopper_pearson,
)
from lightning_audit.stats.gaussian import mu_noncentral_t_from_scores
from lightning_audit.stats.posteriors import Posterior
from lightning_audit.stats.thresholds import (
    Label,
    Simultaneous,
    Split,
    ThresholdBound,
    ThresholdChoice,
    assumptions_of,
    threshold_bound,
    words_of,
)
from lightning_audit.stats.tradeoff import gaussian_epsilon

__all__ = ["BOUND_NAMES", "METHODS", "BoundMethod", "NamedBound", "named_bound"]

_INDEPENDENT = "observations independent of each other, with one error rate within each world"
_GAUSSIAN = "scores Gaussian, with one variance in both worlds"
MU_TO_EPSILON = "epsilon from mu: the mechanism is Gaussian"
_DELTA_ADVICE = "such as 1e-5; for delta = 0 use the method katz"
_PRIOR = "error rates independent a priori, each Beta(1/2, 1/2)"


@dataclass(frozen=True)
class BoundMethod:
    """A bound of the literature, from what one of three functions takes.

    Args:
        name: Name in logs and arguments.
        quantity: What it bounds, "mu" or "epsilon".
        assumptions: What it assumes.
        reference: Its source.
        from_counts: Function of (counts, delta, significance) that returns lower bounds of the
            shape of the counts; None for a bound from something else.
        from_rates: Function of (upper type II rates, upper type I rates, delta) that returns lower
            bounds; None if upper limits of the rates are not enough.
        from_scores: Function of (scores in, scores out, delta, significance); None likewise.
        from_guesses: Function of (`OneRunScores`, delta, significance) that returns a
            `OneRunBound`; None likewise.
        interpretation: "confidence" (frequentist) or "credible" (Bayesian).
        monotone: Whether fewer errors of either kind never lower the bound.
        valid: Whether it has its significance under its assumptions.
    """

    name: str
    quantity: Literal["mu", "epsilon"]
    assumptions: tuple[str, ...]
    reference: str
    from_counts: Callable[[ConfusionCounts, float, float], Any] | None = None
    from_rates: Callable[[Floats, Floats, float], Any] | None = None
    from_scores: Callable[[ArrayLike, ArrayLike, float, float], float] | None = None
    from_guesses: Callable[[Any, float, float], Any] | None = None
    interpretation: Literal["confidence", "credible"] = "confidence"
    monotone: bool = True
    valid: bool = True

    def bound(self, value: float, delta: float, significance: float, **how: Any) -> NamedBound:
        """Return a value of this method as a bound on epsilon; ``how`` are further fields of it."""
        of_mu = self.quantity == "mu"
        bound = NamedBound(
            method=self.name,
            epsilon_lower=float(gaussian_epsilon(value, delta)) if of_mu else value,
            mu_lower=value if of_mu else None,
            delta=delta,
            significance=significance,
            interpretation=self.interpretation,
            valid=self.valid,
            assumptions=self.assumptions,
        )
        return replace(bound, **how)


@dataclass(frozen=True)
class NamedBound:
    """Lower bound of a method for the mechanism of one observation.

    Args:
        method: Name of the method.
        epsilon_lower: Lower bound on epsilon at ``delta``.
        mu_lower: Lower bound on mu; None for a method that bounds epsilon.
        delta: Delta of epsilon; 0 for "katz".
        significance: Probability that the bound is wrong, if it is valid.
        interpretation: "confidence" or "credible".
        threshold: "fixed" or "searched"; None for a method without threshold.
        threshold_value: The threshold used; None for a method without.
        rule: How the threshold or the number of guesses was chosen, as text; None for a method
            without.
        valid: Whether the bound has its significance: a maximum over thresholds does not, and
            "gaussian_pair" only if the data are alike along all canaries.
        assumptions: What the bound assumes.
        guesses: Number of canaries guessed to be in; None for a method with a threshold.
        correct: Number of those that were in.
    """

    method: str
    epsilon_lower: float
    mu_lower: float | None
    delta: float
    significance: float
    interpretation: Literal["confidence", "credible"]
    threshold: Label | None = None
    threshold_value: float | None = None
    rule: str | None = None
    valid: bool = True
    assumptions: tuple[str, ...] = ()
    guesses: int | None = None
    correct: int | None = None


def _mu_of_rates(fnr: Floats, fpr: Floats, delta: float) -> Floats:
    return np.asarray(np.maximum(-special.ndtri(fnr) - special.ndtri(fpr), 0.0))


def _epsilon_of_rates(fnr: Floats, fpr: Floats, delta: float) -> Floats:
    # Upper limits that sum to more than one do not show the attack's direction.
    below = fnr + fpr < 1.0 - delta
    return np.where(below, epsilon_at_rates(fnr, fpr, delta), 0.0)


#: Every method, by name.
METHODS: Mapping[str, BoundMethod] = {
    method.name: method
    for method in (
        BoundMethod(
            "fdp_cp",
            "mu",
            (_INDEPENDENT, MU_TO_EPSILON),
            "Nasr et al. 2023, eq. 12: Clopper-Pearson limits of both error rates",
            lambda counts, delta, significance: mu_clopper_pearson(counts, significance),
            _mu_of_rates,
        ),
        BoundMethod(
            "fdp_pooled_cp",
            "mu",
            (_INDEPENDENT, MU_TO_EPSILON),
            "Clopper-Pearson limit of both kinds of errors together; Hoeffding 1956",
            lambda counts, delta, significance: mu_pooled_clopper_pearson(counts, significance),
        ),
        BoundMethod(
            "fdp_bayes",
            "mu",
            (_INDEPENDENT, _PRIOR, MU_TO_EPSILON),
            "Nasr et al. 2023, eq. 13, with the posterior above the diagonal counted as mu = 0",
            lambda counts, delta, significance: Posterior.of_mu(
                counts, region="one_sided"
            ).quantile(significance),
            interpretation="credible",
        ),
        BoundMethod(
            "fdp_t",
            "mu",
            (_INDEPENDENT, _GAUSSIAN, MU_TO_EPSILON),
            "exact limit of the noncentral t distribution",
            from_scores=lambda inside, outside, delta, significance: mu_noncentral_t_from_scores(
                inside, outside, significance
            ),
        ),
        BoundMethod(
            "eps_cp",
            "epsilon",
            (_INDEPENDENT,),
            "Nasr et al. 2021; Clopper-Pearson limits of both error rates",
            epsilon_clopper_pearson,
            _epsilon_of_rates,
        ),
        BoundMethod(
            "eps_jeffreys",
            "epsilon",
            (_INDEPENDENT, _PRIOR),
            "Zanella-Béguelin et al. 2023: Jeffreys limits of both error rates",
            epsilon_jeffreys,
            interpretation="credible",
        ),
        BoundMethod(
            "eps_bayes",
            "epsilon",
            (_INDEPENDENT, _PRIOR),
            "Zanella-Béguelin et al. 2023, definition 3.1, with the posterior above the diagonal "
            "counted as epsilon = 0",
            lambda counts, delta, significance: Posterior.of_epsilon(
                counts, delta, region="one_sided"
            ).quantile(significance),
            interpretation="credible",
        ),
        BoundMethod(
            "katz",
            "epsilon",
            (_INDEPENDENT, "many errors of each kind: the limit is asymptotic", "delta = 0"),
            "Katz et al. 1978, Lu et al. 2022: normal limit of the log ratio of two rates",
            lambda counts, delta, significance: epsilon_katz(counts, significance),
            monotone=False,
        ),
    )
}
BOUND_NAMES = tuple(METHODS)


def named_bound(
    method: str,
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float,
    significance: float = 0.05,
    threshold: ThresholdChoice | None = None,
) -> NamedBound:
    """Return a lower bound on the epsilon of one observation, by the name of its method.

    Args:
        method: One of `BOUND_NAMES`.
        scores_in: Scores with the canary in, larger if it seems to be in, ``[n_in]``.
        scores_out: Scores with the canary out, ``[n_out]``, in the same unit.
        delta: Delta of the epsilon, in (0, 1); "katz" always uses 0.
        significance: Probability in (0, 1) with which the bound may be wrong.
        threshold: Threshold choice; None for `Split`, or for "fdp_t", which has none.

    Returns:
        The bound, with its assumptions.

    Raises:
        ValueError: If the method is unknown, ``delta`` or ``significance`` is outside its range,
            scores are not vectors of numbers, or the method does not allow the threshold choice.

    Example:
        >>> from lightning_audit.stats.thresholds import Fixed
        >>> rng = np.random.default_rng(0)
        >>> scores = 1 + rng.standard_normal(1000), rng.standard_normal(1000)
        >>> bound = named_bound("fdp_pooled_cp", *scores, 1e-5, threshold=Fixed(0.5))
        >>> round(bound.mu_lower, 2), round(bound.epsilon_lower, 2), bound.threshold
        (0.84, 3.6, 'fixed')
    """
    chosen = METHODS[_validate.one_of("method", method, METHODS)]
    level = _validate.open_unit("significance", significance, "e.g. 0.05")
    at = 0.0 if method == "katz" else _validate.open_unit("delta", delta, _DELTA_ADVICE)
    if chosen.from_scores is not None:
        if threshold is not None:
            raise ValueError(
                f"threshold={threshold!r} is not for method={method!r}, which reads the scores "
                "themselves; leave it out, or take a method that counts errors, such as fdp_cp."
            )
        return chosen.bound(chosen.from_scores(scores_in, scores_out, at, level), at, level)
    choice = Split() if threshold is None else threshold
    found = _at_threshold(chosen, (scores_in, scores_out), at, level, choice)
    return chosen.bound(
        found.value,
        at,
        level,
        threshold=choice.label,
        threshold_value=found.threshold,
        rule=words_of(choice),
        valid=found.valid,
        assumptions=(*chosen.assumptions, *assumptions_of(choice)),
    )


def _at_threshold(
    method: BoundMethod,
    groups: tuple[ArrayLike, ArrayLike],
    delta: float,
    significance: float,
    choice: ThresholdChoice,
) -> ThresholdBound:
    of_counts, of_rates = method.from_counts, method.from_rates
    assert of_counts is not None
    if of_rates is None and isinstance(choice, Simultaneous):
        raise ValueError(
            f"threshold={choice!r} is not for method={method.name!r}, which needs counts and not "
            "limits of the error rates; take Fixed, Grid or Split, or the method fdp_cp."
        )
    return threshold_bound(
        *groups,
        choice,
        lambda counts, share: of_counts(counts, delta, share),
        significance,
        from_rates=None if of_rates is None else lambda fnr, fpr: of_rates(fnr, fpr, delta),
        monotone=method.monotone,
    )
