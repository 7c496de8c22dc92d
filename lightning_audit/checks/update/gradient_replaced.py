"""The gradient that the update uses: `gradient_replaced`."""

from __future__ import annotations

from lightning_audit.checks.base.check import MEASURED, Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def gradient_replaced_result(
    replaced: int, steps: int, first_step: int | None = None
) -> CheckResult:
    """Result of `gradient_replaced`: one such step is enough.

    Args:
        replaced: steps whose gradient changed between the end of DP-SGD and the update.
        steps: steps seen.
        first_step: the first of the former, None if it is not known.
    """
    if not steps:
        return GRADIENT_REPLACED.not_run("no step was seen")
    return GRADIENT_REPLACED.judged(
        {"replaced": replaced, "steps": steps, "first_step": first_step},
        "every update used the gradient that DP-SGD made",
        f"in {replaced} of {steps} steps the update used another gradient than the one that was "
        "clipped and noised",
        "run every backward pass before the noise is added: do not pass the closure on to the "
        "inner optimizer (opacus issue #313), and add up a step's losses for one backward pass",
    )


GRADIENT_REPLACED = Check(
    "gradient_replaced",
    "the update used another gradient than the noisy one, or more than it",
    # The update follows coins whose canaries were taken out; raw gradients show in a step or two.
    weight=10,
    each=True,
    always=True,
    must_run=True,
    wrong=lambda seen: seen["replaced"] > 0,
    faults=(
        FaultRule(
            "gradient_replaced",
            "gradient replaced: a backward pass ran after the noise was added, and the update used "
            "a gradient without clipping and noise",
            "whether step() passes its closure on to the inner optimizer, which runs it again, and "
            "whether the step has a second backward pass: both losses belong into one, before the "
            "noise",
            rank=-9,
            explains_groups=MEASURED,
            applies=lambda seen: seen.get("replaced") != 0,
        ),
        FaultRule(
            "update_follows_raw_gradients",
            "gradient replaced: the update uses gradients from before the noise, beside the noisy "
            "one or in its place",
            "what the optimizer, or a hook, does after the noise was added: with p.grad_sample, "
            "p.summed_grad, or gradients kept from before",
            rank=-9,
            explains_groups=MEASURED,
        ),
    ),
)

CHECKS = (GRADIENT_REPLACED,)
