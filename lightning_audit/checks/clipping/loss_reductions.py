"""How the loss adds up its batch: `loss_reduction` warns."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check
from lightning_audit.results.audit_report import CheckResult


def loss_reduction_result(found: str | None, supposed: str | None) -> tuple[CheckResult, ...]:
    """Result of `loss_reduction`: a loss that is scaled by the batch size costs accuracy.

    Args:
        found: how the loss adds up its batch, "mean" or "sum"; None if that cannot be told.
        supposed: what the optimizer takes it for; None if it does not say.

    Returns:
        One result, or none where nothing can be told.
    """
    if found is None or supposed is None:
        return ()
    effect = (
        "per-sample gradients are a batch's size too large, and all are clipped"
        if found == "sum"
        else "per-sample gradients are a batch's size too small, and drown in the noise"
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
    warns=True,
    wrong=lambda seen: seen["loss"] != seen["optimizer"],
)

CHECKS = (LOSS_REDUCTION,)
