"""The check `expected_batch_size`: what a divisor computed from the data set costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_audit.accounting.composition import Adjacency
from lightning_audit.accounting.margin import exceeds
from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.tradeoff.isotropic_divergence import isotropic_pair_epsilon


def _unpaid(found: CheckResult) -> str:
    # The divisor's cost alone is within the claim; what it and the steps cost is not known.
    if found.status != "ok" or found.evidence.get("private_dataset_size") is not True:
        return ""
    return f"{found.message}: the epsilon of both together is unknown; {found.advice}"


EXPECTED_BATCH_SIZE = Check(
    "expected_batch_size",
    "one record more or less changes the divisor of the gradients, and what that costs (a "
    "violation only where the number of records is stated as private)",
    title="Divisor and data set size",
    failed_title="Divisor reveals data set size",
    meaning="Gradients are divided by a number computed from the data set, although the number of "
    "records is stated as private.",
    look_at="Set `expected_batch_size` to a constant that is not computed from the records.",
    topic="Sampling and bookkeeping",
    kind="accounting",
    each=True,
    blocks=_unpaid,
    # If the number of records is private, and revealing it costs more than the claim.
    wrong=lambda seen: (
        seen.get("private_dataset_size") is True
        and seen["claimed_epsilon"] is not None
        and exceeds(seen["epsilon_of_divisor"], seen["claimed_epsilon"])
    ),
    faults=(
        FaultRule(
            "divisor_tells_the_number_of_records",
            "divided by a number that is computed from the records: the size of the noise reveals "
            "their number, which is stated as private",
            "what the sum of gradients and noise is divided by: make_private computes it from the "
            "data set, and it can be set to a constant afterwards",
            headline="The divisor reveals the number of records",
            rank=10,
        ),
    ),
)

CHECKS = (EXPECTED_BATCH_SIZE,)


@dataclass(frozen=True)
class Promise:
    """What the claim promises about the records.

    Args:
        claimed_epsilon: of the whole training; None if nothing is claimed.
        delta: of that epsilon, in (0, 1).
        adjacency: of the neighboring data sets.
        private_size: whether the number of records is private.
    """

    claimed_epsilon: float | None
    delta: float
    adjacency: Adjacency = "add_remove"
    private_size: bool = False


def batch_size_result(
    expected: float, records: int, sample_rate: float, coordinates: int, promise: Promise
) -> CheckResult | None:
    """Return the result of `expected_batch_size`: how one record more or less changes the divisor.

    Opacus divides the noisy sum by ``int(records * sample_rate)``. If one record more or less
    changes this number, it changes the size of the noise in all coordinates of all steps, which
    distinguishes neighboring data sets. Usually the number of records is taken as public. Then
    nothing is wrong; the message states the assumption, and the check never fails.

    If the number is private, the cost is `isotropic_pair_epsilon` of the two divisors' ratio. It is
    exact for records with zero gradients, for which the claim must hold as well, so it is a lower
    bound for the mechanism with any noise multiplier. If it exceeds the claim, the claim is
    refuted. Otherwise the joint cost of divisor and steps is unknown, and nothing passes: for
    nonzero gradients the divisor changes the mean as well, and no accountant counts that. The
    sample rate is assumed to be a public constant.

    Args:
        expected: the divisor.
        records: number of records in the data set.
        sample_rate: the accountant's rate.
        coordinates: number of parameters times number of steps with noise.
        promise: what the claim promises about the records.

    Returns:
        The result; None if the divisor is another number, so that it was set by hand.
    """
    if expected != int(records * sample_rate):
        return None
    others = sorted({int((records + more) * sample_rate) for more in (-1, 1)} - {int(expected)})
    evidence: dict[str, object] = {"expected_batch_size": expected, "of_neighbours": others}
    divided = f"gradients are divided by int(records * sample_rate) = {expected:g}"
    if not others:
        return _fine(
            "one record more or less does not change the divisor of the gradients", evidence
        )
    if promise.adjacency == "replace_one":
        return _fine(f"{divided}, which replacing a record does not change", evidence)
    cost = max(_cost(expected, other, coordinates, promise.delta) for other in others)
    evidence |= {"epsilon_of_divisor": cost, "coordinates": coordinates, "delta": promise.delta}
    divided += f", and with one record more or less by {others[0]}"
    priced = (
        f"the different size of the noise alone costs epsilon {cost:.4g} at delta "
        f"{promise.delta:.3g} "
        f"({coordinates:.3g} parameters times steps)"
    )
    if not promise.private_size:
        return _fine(
            f"{divided}: epsilon holds if the number of records is public, as is usual; if it is "
            f"private, {priced}: set expected_batch_size to a constant",
            evidence,
        )
    return _of_private_size(
        f"{divided}, and the number of records is private: {priced}", evidence, promise
    )


def _fine(message: str, evidence: Mapping[str, object]) -> CheckResult:
    return EXPECTED_BATCH_SIZE.judged(evidence, message, "", "")


def _of_private_size(message: str, evidence: Mapping[str, object], promise: Promise) -> CheckResult:
    """Return the result if the divisor reveals a private number, with advice at any cost."""
    claimed, expected = promise.claimed_epsilon, evidence["expected_batch_size"]
    evidence = {**evidence, "private_dataset_size": True, "claimed_epsilon": claimed}
    advice = (
        "after make_private set optimizer.expected_batch_size to a constant that is not computed "
        "from the records, and state it: PrivacyClaim(expected_batch_size=...); if "
        f"{expected:g} is such a constant, state it"
    )
    if claimed is not None:
        message += f", and {claimed:.4g} is claimed"
    found = EXPECTED_BATCH_SIZE.judged(evidence, message, message, advice)
    return dataclasses.replace(found, advice=advice)


def _cost(expected: float, other: int, coordinates: int, delta: float) -> float:
    """Return the epsilon of distinguishing the noise of both divisors."""
    if min(expected, other) <= 0:
        return math.inf
    return isotropic_pair_epsilon(expected / other, coordinates, delta) if coordinates else 0.0
