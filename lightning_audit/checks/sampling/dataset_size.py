"""Does the divisor of the gradients tell the number of records, and what does that cost?"""

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
    kind="accounting",
    each=True,
    blocks=_unpaid,
    # Where the number of records is private, and the divisor tells it at more than is claimed.
    wrong=lambda seen: (
        seen.get("private_dataset_size") is True
        and seen["claimed_epsilon"] is not None
        and exceeds(seen["epsilon_of_divisor"], seen["claimed_epsilon"])
    ),
    faults=(
        FaultRule(
            "divisor_tells_the_number_of_records",
            "divided by a number that is computed of the records: the size of the noise tells how "
            "many there are, which is stated as private",
            "what the sum of gradients and noise is divided by: make_private computes it of the "
            "data set, and it can be set to a constant afterwards",
            rank=10,
        ),
    ),
)

CHECKS = (EXPECTED_BATCH_SIZE,)


@dataclass(frozen=True)
class Promise:
    """What is promised of the records.

    Args:
        claimed_epsilon: of the whole training; None if nothing is claimed.
        delta: of that epsilon, in (0, 1).
        adjacency: between which data sets.
        private_size: whether the number of records is private.
    """

    claimed_epsilon: float | None
    delta: float
    adjacency: Adjacency = "add_remove"
    private_size: bool = False


def batch_size_result(
    expected: float, records: int, sample_rate: float, coordinates: int, promise: Promise
) -> CheckResult | None:
    """Result of `expected_batch_size`: what one record more or less does to the divisor.

    Opacus divides by ``int(records * sample_rate)``, the noise with the sum. Where one record more
    or less makes that another number, the noise of all coordinates of all steps has another size,
    and tells neighbouring data sets apart. The usual reading takes the number of records for
    public, and then nothing is wrong: this is said, and never fails.

    Where it is private, the cost is `isotropic_pair_epsilon` of the two divisors' ratio: exact for
    records whose gradients are zero, which are among those that an epsilon is promised for, and so
    a lower bound for the mechanism, whatever its noise multiplier. If it is above the claim, the
    claim is refuted. If it is not, what both cost together is not known, and nothing passes: where
    gradients are not zero, the divisor moves the mean as well, and no accountant counts it. The
    sample rate is taken for a public constant.

    Args:
        expected: the divisor.
        records: number of records in the data set.
        sample_rate: the accountant's rate.
        coordinates: number of parameters times that of the steps that had noise.
        promise: what is promised of the records.

    Returns:
        The result, None where the divisor is another number and so was set by hand.
    """
    if expected != int(records * sample_rate):
        return None
    others = sorted({int((records + more) * sample_rate) for more in (-1, 1)} - {int(expected)})
    evidence: dict[str, object] = {"expected_batch_size": expected, "of_neighbours": others}
    divided = f"gradients are divided by int(records * sample_rate) = {expected:g}"
    if not others:
        return _fine(
            "one record more or less leaves the divisor of the gradients the same", evidence
        )
    if promise.adjacency == "replace_one":
        return _fine(f"{divided}, which replacing a record leaves the same", evidence)
    cost = max(_cost(expected, other, coordinates, promise.delta) for other in others)
    evidence |= {"epsilon_of_divisor": cost, "coordinates": coordinates, "delta": promise.delta}
    divided += f", with one record more or less by {others[0]}"
    priced = (
        f"the other size of the noise alone costs epsilon {cost:.4g} at delta {promise.delta:.3g} "
        f"({coordinates:.3g} parameters times steps)"
    )
    if not promise.private_size:
        return _fine(
            f"{divided}: epsilon holds where the number of records is public, as is usual; where "
            f"it is not, {priced}: set expected_batch_size to a constant",
            evidence,
        )
    return _of_private_size(
        f"{divided}, and the number of records is private: {priced}", evidence, promise
    )


def _fine(message: str, evidence: Mapping[str, object]) -> CheckResult:
    return EXPECTED_BATCH_SIZE.judged(evidence, message, "", "")


def _of_private_size(message: str, evidence: Mapping[str, object], promise: Promise) -> CheckResult:
    """The result where the divisor tells a private number, which has its advice at any cost."""
    claimed, expected = promise.claimed_epsilon, evidence["expected_batch_size"]
    evidence = {**evidence, "private_dataset_size": True, "claimed_epsilon": claimed}
    advice = (
        "after make_private set optimizer.expected_batch_size to a constant that is not computed "
        f"of the records, and state it: PrivacyClaim(expected_batch_size=...); if {expected:g} is "
        "such a constant, state it"
    )
    if claimed is not None:
        message += f", and {claimed:.4g} is claimed"
    found = EXPECTED_BATCH_SIZE.judged(evidence, message, message, advice)
    return dataclasses.replace(found, advice=advice)


def _cost(expected: float, other: int, coordinates: int, delta: float) -> float:
    """Epsilon at which the noise of both divisors is told apart."""
    if min(expected, other) <= 0:
        return math.inf
    return isotropic_pair_epsilon(expected / other, coordinates, delta) if coordinates else 0.0
