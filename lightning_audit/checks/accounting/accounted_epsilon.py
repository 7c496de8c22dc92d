"""The check `accounting`: whether the run's steps compose to at most the claimed epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_audit.accounting.margin import exceeds
from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult

#: Reason for no composition if the claim's `noise_coefficients` correlate the noise of steps.
NOT_COMPOSED = (
    "noise_coefficients claim noise that is correlated over steps, and steps are composed here "
    "only if their noise is independent"
)

_SPENT_MORE = FaultRule(
    "wrong_accounting",
    "wrong accounting: the steps cost more than is claimed",
    "the number of steps, the sample rate and the noise multiplier that the claim was made for",
    headline="The steps cost more than claimed",
    rank=15,
)

_OF_REPLACEMENT = FaultRule(
    "replacement_accounted_as_removal",
    "wrong accounting: epsilon is promised if a record is replaced, and the claim covers only a "
    "record more or less",
    "which data sets are neighbors for the accountant: Opacus' accountants assume a record more or "
    "less, and replacing a record moves the sum of the gradients twice as far",
    headline="The claim covers removing a record, not replacing one",
    rank=15,
    # The claim would hold if no record were replaced, but one added or removed.
    applies=lambda seen: (
        seen.get("epsilon_by_removal") is not None
        and not exceeds(seen["epsilon_by_removal"], seen["claimed_epsilon"])
    ),
)

ACCOUNTING = Check(
    "accounting",
    "the steps, or those that are planned, cost more than the claim",
    title="Epsilon of the steps",
    failed_title="Steps cost more than claimed",
    meaning="The steps that ran, or that are planned, compose to a larger epsilon than the claim.",
    look_at="Check the number of steps, the sampling rate and the noise multiplier that the claim "
    "was computed for, and whether it covers replaced records.",
    topic="Total epsilon",
    kind="accounting",
    always=True,
    wrong=lambda seen: exceeds(
        seen.get("epsilon_planned") or seen["epsilon_spent"], seen["claimed_epsilon"]
    ),
    faults=(_OF_REPLACEMENT, _SPENT_MORE),
    refutes=("claimed",),  # the epsilon of the steps holds
)

CHECKS = (ACCOUNTING,)

_LESS = (
    "stop earlier, raise noise_multiplier, lower the sample rate, or claim the epsilon that the "
    "steps cost"
)
#: How steps are composed, for Poisson batches and for shuffled ones.
AS_LOSS_DISTRIBUTIONS = "as privacy loss distributions"
ONE_STEP_AN_EPOCH = "with each record in one step an epoch"


@dataclass(frozen=True)
class PlannedCost:
    """Planned cost of a training that has not taken a step.

    Args:
        epsilon: at the delta of the claim.
        what: what costs it, with its verb: "the 5 epochs that are planned cost".
    """

    epsilon: float
    what: str

    def at(self, delta: float) -> str:
        """Return the cost as text."""
        return f"{self.what} epsilon {self.epsilon:.4g} at delta {delta:.3g}"


def accounting_result(
    epsilon_spent: float | None,
    claimed_epsilon: float | None,
    delta: float,
    source: str,
    epsilon_by_removal: float | None = None,
    lack: str = "",
    how: str = AS_LOSS_DISTRIBUTIONS,
    planned: PlannedCost | None = None,
) -> CheckResult:
    """Compare the composed epsilon with the claim.

    Args:
        epsilon_spent: epsilon of the steps that ran; None if the sample rate is unknown.
        claimed_epsilon: the claim; None if there is none.
        delta: the delta of both.
        source: where the claim comes from, in words.
        epsilon_by_removal: epsilon of the same steps between data sets with a record added or
            removed, if ``epsilon_spent`` is between those with one replaced; else None.
        lack: why the epsilon of the steps is unknown, if not for the sample rate.
        how: how the steps were composed.
        planned: what the training will cost, if it was stopped before its first step.

    Returns:
        The result of the check `accounting`.
    """
    evidence = {"epsilon_spent": epsilon_spent, "claimed_epsilon": claimed_epsilon, "delta": delta}
    if planned is not None and claimed_epsilon is not None:
        wrong = f"{planned.at(delta)} {how}, {source} says {claimed_epsilon:.4g} (claimed)"
        return ACCOUNTING.judged(
            {**evidence, "epsilon_planned": planned.epsilon}, "", wrong, _less(planned.epsilon)
        )
    if epsilon_spent is None or claimed_epsilon is None:
        unknown = lack or "the sample rate is unknown"
        lacks = unknown if epsilon_spent is None else "no epsilon is claimed"
        return ACCOUNTING.not_run(f"not compared: {lacks}", evidence)
    between = ""
    if epsilon_by_removal is not None:
        between = " if a record is replaced"
        evidence["epsilon_by_removal"] = epsilon_by_removal
    # Two ways to compose the same steps give slightly different numbers.
    numbers = (
        f"epsilon {epsilon_spent:.4g} at delta {delta:.3g}{between} {how} "
        f"(spent), {source} says {claimed_epsilon:.4g} (claimed)"
    )
    advice = _less(epsilon_spent)
    if not math.isinf(epsilon_spent):
        advice += "; of Opacus' accountants, 'gdp' can report less than the truth"
    if epsilon_by_removal is not None and not exceeds(epsilon_by_removal, claimed_epsilon):
        advice = (
            "claim the epsilon that replacing a record costs, or raise noise_multiplier; adding or "
            f"removing one costs only {epsilon_by_removal:.4g}, which is what Opacus' accountants "
            "report"
        )
    return ACCOUNTING.judged(
        evidence,
        f"the steps so far compose to {numbers}",
        f"the steps so far cost {numbers}",
        advice,
    )


def _less(epsilon: float) -> str:
    """Return advice that lowers the cost of a training."""
    return "set noise_multiplier above 0" if math.isinf(epsilon) else _LESS
