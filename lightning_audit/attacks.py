"""Membership attacks: functions of scores and membership of shadow models.

**MeasureMIA: error counts of the attack on each record, from models with and without it.** The
counts are the input of the posteriors of epsilon in `stats.attack_strength`. Records share models
here: counts of one record are as modeled, counts of several are from the same trainings and not
independent of each other, which the posteriors assume.

References:
    Carlini, Chien, Nasr, Song, Terzis and Tramèr, "Membership inference attacks from first
    principles", IEEE S&P 2022, arXiv:2112.03570, algorithm 1 and section V-C.
    Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of differential privacy from
    membership inference attacks", 2025, arXiv:2504.16683, algorithms 2 to 5.
    Zarifzadeh, Liu and Shokri, "Low-cost high-power membership inference attacks", ICML 2024,
    arXiv:2312.03262, sections 2.2 and 3 and appendix B.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import ConfusionCounts, Floats, places
from lightning_audit.stats.membership import (
    Challenges,
    auroc,
    measure_attack,
    measure_cross_fed,
    normal_ratio_p_value,
    tpr_at_fpr,
)

__all__ = [
    "AttackPerformance",
    "attack_performance",
    "cross_fed_mia",
    "lira",
    "log_probability",
    "measure_mia",
    "normal_ratio",
    "out_quantile",
    "rmia",
    "score_difference",
    "score_threshold",
]

# --- Scores of records under shadow models, validated, and their means and spreads a record.

Side = Literal["in", "out"]
Bools = NDArray[np.bool_]
_AMONG = {"in": "in", "out": "out of"}


@dataclass(frozen=True, eq=False)
class ShadowScores:
    """Scores of records under models whose membership is known.

    Args:
        scores: Scores, finite, ``[models, records]``.
        membership: Whether the model was trained with the record, ``[models, records]``.
    """

    scores: Floats
    membership: Bools

    @classmethod
    def of(
        cls, scores: ArrayLike, membership: ArrayLike, *, least_in: int = 0, least_out: int = 0
    ) -> ShadowScores:
        """Return the validated scores.

        Args:
            scores: As the field.
            membership: As the field.
            least_in: Number of models that each record must be in.
            least_out: Number of models that each record must be out of.

        Raises:
            ValueError: If a score is not finite, shapes differ, the membership is not boolean, or a
                record is in or out of too few models.
        """
        values = matrix("scores", scores, "models")
        inside = membership_of("membership", membership, values, "scores")
        found = cls(values, inside)
        for side, least in (("in", least_in), ("out", least_out)):
            models = found.models(side).sum(axis=0)  # type: ignore[arg-type]
            few = models < least
            if np.any(few):
                record = int(np.argmax(few))
                among = _AMONG[side]
                raise ValueError(
                    f"membership has record {record} {among} {int(models[record])} models, must "
                    f"have each record {among} at least {least} (fewer: {places(few)}); "
                    "train more models, each on a random half of the records."
                )
        return found

    def models(self, side: Side) -> Bools:
        """Return which models a record is in, or out of, ``[models, records]``."""
        return self.membership if side == "in" else ~self.membership

    def mean(self, side: Side) -> Floats:
        """Return the mean score of each record over the models of a side, ``[records]``."""
        models = self.models(side)
        # Relative to one score of the side, so that the mean of equal scores is exact.
        shift = self.scores[models.argmax(axis=0), np.arange(models.shape[1])]
        total = np.sum(np.where(models, self.scores - shift, 0.0), axis=0)
        return np.asarray(shift + total / models.sum(axis=0))

    def spread(self, side: Side, *, pooled: bool) -> Floats:
        """Return the standard deviation of the scores of each record on a side, ``[records]``.

        Args:
            side: Models with the record, or without it.
            pooled: Whether all records have one: the square root of the sum of squared distances
                from each record's mean, over the number of scores less the number of records.
                Otherwise each record has its own, over the number of its scores less one.

        Raises:
            ValueError: If scores have no spread.
        """
        models = self.models(side)
        squares = np.sum(np.where(models, self.scores - self.mean(side), 0.0) ** 2, axis=0)
        degrees = models.sum(axis=0) - 1
        if pooled:
            squares = np.full(squares.shape, squares.sum() / degrees.sum())
            degrees = np.ones_like(degrees)
        if np.any(none := squares <= 0):
            advice = "check that models have random seeds of their own"
            if not pooled:
                advice += ", or use an attack with a pooled variance"
            raise ValueError(
                f"scores of record {int(np.argmax(none))} by the models that it is {_AMONG[side]} "
                f"are equal ({places(none)}), must differ: equal scores have no spread; {advice}."
            )
        return np.asarray(np.sqrt(squares / degrees))

    def targets(self, targets: ArrayLike) -> Floats:
        """Return the validated scores under attacked models, ``[targets, records]``.

        Raises:
            ValueError: If a score is not finite, or there is not one of each record.
        """
        values = matrix("targets", targets, "targets")
        if values.shape[1] != self.scores.shape[1]:
            raise ValueError(
                f"targets has shape {values.shape}, must be [targets, records] for "
                f"{self.scores.shape[1]} records; give the scores of the same records in the same "
                "order."
            )
        return values


def matrix(name: str, values: ArrayLike, rows: str) -> Floats:
    """Return finite scores as ``[rows, records]``, at least one of each."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise ValueError(
            f"{name} has shape {array.shape}, must be [{rows}, records], at least one of each; "
            "give one score for each model and record."
        )
    if np.any(bad := ~np.isfinite(array)):
        raise ValueError(
            f"{name} holds nan or infinity, must be finite ({places(bad)}); leave out the models "
            "that failed, and clip infinite scores."
        )
    return array


