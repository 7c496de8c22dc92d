"""The bounds of one run by name, as `stats.bounds.named_bounds` has the others.

References:
    Steinke, Nasr and Jagielski 2023, arXiv:2305.08846. Mahloujifar, Melis and Chaudhuri 2024,
    arXiv:2410.22235. Agrawal et al. 2026, arXiv:2606.12733. Bentkus and Dzindzalieta 2015,
    doi:10.3150/14-BEJ603.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._arguments import delta_or_zero
from lightning_audit.stats.bounds.named_bounds import MU_TO_EPSILON, NamedBound
from lightning_audit.stats.one_run._guesses import SIDES, OneRunBound, Sides, default_guesses
from lightning_audit.stats.one_run.gaussian_pair import epsilon_gaussian_pair_from_scores
from lightning_audit.stats.one_run.one_run_epsilon import epsilon_one_run_from_scores
from lightning_audit.stats.one_run.one_run_fdp import (
    epsilon_one_run_fdp_from_scores,
    mu_one_run_from_scores,
)
from lightning_audit.stats.one_run.white_box import mu_white_box_from_scores
from lightning_audit.stats.tradeoff.gdp import gaussian_epsilon

__all__ = ["ONE_RUN_METHODS", "ONE_RUN_NAMES", "OneRunMethod", "named_one_run_bound"]

#: Function of scores in and out, delta and a significance, with the numbers of guesses and of
#: canaries without a score, and the guessed sides, by name; returns a bound.
_Guessing = Callable[..., OneRunBound]

#: Function of scores in and out, delta and a significance; returns a bound.
_FromScores = Callable[[ArrayLike, ArrayLike, float, float], float]

_COINS = "every canary in by its own fair coin, unknown to anyone who scored it"
_ONE_TRAINING = "all canaries of one training; their scores may depend on each other"
_GIVEN = (
    "the numbers of guesses were chosen before the scores were seen, which cannot be checked here"
)
_ONE_RELEASE = "all readings of one release or step, along orthonormal directions"
_ONE_VARIANCE = "independent Gaussian noise of one variance along each of them"
_ASYMPTOTIC = (
    "asymptotic: independent scores, Gaussian in the limit, with one law within each group"
)
_ALIKE = "the data add equally along every canary: large data along a few make it exceed epsilon"
_PAIR_TO_EPSILON = "epsilon of the mechanism is at least that of the pair of Gaussians"


@dataclass(frozen=True)
class OneRunMethod:
    """A bound from many canaries of one training.

    Args:
        name: Name in arguments.
        quantity: What it bounds, "mu" or "epsilon".
        assumptions: What it assumes.
        reference: Its source.
        from_guesses: The bound from guesses; None for one from the scores themselves.
        from_scores: The bound from the scores themselves; None for one from guesses.
        valid: Whether it has its significance for any data along the canaries.
    """

    name: str
    quantity: Literal["mu", "epsilon"]
    assumptions: tuple[str, ...]
    reference: str
    from_guesses: _Guessing | None = None
    from_scores: _FromScores | None = None
    valid: bool = True


#: Every method, by name.
ONE_RUN_METHODS: Mapping[str, OneRunMethod] = {
    method.name: method
    for method in (
        OneRunMethod(
            "one_run",
            "epsilon",
            (_COINS, _ONE_TRAINING),
            "Steinke, Nasr and Jagielski 2023, section 5",
            epsilon_one_run_from_scores,
        ),
        OneRunMethod(
            "one_run_fdp",
            "epsilon",
            (_COINS, _ONE_TRAINING),
            "Mahloujifar, Melis and Chaudhuri 2024, with the trade-off function of "
            "(epsilon, delta)",
            epsilon_one_run_fdp_from_scores,
        ),
        OneRunMethod(
            "one_run_mu",
            "mu",
            (_COINS, _ONE_TRAINING, MU_TO_EPSILON),
            "Mahloujifar, Melis and Chaudhuri 2024, with the trade-off function of mu-GDP",
            lambda inside, outside, delta, significance, **guessed: mu_one_run_from_scores(
                inside, outside, significance, **guessed
            ),
        ),
        OneRunMethod(
            "white_box",
            "mu",
            (_COINS, _ONE_RELEASE, _ONE_VARIANCE, MU_TO_EPSILON),
            "Bentkus and Dzindzalieta 2015; derived in `lightning_audit.stats.one_run.white_box`",
            from_scores=lambda inside, outside, delta, significance: mu_white_box_from_scores(
                inside, outside, significance
            ),
        ),
        OneRunMethod(
            "gaussian_pair",
            "epsilon",
            (_COINS, _ASYMPTOTIC, _ALIKE, _PAIR_TO_EPSILON),
            "the idea of Agrawal et al. 2026; the confidence region is ours, derived in "
            "`lightning_audit.stats.one_run.gaussian_pair`",
            from_scores=epsilon_gaussian_pair_from_scores,
            # Data that differ between the canaries look like leakage, for any number of canaries.
            valid=False,
        ),
    )
}
ONE_RUN_NAMES = tuple(ONE_RUN_METHODS)


def named_one_run_bound(
    method: str,
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float,
    significance: float = 0.05,
    guesses: Sequence[int] | None = None,
    unscored: int = 0,
    sides: Sides = "both",
) -> NamedBound:
    """Return a lower bound on the epsilon of a training with many canaries, by method name.

    Args:
        method: One of `ONE_RUN_NAMES`.
        scores_in: Scores of the canaries that were in, ``[n_in]``, in any unit.
        scores_out: Scores of those that were out, ``[n_out]``, in the same unit.
        delta: Delta of the epsilon, in (0, 1), or 0 for "one_run" and "one_run_fdp".
        significance: Probability in (0, 1) with which the bound may be wrong.
        guesses: As in `epsilon_one_run_from_scores`, like the next two. Given numbers are assumed
            to be chosen before the scores were seen, and the bound states that; those of None
            follow from the number of canaries.
        unscored: Number of canaries that had a coin, but have no score.
        sides: Which canaries are guessed. "white_box" and "gaussian_pair" accept only the defaults
            of the last three.

    Returns:
        The bound, with its assumptions.

    Raises:
        ValueError: If an argument is out of its range or does not apply to the method, or scores
            are not vectors of numbers.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = 1 + rng.standard_normal(500), rng.standard_normal(500)
        >>> bound = named_one_run_bound("one_run", *scores, 1e-5, guesses=[62])
        >>> round(bound.epsilon_lower, 2), bound.rule
        (1.5, '62 guesses, half in and half out')
    """
    chosen = ONE_RUN_METHODS[_validate.one_of("method", method, ONE_RUN_METHODS)]
    level = _validate.open_unit("significance", significance, "e.g. 0.05")
    _validate.one_of("sides", sides, SIDES)
    at = _delta_of(chosen, delta)
    found: OneRunBound | None = None
    rule: str | None = None
    given = guesses is not None
    if chosen.from_scores:
        _refuse_guesses(method, guesses, unscored, sides)
        value = chosen.from_scores(scores_in, scores_out, at, level)
    elif chosen.from_guesses:
        if guesses is None:
            guesses = default_guesses(np.size(scores_in) + np.size(scores_out) + unscored, sides)
        found = chosen.from_guesses(
            scores_in, scores_out, at, level, guesses=guesses, unscored=unscored, sides=sides
        )
        value, rule = found.value, _words_of(guesses, sides, given)
    assumptions = (*chosen.assumptions, _GIVEN) if given else chosen.assumptions
    return _labelled(chosen, value, at, level, rule, found, assumptions)


def _labelled(
    method: OneRunMethod,
    value: float,
    delta: float,
    significance: float,
    rule: str | None,
    found: OneRunBound | None,
    assumptions: tuple[str, ...],
) -> NamedBound:
    mu = value if method.quantity == "mu" else None
    return NamedBound(
        method=method.name,
        epsilon_lower=value if mu is None else float(gaussian_epsilon(mu, delta)),
        mu_lower=mu,
        delta=delta,
        significance=significance,
        interpretation="confidence",
        threshold=None,
        threshold_value=None,
        rule=rule,
        valid=method.valid,
        assumptions=assumptions,
        guesses=found.guesses if found else None,
        correct=found.correct if found else None,
    )


def _delta_of(method: OneRunMethod, delta: float) -> float:
    if method.quantity == "mu" or method.from_scores:
        return _validate.open_unit("delta", delta, "such as 1e-5; for delta = 0 take one_run")
    return delta_or_zero(delta)


def _refuse_guesses(
    method: str, guesses: Sequence[int] | None, unscored: int, sides: Sides
) -> None:
    """Raise a ValueError for arguments of guesses if the method uses the scores themselves."""
    for name, value, given in (
        ("sides", sides, sides != "both"),
        ("guesses", guesses, guesses is not None),
    ):
        if given:
            raise ValueError(
                f"{name}={value!r} is not for method={method!r}, which guesses nothing; leave it "
                "out, or take one_run."
            )
    if unscored:
        raise ValueError(
            f"unscored={unscored!r} must be 0 for method={method!r}, which needs a reading of "
            "every canary; take one_run."
        )


def _words_of(guesses: Sequence[int], sides: Sides, given: bool) -> str:
    way = "all in" if sides == "in" else "half in and half out"
    if not given:
        way += ", set by the number of canaries"
    numbers = [str(number) for number in sorted(set(guesses), reverse=True)]
    if len(numbers) < 2:
        (number,) = numbers or ["no"]
        return {"no": "no guesses", "1": "1 guess"}.get(number, f"{number} guesses, {way}")
    told = f"{', '.join(numbers[:-1])} and {numbers[-1]}"
    return f"the best of {told} guesses, {way}, each at its share of the significance"
