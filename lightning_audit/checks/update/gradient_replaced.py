"""The check `gradient_replaced`: which gradient the update uses."""

from __future__ import annotations

from lightning_audit.checks.base.check import MEASURED, Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def gradient_replaced_result(
    replaced: int, steps: int, first_step: int | None = None
) -> CheckResult:
    """Return the result of `gradient_replaced`: one step with another gradient violates it.

    Args:
        replaced: number of steps whose gradient changed between the noise and the update.
        steps: number of observed steps.
        first_step: the first step whose gradient changed; None if it is unknown.
    """
    if not steps:
        return GRADIENT_REPLACED.not_run("no step was seen")
    return GRADIENT_REPLACED.judged(
        {"replaced": replaced, "steps": steps, "first_step": first_step},
        "every update used the gradient that was clipped and noised",
        f"in {replaced} of {steps} steps the update used a gradient other than the one that was "
        "clipped and noised",
        "run every backward pass before the noise is added: do not pass the closure to the inner "
        "optimizer (opacus issue #313), and sum a step's losses for one backward pass",
    )


GRADIENT_REPLACED = Check(
    "gradient_replaced",
    "the update used another gradient than the noisy one, or more than it",
    title="Gradient of the update",
    failed_title="Update uses another gradient",
    meaning="The update used a gradient other than the clipped and noisy one, or more than that "
    "one.",
    look_at="Check whether `step` passes its closure to the inner optimizer, and whether code "
    "writes to `p.grad` after the noise is added.",
    topic="What the update uses",
    # The update follows coins of removed canaries; raw gradients show that in a step or two.
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
            "whether step() passes its closure to the inner optimizer, which runs it again, and "
            "whether the step has a second backward pass: both losses belong in one backward pass, "
            "before the noise",
            headline="A backward pass after the noise replaces the gradient",
            rank=-9,
            explains_groups=MEASURED,
            applies=lambda seen: seen.get("replaced") != 0,
        ),
        FaultRule(
            "update_follows_raw_gradients",
            "gradient replaced: the update uses gradients from before the noise, in addition to "
            "the noisy one or instead of it",
            "what the optimizer, or a hook, does after the noise was added: with p.grad_sample, "
            "p.summed_grad, or gradients kept from before",
            headline="The update uses gradients from before the noise",
            rank=-9,
            explains_groups=MEASURED,
        ),
    ),
)

CHECKS = (GRADIENT_REPLACED,)