def membership_of(name: str, membership: ArrayLike, like: Floats, like_name: str) -> Bools:
    """Return a boolean membership in the shape of other scores."""
    inside = np.asarray(membership)
    if inside.dtype != np.bool_:
        raise ValueError(
            f"{name} has dtype {inside.dtype}, must be bool: True if the model was trained with "
            "the record."
        )
    if inside.shape != like.shape:
        raise ValueError(
            f"{name} has shape {inside.shape}, must be that of {like_name}, {like.shape}; give one "
            "value for each score."
        )
    return inside


# --- Area under the ROC curve and true positive rates of an attack's scores.


@dataclass(frozen=True)
class AttackPerformance:
    """How well an attack separates members from others, over all targets and records.

    Args:
        auc: Area under the ROC curve, in [0, 1], an estimate.
        tpr: True positive rate at each false positive rate, an estimate.
        members: Number of pairs of an attacked model and a record that it was trained with.
        non_members: Number of the other pairs.
    """

    auc: float
    tpr: dict[float, float]
    members: int
    non_members: int


def attack_performance(
    attacked: ArrayLike, membership: ArrayLike, fpr: Sequence[float] = (0.01, 0.001)
) -> AttackPerformance:
    """Return the area and the rates of an attack's scores, pooled over targets and records.

    The pairs of one attacked model are not independent of each other. The figures describe the
    attack; for a bound on epsilon see docs/challenge-points.md.

    Args:
        attacked: Scores of an attack, larger if the record seems to be a member, finite,
            ``[targets, records]``.
        membership: Whether the attacked model was trained with the record, bool,
            ``[targets, records]``.
        fpr: False positive rates in [0, 1].

    Returns:
        The area and the rates.

    Raises:
        ValueError: If an argument has another form or range, a score is not finite, or there are
            only members, or none.

    Example:
        >>> attack_performance([[0.3, 0.1], [0.2, 0.4]], [[True, False], [False, True]]).auc
        1.0
    """
    values = matrix("attacked", attacked, "targets")
    inside = membership_of("membership", membership, values, "attacked")
    members, others = values[inside], values[~inside]
    if not members.size or not others.size:
        raise ValueError(
            f"membership has {members.size} members and {others.size} others, must have some of "
            "both: a rate of an empty group does not exist; attack models that were trained "
            "without some of the records."
        )
    return AttackPerformance(
        auroc(members, others),
        {rate: tpr_at_fpr(members, others, rate) for rate in fpr},
        members.size,
        others.size,
    )


# --- Attacks that compare a record's score with a few numbers of its shadow scores.


