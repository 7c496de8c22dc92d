"""The check `clipping.norm`: norms that ghost clipping uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def norm_not_passed_on(seen: Mapping[str, Any]) -> bool:
    """Return whether ghost clipping clips at more than the optimizer's norm, beyond rounding."""
    # Reports of earlier releases have neither.
    return bool(seen.get("module_norm", 0.0) > (1.0 + 1e-6) * seen.get("optimizer_norm", 0.0))


CLIPPING_NORM = Check(
    "clipping.norm",
    "ghost clipping goes by norms that samples' gradients exceed, or by a larger max_grad_norm "
    "than the optimizer's",
    title="Norms used by ghost clipping",
    failed_title="Ghost clipping uses wrong norms",
    meaning="Ghost clipping scales samples by norms below those of their gradients, or clips at a "
    "larger norm than the noise is made for.",
    look_at="Check the norm samplers (a layer, a bias or a layer used twice may be left out), and "
    "that `module.max_grad_norm` equals `optimizer.max_grad_norm`.",
    topic="Clipping",
    each=True,
    wrong=lambda seen: seen["largest_ratio"] > NORM_TOLERANCE or norm_not_passed_on(seen),
    private=True,
    fine="the norms that clipping goes by are those of the gradients",
    # Settings, computed from no data.
    public=("module_norm", "optimizer_norm"),
    faults=(
        FaultRule(
            "clipping_norm_not_passed_on",
            "clipping norm too large: ghost clipping clips at the module's max_grad_norm, and the "
            "noise is made for the optimizer's, which is smaller",
            "what changes optimizer.max_grad_norm, as a scheduler does: it must set "
            "module.max_grad_norm to the same value",
            headline="Module and optimizer have different clipping norms",
            rank=-4,
            explains_groups=("clipping", "replay", "leakage"),
            applies=norm_not_passed_on,
        ),
        FaultRule(
            "wrong_norms",
            "clipping by wrong norms: samples are clipped by norms that their gradients exceed",
            "the norm samplers of ghost clipping: a layer, a bias or a second use may be left out",
            headline="Ghost clipping uses wrong norms",
            rank=-4,
            explains_groups=("clipping", "replay", "leakage"),
        ),
    ),
)

CHECKS = (CLIPPING_NORM,)


def clipping_norm_result(
    checked: int, largest_ratio: float, clipped_at: tuple[float, float] = (0.0, 0.0)
) -> CheckResult:
    """Return the result of `clipping.norm`: ghost clipping must use the true norms of gradients.

    Args:
        checked: number of samples whose gradients were computed to get their norms.
        largest_ratio: largest ratio of a true norm to the norm that clipping used.
        clipped_at: clipping norms of the module and of the optimizer, in the step with the largest
            ratio of the two; zeros if no step was observed.
    """
    module_norm, optimizer_norm = clipped_at
    evidence = {"module_norm": module_norm, "optimizer_norm": optimizer_norm}
    if norm_not_passed_on(evidence):
        return CLIPPING_NORM.judged(
            {"checked": checked, "largest_ratio": largest_ratio, **evidence},
            CLIPPING_NORM.fine,
            f"ghost clipping clips at module.max_grad_norm={module_norm:.4g}, and the noise is "
            f"made for optimizer.max_grad_norm={optimizer_norm:.4g}",
            "if optimizer.max_grad_norm is changed, set module.max_grad_norm to the same value "
            "(module is the one that make_private returns)",
        )
    if not checked:
        message = "no sample's norm was looked at"
        return CLIPPING_NORM.not_run(message)
    return CLIPPING_NORM.judged(
        {"checked": checked, "largest_ratio": largest_ratio, **evidence},
        CLIPPING_NORM.fine,
        f"a sample's gradient norm is {largest_ratio:.3g} times the norm that it is clipped by",
        "look for a layer whose norm is left out or computed otherwise (a bias, a layer that is "
        "used twice), or train with grad_sample_mode='hooks'",
    )


#: Ratio of norms that rounding in low precision does not reach.
NORM_TOLERANCE = 1.1
