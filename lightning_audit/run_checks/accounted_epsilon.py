"""Does the history of the run compose to no more than the claimed epsilon?"""

from __future__ import annotations

import math

from lightning_audit.accounting.margin import exceeds
from lightning_audit.catalogue.claim_checks import ACCOUNTING
from lightning_audit.results.audit_report import CheckResult


def accounting_result(
    epsilon_spent: float | None,
    claimed_epsilon: float | None,
    delta: float,
    source: str,
    epsilon_by_removal: float | None = None,
    lack: str = "",
    how: str = "as privacy loss distributions",
) -> CheckResult:
    """Compare the composed epsilon with the claim.

    Args:
        epsilon_spent: epsilon of the steps that ran, composed as privacy loss distributions; None
            if the sample rate is unknown.
        claimed_epsilon: the claim; None if there is none.
        delta: the delta of both.
        source: where the claim comes from, in words.
        epsilon_by_removal: where ``epsilon_spent`` is between data sets with a record replaced,
            epsilon of the same steps between those with one added or removed; else None.
        lack: why no epsilon is known of the steps that ran, if it is not for the sample rate.
        how: the steps were composed.

    Returns:
        The result of the check `accounting`.
    """
    evidence = {
        "epsilon_spent": epsilon_spent,
        "claimed_epsilon": claimed_epsilon,
        "delta": delta,
    }
    if epsilon_spent is None or claimed_epsilon is None:
        unknown = lack or "the sample rate is unknown"
        lacks = unknown if epsilon_spent is None else "no epsilon is claimed"
        return ACCOUNTING.not_run(f"not compared: {lacks}", evidence)
    between = ""
    if epsilon_by_removal is not None:
        between = " where a record is replaced"
        evidence["epsilon_by_removal"] = epsilon_by_removal
    # Two ways to compose the same steps differ a little, and so the numbers do.
    numbers = (
        f"epsilon {epsilon_spent:.4g} at delta {delta:.3g}{between} {how} "
        f"(spent), {source} says {claimed_epsilon:.4g} (claimed)"
    )
    advice = (
        "set noise_multiplier above 0"
        if math.isinf(epsilon_spent)
        else "stop earlier, raise noise_multiplier, lower the sample rate, or claim the epsilon "
        "that the steps cost; of Opacus' accountants, 'gdp' can report less than the truth"
    )
    if epsilon_by_removal is not None and not exceeds(epsilon_by_removal, claimed_epsilon):
        advice = (
            "claim the epsilon that replacing a record costs, or raise noise_multiplier; adding or "
            f"removing one costs {epsilon_by_removal:.4g} only, which is what Opacus' accountants "
            "report"
        )
    return ACCOUNTING.judged(
        evidence,
        f"the steps so far compose to {numbers}",
        f"the steps so far cost {numbers}",
        advice,
    )
