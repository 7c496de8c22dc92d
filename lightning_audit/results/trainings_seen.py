"""What an audit over many trainings counted: the part of its report that other reports lack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrainingsSeen:
    """What an audit over many trainings counted, and what follows from the counts.

    Each training has fair coins of its own: whether its data set holds a canary. Errors are wrong
    guesses of coins, by a rule learnt from the trainings before it in the plan. All counts are
    functions of the audit's coins and of the trained models.

    Args:
        claim: the claim in words.
        form: "mechanism" of noise multiplier, sample rate and steps; "tradeoff" of a trade-off
            function; "epsilon" of (epsilon, delta).
        pair: how the two data sets of a training differ.
        least_error: least mean error rate that the claim allows.
        errors: number of wrong guesses; all guesses in failed trainings are wrong.
        guesses: number of guesses.
        trainings: number of trainings, from the first of the plan.
        failures: number of those that failed.
        planned: number of trainings of the plan.
        canaries: number of canaries in each training.
        significance: probability of a VIOLATION although the claim is true.
        log_e_value: largest natural logarithm of the e-value of all looks. With several canaries
            in a training, half of the significance is for the bets, so that it is of half the
            e-value, and half for one look at all coins at the planned end; if that refutes the
            claim, it is ``log(1 / significance)``.
        refuted_after: number of trainings at which the claim was refuted; None if it is not.
        error_upper: upper limit of the mean error rate at any number of looks.
        error_upper_at_end: upper limit by one look at the planned end; None before it.
        mu_lower: the training is not Gaussian DP with a smaller mu; at any number of looks.
        ratio_lower: leakage over claim is at least this; at any number of looks. None if the claim
            is of no mechanism.
        trainings_more: further trainings after which the claim is refuted if errors remain
            as frequent; None if they are not rarer than the claim allows, or it is refuted.
        trainings_to_pass: trainings after which a PASS is expected if errors remain as frequent:
            the attack is then shown to see half of the claimed strength, and one of twice that
            strength would be found with 95 % power; None if there is no such number.
    """

    claim: str
    form: Literal["mechanism", "tradeoff", "epsilon"]
    pair: Literal["add_remove", "replace_one"]
    least_error: float
    errors: int
    guesses: int
    trainings: int
    failures: int
    planned: int
    canaries: int
    significance: float
    log_e_value: float
    refuted_after: int | None
    error_upper: float
    error_upper_at_end: float | None
    mu_lower: float
    ratio_lower: float | None
    trainings_more: int | None
    trainings_to_pass: int | None
