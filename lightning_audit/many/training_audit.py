"""Result of an audit over many trainings, and its report.

**Few trainings of many canaries: all their coins as those of one training, at the planned end.** A
coin changes one training only, so the trainings together are as private for it as that training is,
and the tests of one training hold for all coins together. They rank the scores and look at no coin
before they guess.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lightning_audit import _validate
from lightning_audit.many.looks import Guesses, guess_coins, look_of, mu_lower_of_scores
from lightning_audit.many.verdict import (
    BEFORE_GUESSES,
    OF_GUESSES,
    OF_SCORES,
    Promise,
    Proved,
    check_of,
    error_to_see,
    most_provable,
    outlook,
    trainings_to_pass,
    verdict_of,
)
from lightning_audit.results.audit_report import (
    AuditReport,
    EpsilonBound,
    HasVerdict,
    TrainingsSeen,
    Verdict,
)
from lightning_audit.stats._arguments import ConfusionCounts, significance_level
from lightning_audit.stats.attack_strength import attack_strength_posterior
from lightning_audit.stats.binomial import clopper_pearson_upper
from lightning_audit.stats.one_run import OneRunScores
from lightning_audit.stats.posteriors import Posterior
from lightning_audit.stats.power import further_guesses
from lightning_audit.stats.sequential import further_trainings
from lightning_audit.stats.tradeoff import gaussian_epsilon

# --- Bayesian estimates from the guesses of an audit: shown with its verdict, never part of it.

Interval = tuple[float, float]


@dataclass(frozen=True)
class Posteriors:
    """Equal-tailed credible intervals of epsilon and mu: estimates, not bounds.

    A positive lower end is not evidence of leakage. The intervals take the error counts for
    binomial ones at a threshold that was fixed beforehand; here the threshold was learnt from
    earlier trainings, which changes the counts little but is no part of the model.

    Args:
        level: Probability of each interval.
        epsilon: Of epsilon at ``delta``, if the attack is the best one (000).
        epsilon_of_strength: Of epsilon at ``delta``, with the unknown strength of the attack (003);
            None if there was no score of one of the two data sets.
        strength: Of that strength, in [0, 1]; None likewise.
        mu: Of the mu of Gaussian DP, if the attack is the best one (000, 004).
        delta: Delta of epsilon.

    References:
        Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
        arXiv:2206.05199. Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of
        differential privacy from membership inference attacks", 2025, arXiv:2504.16683.
    """

    level: float
    epsilon: Interval
    epsilon_of_strength: Interval | None
    strength: Interval | None
    mu: Interval
    delta: float


def posteriors_of(counts: ConfusionCounts, delta: float, level: float = 0.9) -> Posteriors:
    """Return the credible intervals that the counts of an attack give; takes some seconds.

    Args:
        counts: Outcomes of the guesses, one number each.
        delta: Delta in [0, 1).
        level: Probability in (0, 1) of each interval.

    Returns:
        The intervals.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        Counts of the example of 000:

        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> low, high = posteriors_of(counts, 0.05, 0.95).epsilon
        >>> round(low, 4), round(high, 4)
        (0.5218, 1.2666)
    """
    outside = 1.0 - _validate.open_unit("level", level, "such as 0.9")
    low, high = Posterior.of_epsilon(counts, delta).interval(outside)
    mu_low, mu_high = Posterior.of_mu(counts).interval(outside)
    of_strength = strength = None
    if int(counts.n_in) and int(counts.n_out):
        joint = attack_strength_posterior(counts, delta)
        of_strength, strength = joint.epsilon.interval(outside), joint.strength.interval(outside)
    return Posteriors(
        level=level,
        epsilon=(float(low), float(high)),
        epsilon_of_strength=of_strength,
        strength=strength,
        mu=(float(mu_low), float(mu_high)),
        delta=delta,
    )


# --- Few trainings of many canaries: all their coins as those of one training, at the planned end.


class PooledRun:
    """All coins of several trainings as those of one training.

    Scores of all trainings and canaries are ranked together, so they must be comparable. The coins
    of a training that failed are not guessed, and count: failing is part of what it shows.

    Args:
        scores: Scores of each canary in each training, ``[n, m]``.
        coins: Whether each canary was in, ``[n, m]``.
        failed: Whether each training failed, ``[n]``.

    References:
        Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
        arXiv:2305.08846. Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one
        run", 2024, arXiv:2410.22235. That trainings pool is our own remark.
    """

    def __init__(self, scores: ArrayLike, coins: ArrayLike, failed: ArrayLike) -> None:
        kept = ~np.asarray(failed, dtype=bool)
        values, inside = np.asarray(scores)[kept], np.asarray(coins)[kept]
        unscored = int(np.asarray(coins)[~kept].size)
        self._run = OneRunScores(values[inside], values[~inside], unscored=unscored)

    def refutes(self, promise: Promise, significance: float) -> bool:
        """Return whether one look at the planned end refutes a claim.

        (epsilon, delta) by Steinke's test. A Gaussian trade-off function, or steps on full batches,
        by that of Mahloujifar. Other claims are not tested.

        Args:
            promise: What is claimed.
            significance: Probability in (0, 1) with which a true claim may be refuted.
        """
        if promise.form == "epsilon" and promise.epsilon is not None:
            return self.epsilon_lower(promise.delta, significance) > promise.epsilon
        return promise.is_gaussian and self.mu_lower(significance) > promise.mu

    def epsilon_lower(self, delta: float, significance: float) -> float:
        """Return a lower bound on epsilon, for any mechanism."""
        return self._run.epsilon(delta, significance).value

    def mu_lower(self, significance: float) -> float:
        """Return a lower bound on mu of Gaussian DP."""
        return self._run.mu(significance).value

    def bounds(self, promise: Promise, significance: float) -> Sequence[EpsilonBound]:
        """Return the bounds of one look at the planned end.

        Args:
            promise: What is claimed.
            significance: Probability in (0, 1) with which each bound may fail.
        """
        delta = promise.delta
        found = {"coins_one_run": (self.epsilon_lower(delta, significance), _ANY)}
        if promise.is_gaussian:
            mu = self.mu_lower(significance)
            epsilon = float(gaussian_epsilon(mu, delta)) if mu > 0 else 0.0
            found["coins_one_run_mu"] = epsilon, _GAUSSIAN
        coins = "a fair coin of each canary's own, independent of all else"
        return [
            _bound(
                name=name,
                epsilon_lower=epsilon,
                delta=delta,
                significance=significance,
                looks="single",
                assumptions=(coins, assumed),
            )
            for name, (epsilon, assumed) in found.items()
        ]


#: What bounds assume of the mechanism.
_ANY, _GAUSSIAN = "any mechanism", "Gaussian outputs"
#: A bound of guesses, from its other fields.
_bound = functools.partial(
    EpsilonBound, mu_lower=None, interpretation="confidence", threshold="fixed"
)


# --- Result of an audit over many trainings, and its report.

_LIBRARIES = ("lightning-audit", "torch", "opacus", "numpy", "scipy")
_COINS = "a fair coin of each training's own, independent of all else"
_ORDER = "looks read the trainings in the order of the plan; a failed one is a wrong guess"
#: What bounds assume in the form of a claimed mechanism.
_LEAKAGE = "Gaussian noise and Poisson batches; leakage over claim is constant"


@dataclass(frozen=True, eq=False)
class TrainingAudit(HasVerdict):
    """Result of an audit of many trainings.

    Args:
        verdict: VIOLATION if a look refuted the claim; PASS if none did, the attack was shown to
            see half of the claimed strength, and one of twice the claimed strength would have been
            found with 95 % power; INCONCLUSIVE else. It is about these canaries, this score and
            this pair of data sets only.
        seen: The counts, and what follows from them.
        bounds: Lower bounds on epsilon: at any number of looks, and of one look at the planned end.
        counts: Outcomes of the guesses in trainings that did not fail.
        delta: Delta of the bounds.
        bound_significance: Probability with which each bound may fail.
        history: Claimed phases of (noise multiplier, sample rate, steps); empty for other claims.
        claimed_epsilon: Claimed epsilon at ``delta``; None if unknown.
    """

    verdict: Verdict
    seen: TrainingsSeen
    bounds: tuple[EpsilonBound, ...]
    counts: ConfusionCounts
    delta: float
    bound_significance: float
    history: tuple[tuple[float, float | None, int], ...] = ()
    claimed_epsilon: float | None = None

    @property
    def epsilon_lower(self) -> float:
        """Lower bound on epsilon at ``delta``, valid at any number of looks."""
        return self._epsilon("anytime") or 0.0

    @property
    def epsilon_lower_at_end(self) -> float | None:
        """Lower bound on epsilon by one look at the planned end; None before it."""
        return self._epsilon("single")

    @property
    def least_error(self) -> float:
        """Least mean error rate that the claim allows."""
        return self.seen.least_error

    @property
    def errors(self) -> int:
        """Number of wrong guesses."""
        return self.seen.errors

    @property
    def guesses(self) -> int:
        """Number of guesses."""
        return self.seen.guesses

    @property
    def trainings(self) -> int:
        """Number of trainings."""
        return self.seen.trainings

    @property
    def failures(self) -> int:
        """Number of trainings that failed."""
        return self.seen.failures

    @property
    def outlook(self) -> str:
        """What a longer run would show, in a sentence; empty after a violation."""
        return outlook(self.seen)

    def posteriors(self, level: float = 0.9) -> Posteriors:
        """Return Bayesian estimates of epsilon, of the attack's strength and of mu.

        They are no part of the verdict, see `Posteriors`; takes some seconds.

        Args:
            level: Probability in (0, 1) of each interval.
        """
        return posteriors_of(self.counts, self.delta, level)

    def to_report(
        self,
        settings: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        seconds: float | None = None,
    ) -> AuditReport:
        """Return the report, for `AuditReport.save`, the console and ``lightning-audit check``.

        Args:
            settings: Arguments of the audit as plain values, without numbers of records.
            notes: Remarks on the trainings.
            seconds: Time that the audit took; None if unknown.
        """
        return AuditReport(
            verdict=self.verdict,
            checks=(check_of(self.seen),),
            bounds=self.bounds,
            claimed_epsilon=self.claimed_epsilon,
            epsilon_spent=None,
            epsilon_not_excluded=None,
            delta=self.delta,
            steps=0,
            observations=self.guesses,
            history=self.history,
            power={},
            epochs=(),
            settings={"significance": self.seen.significance, **(settings or {})},
            environment={name: _version(name) for name in _LIBRARIES},
            notes=(*notes, *most_provable(self.seen, self.delta, self.bound_significance)),
            created=datetime.now().astimezone().isoformat(timespec="seconds"),
            audit_cost={} if seconds is None else {"seconds": seconds},
            trainings=self.seen,
        )

    def _epsilon(self, looks: str) -> float | None:
        found = (bound.epsilon_lower for bound in self.bounds if bound.looks == looks)
        return max((epsilon for epsilon in found if epsilon is not None), default=None)


def conclude(
    scores: ArrayLike,
    coins: ArrayLike,
    failed: ArrayLike,
    promise: Promise,
    *,
    planned: int,
    significance: float = 1e-3,
    bound_significance: float = 0.05,
) -> TrainingAudit:
    """Return the result of an audit from its trainings, in the order of the plan.

    The bound of one look is given at the planned end only, by Clopper and Pearson's limit: given
    the past, each guess errs with at least the true least error rate, so the number of errors is
    at least binomial. With several canaries in a training it is that of `PooledRun`. For a Gaussian
    claim the bound at any number of looks is that of `mu_lower_of_scores`. Each bound fails with
    ``bound_significance`` by itself.

    Args:
        scores: Scores of a prefix of the plan; see `many.looks.guess_coins`, also for the next two.
        coins: Coins.
        failed: Failures.
        promise: What is claimed.
        planned: Number of trainings of the plan, fixed before the first one.
        significance: Probability in (0, 1) of a VIOLATION although the claim is true.
        bound_significance: Probability in (0, 1) with which each bound may fail.

    Returns:
        The result.

    Raises:
        ValueError: If an argument is out of its range; see `many.looks.guess_coins`.
    """
    level, bound_level = significance_level(significance), significance_level(bound_significance)
    plan = _validate.positive_int("planned", planned, "the number of trainings of the plan")
    guesses = guess_coins(scores, coins, failed)
    found = look_of(guesses, promise.least_error, -math.log(level))
    at_end = guesses.trainings == plan
    pooled = PooledRun(scores, coins, failed) if at_end and guesses.canaries > 1 else None
    if pooled and not found.refuted and pooled.refutes(promise, 0.5 * level):
        found = replace(found, refuted=True, log_e=-math.log(level), refuted_after=plan)
    upper, at_end_upper = guesses.error_upper(bound_level), None
    if at_end and guesses.canaries == 1:  # several coins of one training depend on each other
        at_end_upper = float(clopper_pearson_upper(guesses.errors, guesses.total, bound_level))
    proved = promise.proved_at(upper)
    if promise.is_gaussian:
        mu = mu_lower_of_scores(scores, coins, failed, promise.mu, plan, bound_level)
        more = promise.proved_at(float(special.ndtr(-0.5 * mu)))
        # The larger one of the two is reported, so both have to hold together.
        proved = replace(more, epsilon_any=min(proved.epsilon_any, more.epsilon))
    end = None if at_end_upper is None else promise.proved_at(at_end_upper)
    tested = level / (1 + (guesses.canaries > 1))
    seen = TrainingsSeen(
        claim=promise.words,
        form=promise.form,
        pair=promise.pair,
        least_error=promise.least_error,
        errors=guesses.errors,
        guesses=guesses.total,
        trainings=guesses.trainings,
        failures=guesses.failures,
        planned=plan,
        canaries=guesses.canaries,
        significance=level,
        log_e_value=found.log_e,
        refuted_after=found.refuted_after,
        error_upper=upper,
        error_upper_at_end=at_end_upper,
        mu_lower=proved.mu,
        ratio_lower=proved.ratio,
        trainings_more=None if found.refuted else _more(guesses, promise.least_error, tested),
        trainings_to_pass=_to_pass(guesses, promise.least_error, level, bound_level),
    )
    return TrainingAudit(
        verdict=verdict_of(seen, max(proved.epsilon, proved.epsilon_any), promise.delta),
        seen=seen,
        bounds=(
            *_bounds(promise, proved, end, bound_level),
            *(pooled.bounds(promise, bound_level) if pooled else ()),
        ),
        counts=guesses.counts,
        delta=promise.delta,
        bound_significance=bound_level,
        history=tuple((p.noise_multiplier, p.sample_rate, p.steps) for p in promise.history),
        claimed_epsilon=promise.epsilon,
    )


def _to_pass(
    guesses: Guesses, least_error: float, significance: float, bound_significance: float
) -> int | None:
    """Return after how many trainings power and sight suffice for a PASS; None if never."""
    lost = guesses.failures / max(guesses.trainings, 1)
    power = trainings_to_pass(least_error, significance, lost, guesses.canaries)
    more = _more(guesses, error_to_see(least_error), bound_significance)
    if power is None or more is None:
        return None
    before = guesses.first if guesses.total else BEFORE_GUESSES
    return max(power + before, max(guesses.trainings, BEFORE_GUESSES) + more)


def _more(guesses: Guesses, rate: float, significance: float) -> int | None:
    """Return how many more trainings show that fewer guesses are wrong than at a rate."""
    if guesses.canaries > 1:
        return further_trainings(1.0 - guesses.wrong, rate, significance)
    return further_guesses(guesses.errors, guesses.total, rate, significance)


def _bounds(
    promise: Promise, anytime: Proved, end: Proved | None, significance: float
) -> Sequence[EpsilonBound]:
    """Return the bounds in the form of the claim, then those for any mechanism if they differ."""
    in_form = _LEAKAGE if promise.form == "mechanism" else _GAUSSIAN if promise.gaussian else _ANY
    first = OF_SCORES if promise.is_gaussian else OF_GUESSES[0]
    rows: list[tuple[Literal["anytime", "single"], str, str, float]]
    rows = [("anytime", first, in_form, anytime.epsilon)]
    rows += [("single", OF_GUESSES[0], in_form, end.epsilon)] if end else []
    if in_form != _ANY:
        rows.append(("anytime", OF_GUESSES[1], _ANY, anytime.epsilon_any))
        rows += [("single", OF_GUESSES[1], _ANY, end.epsilon_any)] if end else []
    return [
        _bound(
            name=name,
            epsilon_lower=epsilon,
            delta=promise.delta,
            significance=significance,
            looks=looks,
            assumptions=(_COINS, _ORDER, assumed),
        )
        for looks, name, assumed, epsilon in rows
    ]


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
