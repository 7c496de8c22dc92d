"""Gradients that are not finite: `finite`."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def finite_result(lost: int, first: tuple[int, int, int] | None) -> CheckResult:
    """Result of `finite`: no record may decide alone whether the released gradient is a number.

    Args:
        lost: steps whose gradient was not finite.
        first: the first of them that some records made so and others did not: its number, how many
            records did, and how many there were; None if there is none.
    """
    evidence: dict[str, int] = {"lost_steps": lost}
    if lost and first is None:
        message = (
            f"the gradient of {lost} steps was not finite, and it cannot be told whether single "
            "records made it so"
        )
        return FINITE.not_run(message, evidence)
    step, records, rows = first or (0, 0, 0)
    if lost:
        evidence |= {"step": step, "records": records, "rows": rows}
    return FINITE.judged(
        evidence,
        FINITE.fine,
        f"at step {step} the gradients of {records} of {rows} records looked at were not finite, "
        "and got past clipping: the released gradient tells that such a record is in the batch",
        "drop or clamp such records before training, or set per-sample gradients that are not "
        "finite to zero before they are clipped; no noise hides NaN",
    )


FINITE = Check(
    "finite",
    "a record's gradient is not a number, and gets past clipping",
    each=True,
    always=True,
    wrong=lambda seen: "records" in seen,
    private=True,
    fine="the gradient of every step was finite",
    public=("lost_steps", "message"),
    faults=(
        FaultRule(
            "not_finite",
            "a record that is not finite: its gradient is not a number, no clipping bounds it, and "
            "the model shows whether the record was there",
            "the loss of that record (a logarithm or a quotient of zero, an overflow), and whether "
            "clipping leaves samples out whose norm is not finite",
            rank=-7,
        ),
    ),
)

CHECKS = (FINITE,)
