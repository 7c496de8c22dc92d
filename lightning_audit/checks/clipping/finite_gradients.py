"""The check `finite`: gradients that are NaN or infinite."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def finite_result(lost: int, first: tuple[int, int, int] | None) -> CheckResult:
    """Return the result of `finite`: no record alone may make the released gradient non-finite.

    Args:
        lost: number of steps whose gradient was not finite.
        first: the first of them in which some records had non-finite gradients and others had not:
            its number, the number of such records, and of all records; None if there is none.
    """
    evidence: dict[str, int] = {"lost_steps": lost}
    if lost and first is None:
        message = (
            f"the gradient of {lost} steps was not finite, and it is unknown whether single "
            "records caused it"
        )
        return FINITE.not_run(message, evidence)
    step, records, rows = first or (0, 0, 0)
    if lost:
        evidence |= {"step": step, "records": records, "rows": rows}
    return FINITE.judged(
        evidence,
        FINITE.fine,
        f"at step {step + 1} the gradients of {records} of {rows} records were not finite, and got "
        "past clipping: the released gradient reveals that such a record is in the batch",
        "drop or clamp such records before training, or set per-sample gradients that are not "
        "finite to zero before they are clipped; no noise hides NaN",
    )


FINITE = Check(
    "finite",
    "a record's gradient is not a number, and gets past clipping",
    title="NaN and infinite gradients",
    failed_title="Non-finite gradients escape clipping",
    meaning="A record's gradient is NaN or infinite, which neither clipping nor noise hides, so "
    "the model reveals that the record was in the batch.",
    look_at="Check the loss of that record (logarithm or division of zero, overflow), and whether "
    "samples with a non-finite norm are set to zero before clipping.",
    topic="Clipping",
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
            headline="A non-finite gradient escapes clipping",
            rank=-7,
        ),
    ),
)

CHECKS = (FINITE,)