def log_probability(margins: ArrayLike) -> Floats:
    """Return the log probability of a record's class from its logit margin, of any shape.

    Args:
        margins: ``log p / (1 - p)``, as `LogitMargin` returns.

    Returns:
        log p, at most 0, in the shape of the argument; minus the cross-entropy loss.

    Example:
        >>> log_probability([0.0, 40.0]).round(3).tolist()
        [-0.693, -0.0]
    """
    return -np.logaddexp(0.0, -np.asarray(margins, dtype=np.float64))


def score_threshold(scores: ArrayLike, membership: ArrayLike, targets: ArrayLike) -> Floats:
    """Return the scores under the attacked models themselves: one threshold for all records.

    With the logit margin this is the attack by a threshold of the loss, because the loss is a
    decreasing function of the margin.

    Args:
        scores: As in `score_difference`; validated, not used.
        membership: As in `score_difference`; validated, not used.
        targets: As in `score_difference`.

    Returns:
        The scores, ``[targets, records]``, larger if the record seems to be a member.

    Raises:
        ValueError: If an argument has another form or a score is not finite.

    References:
        Yeom, Giacomelli, Fredrikson and Jha, "Privacy risk in machine learning: analyzing the
        connection to overfitting", CSF 2018, arXiv:1709.01604.
    """
    return ShadowScores.of(scores, membership).targets(targets).copy()


def score_difference(scores: ArrayLike, membership: ArrayLike, targets: ArrayLike) -> Floats:
    """Return how far scores under the attacked models exceed the mean without the record.

    Args:
        scores: Scores of the records under the shadow models, finite, ``[models, records]``.
        membership: Whether the shadow model was trained with the record, bool,
            ``[models, records]``.
        targets: Scores of the same records under the attacked models, which are not among the
            shadow models, finite, ``[targets, records]``.

    Returns:
        The differences, ``[targets, records]``, in the unit of the scores, larger if the record
        seems to be a member.

    Raises:
        ValueError: If an argument has another form, a score is not finite, or a record is in all
            models.

    References:
        Watson, Guo, Cormode and Sablayrolles, "On the importance of difficulty calibration in
        membership inference attacks", ICLR 2022, arXiv:2111.08440.
    """
    shadows = ShadowScores.of(scores, membership, least_out=1)
    return shadows.targets(targets) - shadows.mean("out")


def out_quantile(
    scores: ArrayLike, membership: ArrayLike, targets: ArrayLike, *, level: float = 0.9
) -> Floats:
    """Return how far scores under the attacked models exceed a quantile without the record.

    A record with a result above 0 is guessed to be a member. About ``1 - level`` of the records
    that are not members pass. The published attack predicts the quantile by a regression on the
    record's features, trained on records that are not members of the one attacked model. Here it is
    the empirical quantile of the record's own scores under the models without it, with linear
    interpolation between them: no model of quantiles is trained.

    Args:
        scores: As in `score_difference`.
        membership: As in `score_difference`.
        targets: As in `score_difference`.
        level: Level of the quantile in (0, 1), one minus the false positive rate aimed at.

    Returns:
        The differences, ``[targets, records]``, in the unit of the scores.

    Raises:
        ValueError: As in `score_difference`, or if a record is out of fewer than
            ``1 / min(level, 1 - level)`` models: their most extreme scores determine the quantile.

    References:
        Bertran, Tang, Roth, Kearns, Morgenstern and Wu, "Scalable membership inference attacks via
        quantile regression", NeurIPS 2023, arXiv:2307.03694.
    """
    at = _validate.open_unit("level", level, "such as 0.99 for a false positive rate of 0.01")
    # Rounding must not ask for one model more, as 1 / (1 - .9) would.
    least = int(np.ceil(1.0 / min(at, 1.0 - at) - 1e-9))
    shadows = ShadowScores.of(scores, membership, least_out=least)
    ordered = np.sort(np.where(shadows.membership, np.inf, shadows.scores), axis=0)
    place = at * (np.sum(~shadows.membership, axis=0) - 1)
    below = np.floor(place).astype(np.int64)
    records = np.arange(place.size)
    low, high = ordered[below, records], ordered[np.ceil(place).astype(np.int64), records]
    return np.asarray(shadows.targets(targets) - (low + (place - below) * (high - low)))


