"""The check `loss_reduction`: a warning if the loss is reduced otherwise than declared."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check
from lightning_audit.results.audit_report import CheckResult


def loss_reduction_result(found: str | None, supposed: str | None) -> tuple[CheckResult, ...]:
    """Return the result of `loss_reduction`: a loss scaled by the batch size costs accuracy.

    Args:
        found: how the loss reduces its batch, "mean" or "sum"; None if unknown.
        supposed: the reduction that the optimizer assumes; None if it has none.

    Returns:
        One result, or none if either is unknown.
    """
    if found is None or supposed is None:
        return ()
    effect = (
        "per-sample gradients are too large by a factor of the batch size, and all are clipped"
        if found == "sum"
        else "per-sample gradients are too small by a factor of the batch size, and the noise "
        "dominates"
    )
    result = LOSS_REDUCTION.judged(
        {"loss": found, "optimizer": supposed},
        f"the loss is a {found} over its batch, as the optimizer takes it to be",
        f"the loss is a {found} over its batch where the optimizer takes it for a {supposed}: "
        f"{effect}; that loses no privacy, but accuracy",
        f"return the {supposed} of the losses from training_step, or give make_private "
        f"loss_reduction={found!r}",
    )
    return (result,)


LOSS_REDUCTION = Check(
    "loss_reduction",
    "the loss is a sum where the optimizer takes it for a mean, or the reverse (a warning)",
    title="Mean or sum of losses",
    failed_title="Loss reduction is set wrongly",
    meaning="The loss is a sum over the batch and the optimizer takes it for a mean, or the "
    "reverse; no privacy is lost, but every per-sample gradient is off by a factor of the "
    "batch size.",
    look_at="Compare `loss_reduction` of `make_private` with the reduction of the loss that "
    "`training_step` returns.",
    topic="Clipping",
    warns=True,
    wrong=lambda seen: seen["loss"] != seen["optimizer"],
)

CHECKS = (LOSS_REDUCTION,)
