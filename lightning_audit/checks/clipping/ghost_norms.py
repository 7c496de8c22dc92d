"""The norms that ghost clipping clips by: `clipping.norm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def norm_not_passed_on(seen: Mapping[str, Any]) -> bool:
    """Whether ghost clipping clips at more than the optimizer's norm, by more than rounding."""
    # Reports of before have neither.
    return bool(seen.get("module_norm", 0.0) > (1.0 + 1e-6) * seen.get("optimizer_norm", 0.0))


CLIPPING_NORM = Check(
    "clipping.norm",
    "ghost clipping goes by norms that samples' gradients exceed, or by a larger max_grad_norm "
    "than the optimizer's",
    each=True,
    wrong=lambda seen: seen["largest_ratio"] > NORM_TOLERANCE or norm_not_passed_on(seen),
    private=True,
    fine="the norms that clipping goes by are those of the gradients",
    # Settings: no data are in them.
    public=("module_norm", "optimizer_norm"),
    faults=(
        FaultRule(
            "clipping_norm_not_passed_on",
            "clipping norm too large: ghost clipping clips at the module's max_grad_norm, and the "
            "noise is made for the optimizer's, which is smaller",
            "what changes optimizer.max_grad_norm, as a scheduler does: it must set "
            "module.max_grad_norm to the same value",
            rank=-4,
            explains_groups=("clipping", "replay", "leakage"),
            applies=norm_not_passed_on,
        ),
        FaultRule(
            "wrong_norms",
            "clipping by wrong norms: samples are clipped by norms that their gradients exceed",
            "the norm samplers of ghost clipping: a layer, a bias or a second use may be left out",
            rank=-4,
            explains_groups=("clipping", "replay", "leakage"),
        ),
    ),
)

CHECKS = (CLIPPING_NORM,)


def clipping_norm_result(
    checked: int, largest_ratio: float, clipped_at: tuple[float, float] = (0.0, 0.0)
) -> CheckResult:
    """Result of `clipping.norm`: gradients that are never formed are clipped by their true norms.

    Args:
        checked: samples whose gradients were formed to see their norms.
        largest_ratio: largest norm over the one that clipping went by.
        clipped_at: clipping norm of the module and of the optimizer, of the step in which the
            first is largest over the second; zeros where none was seen.
    """
    module_norm, optimizer_norm = clipped_at
    evidence = {"module_norm": module_norm, "optimizer_norm": optimizer_norm}
    if norm_not_passed_on(evidence):
        return CLIPPING_NORM.judged(
            {"checked": checked, "largest_ratio": largest_ratio, **evidence},
            CLIPPING_NORM.fine,
            f"ghost clipping clips at module.max_grad_norm={module_norm:.4g}, and the noise is "
            f"made for optimizer.max_grad_norm={optimizer_norm:.4g}",
            "where optimizer.max_grad_norm is changed, set module.max_grad_norm to the same value, "
            "where module is the one that make_private returns",
        )
    if not checked:
        message = "no sample's norm was looked at"
        return CLIPPING_NORM.not_run(message)
    return CLIPPING_NORM.judged(
        {"checked": checked, "largest_ratio": largest_ratio, **evidence},
        CLIPPING_NORM.fine,
        f"a sample's gradient is {largest_ratio:.3g} times as long as the norm that clips it",
        "look for a layer whose norm is left out or computed otherwise (a bias, a layer that is "
        "used twice), or train with grad_sample_mode='hooks'",
    )


#: Low precision rounds norms, but not by as much as this.
NORM_TOLERANCE = 1.1
