"""Result of an audit over many trainings, and its report."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.many.credible import Posteriors, posteriors_of
from lightning_audit.many.least_error import Promise, Proved
from lightning_audit.many.looks import Guesses, Look, guess_coins, look_of
from lightning_audit.many.pooled_run import PooledRun
from lightning_audit.many.trainings_needed import BEFORE_GUESSES, error_to_see, trainings_to_pass
from lightning_audit.many.trainings_verdict import (
    OF_GUESSES,
    check_of,
    most_provable,
    outlook,
    verdict_of,
)
from lightning_audit.results.audit_report import AuditReport, EpsilonBound, Verdict, describe
from lightning_audit.results.trainings_seen import TrainingsSeen
from lightning_audit.stats._arguments import significance_level
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.bounds.error_rate_power import further_guesses
from lightning_audit.stats.bounds.intervals import clopper_pearson_upper
from lightning_audit.stats.evalues.share_bet import further_trainings

__all__ = ["TrainingAudit", "conclude"]

_LIBRARIES = ("lightning-audit", "torch", "opacus", "numpy", "scipy")
_COINS = "a fair coin of each training's own, independent of all else"
_ORDER = "looks read the trainings in the order of the plan; a failed one is a wrong guess"
_FORMS = {
    "mechanism": "Gaussian noise and Poisson batches; leakage over claim is constant",
    "tradeoff": "Gaussian outputs",
    "epsilon": "any mechanism",
}


@dataclass(frozen=True, eq=False)
class TrainingAudit:
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
    def passed(self) -> bool:
        """Whether the verdict is PASS."""
        return self.verdict.outcome == "PASS"

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

    def __str__(self) -> str:
        return describe(self.verdict)

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
    at least binomial. With several canaries in a training it is that of `PooledRun`. Each bound
    fails with ``bound_significance`` by itself.

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
    limits = guesses.error_upper(bound_level), _limit_at_end(guesses, plan, bound_level)
    proved = promise.proved_at(limits[0])
    end = None if limits[1] is None else promise.proved_at(limits[1])
    seen = replace(
        _seen(guesses, found, promise, plan, level, limits, proved),
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


def _limit_at_end(guesses: Guesses, planned: int, significance: float) -> float | None:
    # Several coins of one training depend on each other.
    if guesses.trainings != planned or guesses.canaries > 1:
        return None
    return float(clopper_pearson_upper(guesses.errors, guesses.total, significance))


def _seen(
    guesses: Guesses,
    found: Look,
    promise: Promise,
    planned: int,
    significance: float,
    limits: tuple[float, float | None],
    proved: Proved,
) -> TrainingsSeen:
    return TrainingsSeen(
        claim=promise.words,
        form=promise.form,
        pair=promise.pair,
        least_error=promise.least_error,
        errors=guesses.errors,
        guesses=guesses.total,
        trainings=guesses.trainings,
        failures=guesses.failures,
        planned=planned,
        canaries=guesses.canaries,
        significance=significance,
        log_e_value=found.log_e,
        refuted_after=found.refuted_after,
        error_upper=limits[0],
        error_upper_at_end=limits[1],
        mu_lower=proved.mu,
        ratio_lower=proved.ratio,
        trainings_more=None
        if found.refuted
        else _more(guesses, promise.least_error, significance / (1 + (guesses.canaries > 1))),
        trainings_to_pass=None,
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
    form = "tradeoff" if promise.gaussian else promise.form
    in_form = _FORMS["epsilon" if form == "tradeoff" and not promise.gaussian else form]
    rows = [(OF_GUESSES[0], in_form, "epsilon")]
    if in_form != _FORMS["epsilon"]:
        rows.append((OF_GUESSES[1], _FORMS["epsilon"], "epsilon_any"))
    return [
        EpsilonBound(
            name=name,
            epsilon_lower=getattr(proved, which),
            delta=promise.delta,
            mu_lower=None,
            significance=significance,
            interpretation="confidence",
            threshold="fixed",
            looks="anytime" if proved is anytime else "single",
            assumptions=(_COINS, _ORDER, assumed),
        )
        for name, assumed, which in rows
        for proved in (anytime, end)
        if proved is not None
    ]


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