def normal_ratio(scores: ArrayLike, membership: ArrayLike, targets: ArrayLike) -> Floats:
    """Return minus the p-value of the likelihood-ratio test of two normal distributions.

    A record with a result of at least ``-alpha`` is guessed to be a member, at a false positive
    rate of alpha under the fitted distributions. The test is that of `lira` online with
    ``variance="own"``; p-values make records comparable by their false positive rate.

    Args:
        scores: As in `score_difference`, or losses: the test has no direction.
        membership: As in `score_difference`.
        targets: As in `score_difference`, likewise.

    Returns:
        Minus the p-values, ``[targets, records]``, in [-1, 0].

    Raises:
        ValueError: As in `score_difference`; if a record is in or out of fewer than 2 models, or
            its scores on a side are equal.

    References:
        Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of differential privacy
        from membership inference attacks", 2025, arXiv:2504.16683, algorithm 3 as
        `stats.membership` states it.
    """
    shadows = ShadowScores.of(scores, membership, least_in=2, least_out=2)
    mean_out, std_out = shadows.mean("out"), shadows.spread("out", pooled=False)
    mean_in, std_in = shadows.mean("in"), shadows.spread("in", pooled=False)
    return -normal_ratio_p_value(shadows.targets(targets), mean_out, std_out, mean_in, std_in)


# --- LiRA: the likelihood ratio of two normal distributions, fitted to each record's scores.

#: One variance for all records on each side, or one a record.
Variance = Literal["pooled", "own"]


def lira(
    scores: ArrayLike,
    membership: ArrayLike,
    targets: ArrayLike,
    *,
    online: bool = True,
    variance: Variance = "pooled",
) -> Floats:
    r"""Return the score of LiRA for each record under each attacked model.

    Online, the result is the log likelihood ratio

    .. math:: \log \frac{\mathcal N(t; \mu_\mathrm{in}, \sigma_\mathrm{in}^2)}
        {\mathcal N(t; \mu_\mathrm{out}, \sigma_\mathrm{out}^2)}

    which is above 0 if the fitted distribution with the record is the likelier one. Offline it is
    :math:`(t - \mu_\mathrm{out}) / \sigma_\mathrm{out}`. The published offline score is the normal
    distribution function of it, which has the same order but rounds to 1 above 8.

    Args:
        scores: Scores of the records under the shadow models, finite, ``[models, records]``; the
            published score is ``log p / (1 - p)`` of the record's class, as `LogitMargin` returns.
        membership: Whether the shadow model was trained with the record, bool,
            ``[models, records]``.
        targets: Scores of the same records under the attacked models, which are not among the
            shadow models, finite, ``[targets, records]``.
        online: Whether models with the record are used. If not, they may be absent.
        variance: "pooled" for one variance of each side, of the distances from each record's mean;
            "own" for one a record. The published global variance is that over all scores of a side,
            which also holds the differences between records.

    Returns:
        The scores, ``[targets, records]``, larger if the record seems to be a member.

    Raises:
        ValueError: If an argument has another form, a score is not finite, scores have no spread,
            or a record is out of fewer than 2 models, or online in fewer than 2.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> membership = rng.random((64, 3)) < 0.5
        >>> scores = rng.normal(membership * 1.0, 0.5)
        >>> lira(scores, membership, [[1.0, 0.5, 0.0]]).round(1)
        array([[ 2. ,  0.1, -1.7]])
    """
    _validate.one_of("variance", variance, get_args(Variance))
    pooled = variance == "pooled"
    shadows = ShadowScores.of(scores, membership, least_out=2, least_in=2 if online else 0)
    observed = shadows.targets(targets)
    std_out = shadows.spread("out", pooled=pooled)
    z_out = (observed - shadows.mean("out")) / std_out
    if not online:
        return np.asarray(z_out)
    std_in = shadows.spread("in", pooled=pooled)
    z_in = (observed - shadows.mean("in")) / std_in
    return np.asarray(0.5 * (z_out - z_in) * (z_out + z_in) + np.log(std_out / std_in))


# --- RMIA: how many other records a record's likelihood ratio exceeds.

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


# --- MeasureMIA: error counts of the attack on each record, from models with and without it.


