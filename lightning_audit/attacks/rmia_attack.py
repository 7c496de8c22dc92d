"""RMIA: how many other records a record's likelihood ratio exceeds.

References:
    Zarifzadeh, Liu and Shokri, "Low-cost high-power membership inference attacks", ICML 2024,
    arXiv:2312.03262, sections 2.2 and 3 and appendix B.2.2.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.attacks._shadow_scores import Bools, ShadowScores, matrix
from lightning_audit.attacks.plain_scores import log_probability
from lightning_audit.stats._arguments import Floats

__all__ = ["Scale", "rmia"]

#: What a score is: ``log p / (1 - p)``, or ``log p``.
Scale = Literal["logit_margin", "log_probability"]


def rmia(
    scores: ArrayLike,
    membership: ArrayLike,
    targets: ArrayLike,
    *,
    gamma: float = 1.0,
    offline_a: float | None = None,
    population: tuple[ArrayLike, ArrayLike] | None = None,
    scale: Scale = "logit_margin",
) -> Floats:
    r"""Return the score of RMIA for each record under each attacked model.

    .. math:: \Pr_z\left[\frac{p(x \mid \theta) / p(x)}{p(z \mid \theta) / p(z)} \ge \gamma\right]

    p(x | theta) is the attacked model's probability of the class of x, and p(x) its mean over
    models: online the average of the mean over models with x and of that over models without it;
    offline ``((1 + a) p_out(x) + (1 - a)) / 2``, where p_out(x) is the mean over models without it.

    Args:
        scores: Scores of the records under the shadow models, finite, ``[models, records]``, on
            ``scale``.
        membership: Whether the shadow model was trained with the record, bool,
            ``[models, records]``.
        targets: Scores of the same records under the attacked models, which are not among the
            shadow models, finite, ``[targets, records]``.
        gamma: Ratio > 0 from which a record counts as exceeding another.
        offline_a: None for online; else a in [0, 1], with which only models without the record are
            used. The paper fits it to its models: .3 for CIFAR-10, 1 for the mean itself.
        population: Scores of records z that no model was trained with, on ``scale``: (shadow
            models, ``[models, p]``; attacked models, ``[targets, p]``). None takes the other
            records of ``scores``, of which some are members.
        scale: "logit_margin" for ``log p / (1 - p)``, "log_probability" for ``log p``.

    Returns:
        The shares, ``[targets, records]``, in [0, 1], larger if the record seems to be a member.

    Raises:
        ValueError: If an argument has another form or range, a score is not finite, there is only
            one record and no population, or a record is out of no model, or online in none.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> membership = rng.random((64, 5)) < 0.5
        >>> scores = rng.normal(membership * 1.0, 0.5)
        >>> rmia(scores, membership, [[1.0, 0.5, 0.4, 0.1, 0.0]])
        array([[1.  , 0.5 , 0.75, 0.25, 0.  ]])
    """
    log_gamma = math.log(_validate.positive("gamma", gamma, "the paper uses 1 to 2"))
    _validate.one_of("scale", scale, get_args(Scale))
    a = None if offline_a is None else _offline_a(offline_a)
    shadows = ShadowScores.of(scores, membership, least_out=1, least_in=1 if a is None else 0)
    observed = shadows.targets(targets)
    logs = _logs("scores", shadows.scores, scale)
    ratios = _logs("targets", observed, scale) - _log_mean(logs, shadows.membership, a)
    if population is None:
        return _among_each_other(ratios, log_gamma)
    others = _population_ratios(population, len(logs), len(observed), a, scale)
    return np.asarray(_exceeded(ratios, others, log_gamma) / others.shape[1])


def _among_each_other(ratios: Floats, log_gamma: float) -> Floats:
    """Return the share of the other records that each record exceeds, ``[targets, records]``."""
    if ratios.shape[1] < 2:
        raise ValueError(
            "scores has 1 record, must have at least 2 without a population: RMIA compares "
            "records; give population=."
        )
    # A record is counted as exceeding itself if 1 >= gamma.
    own = int(log_gamma <= 0)
    return np.asarray((_exceeded(ratios, ratios, log_gamma) - own) / (ratios.shape[1] - 1))


def _population_ratios(
    population: tuple[ArrayLike, ArrayLike], models: int, targets: int, a: float | None, scale: str
) -> Floats:
    """Return log p(z | theta) / p(z), ``[targets, p]``."""
    if not isinstance(population, tuple | list) or len(population) != 2:
        raise ValueError(
            f"population={_validate.shown(population)} must be two arrays: scores under the shadow "
            "models and under the attacked ones."
        )
    names = ("population[0]", "population[1]")
    shadow, attacked = (
        _logs(name, matrix(name, values, rows), scale)
        for name, values, rows in zip(names, population, ("models", "targets"), strict=True)
    )
    if len(shadow) != models or attacked.shape != (targets, shadow.shape[1]):
        raise ValueError(
            f"population has shapes {shadow.shape} and {attacked.shape}, must have [{models}, p] "
            f"and [{targets}, p]; score the same p records under all models."
        )
    nowhere = np.zeros(shadow.shape, dtype=np.bool_)
    return attacked - _log_mean(shadow, nowhere, a)


def _log_mean(logs: Floats, inside: Bools, a: float | None) -> Floats:
    """Return log p(x) of each record, ``[records]``, from log p, ``[models, records]``.

    A record that is in no model has the mean of those without it.
    """
    out = _log_mean_of(logs, ~inside)
    if a is not None:
        rest = math.log1p(-a) if a < 1 else -math.inf
        return np.asarray(np.logaddexp(math.log1p(a) + out, rest) - math.log(2))
    some = inside.any(axis=0)
    both = out.copy()
    both[some] = np.logaddexp(out[some], _log_mean_of(logs[:, some], inside[:, some])) - np.log(2)
    return both


def _log_mean_of(logs: Floats, models: Bools) -> Floats:
    """Return the logarithm of the mean probability over some models of each record."""
    peak = np.where(models, logs, -np.inf).max(axis=0)
    total = np.sum(np.where(models, np.exp(np.minimum(logs - peak, 0.0)), 0.0), axis=0)
    return np.asarray(peak + np.log(total / models.sum(axis=0)))


def _exceeded(ratios: Floats, others: Floats, log_gamma: float) -> Floats:
    """Return how many of the others each ratio exceeds by the factor, a row a target."""
    rows = zip(ratios, others, strict=True)
    counts = [np.searchsorted(np.sort(z), x - log_gamma, side="right") for x, z in rows]
    return np.asarray(counts, dtype=np.float64)


def _logs(name: str, scores: Floats, scale: str) -> Floats:
    if scale == "logit_margin":
        return log_probability(scores)
    if np.any(scores > 0):
        raise ValueError(
            f"{name} holds {float(scores.max())!r}, must be at most 0 on scale='log_probability'; "
            "use scale='logit_margin' for log p / (1 - p)."
        )
    return scores


def _offline_a(value: float) -> float:
    a = _validate.non_negative("offline_a", value, "it is a weight in [0, 1], or None for online")
    if a > 1:
        raise ValueError(f"offline_a={value!r} must be in [0, 1], or None for online.")
    return a