def measure_mia(
    scores: ArrayLike, membership: ArrayLike, alpha: ArrayLike = 0.1, *, shadows: int = 8
) -> ConfusionCounts:
    """Count the errors of the two-normal test, each challenge with shadow models of its own.

    Of the models that a record is in, and of those that it is out of, the first
    ``n * (2 * shadows + 1)`` are used, where n is the same for all records: n attacked, ``shadows``
    for each of the n attacked models with the record, and as many for each without. The counts of
    a record are independent binomials, as `attack_strength_posterior` assumes, if the models are
    trained independently: memberships in complementary pairs are not, by a little.

    Args:
        scores: Scores or losses of the records under the models, finite, ``[models, records]``.
        membership: Whether the model was trained with the record, bool, ``[models, records]``.
        alpha: False positive rate in (0, 1) aimed at, a number or several, ``[k]``. Fix the one
            that is used before the scores are seen.
        shadows: Shadow models a side of each challenge, at least 2.

    Returns:
        The counts, ``[records]``, or ``[k, records]`` for several alpha.

    Raises:
        ValueError: If an argument has another form or range, a score is not finite, a record is in
            or out of fewer than ``2 * shadows + 1`` models, or shadow scores are equal.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> membership = np.arange(400)[:, None] % 2 == np.array([0, 1])
        >>> counts = measure_mia(rng.normal(2.0 * membership), membership)
        >>> counts.n_in.tolist(), counts.n_out.tolist()
        ([11, 11], [11, 11])
    """
    k = _validate.positive_int("shadows", shadows, "shadow models a side of each challenge")
    if k < 2:
        raise ValueError("shadows=1 must be at least 2: one score has no spread.")
    least = 2 * k + 1
    known = ShadowScores.of(scores, membership, least_in=least, least_out=least)
    n = _fewest(known) // least

    def challenges(own: Floats, rest: Floats, with_record: bool) -> Challenges:
        shadows_own = own[n : n * (k + 1)].reshape(n, k)
        shadows_rest = rest[n * (k + 1) : n * least].reshape(n, k)
        pair = (shadows_rest, shadows_own) if with_record else (shadows_own, shadows_rest)
        return Challenges(own[:n], *pair)

    return _of_each_record(
        known,
        lambda out, inside: measure_attack(
            challenges(out, inside, False), challenges(inside, out, True), alpha
        ),
    )


def cross_fed_mia(
    scores: ArrayLike, membership: ArrayLike, alpha: ArrayLike = 0.1
) -> tuple[ConfusionCounts, int]:
    """Count the errors of the two-normal test if each model is attacked by all the others.

    Of each side the first n models are used, where n is the smallest number of models that a record
    is in or out of. The decisions about a record are correlated: pass both results to
    `correlated_attack_posterior`, not to a binomial model.

    Args:
        scores: As in `measure_mia`.
        membership: As in `measure_mia`.
        alpha: As in `measure_mia`.

    Returns:
        (counts, ``[records]``, or ``[k, records]`` for several alpha; the cluster n).

    Raises:
        ValueError: As in `measure_mia`, for 3 models a side.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> membership = np.arange(200)[:, None] % 2 == np.array([0, 1])
        >>> counts, cluster = cross_fed_mia(rng.normal(2.0 * membership), membership)
        >>> cluster, counts.n_in.tolist()
        (100, [100, 100])
    """
    known = ShadowScores.of(scores, membership, least_in=3, least_out=3)
    n = _fewest(known)
    counts = _of_each_record(
        known, lambda out, inside: measure_cross_fed(out[:n], inside[:n], alpha)
    )
    return counts, n


def _fewest(known: ShadowScores) -> int:
    return min(int(known.models(side).sum(axis=0).min()) for side in ("in", "out"))


def _of_each_record(
    known: ShadowScores, measure: Callable[[Floats, Floats], ConfusionCounts]
) -> ConfusionCounts:
    """Return counts of each record, in the last axis, from scores without it and with it."""
    found = []
    for record, (column, inside) in enumerate(zip(known.scores.T, known.membership.T, strict=True)):
        try:
            found.append(measure(column[~inside], column[inside]))
        except ValueError as error:
            raise ValueError(f"record {record}: {error}") from error
    cells = zip(*(counts.cells for counts in found), strict=True)
    return ConfusionCounts(*(np.stack(of_records, axis=-1) for of_records in cells))
