"""Private optimizers that draw the same noise: `reuse.optimizers`."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def noise_shared_result(shared: bool) -> CheckResult:
    """Result of `reuse.optimizers`: two optimizers must not add the same noise.

    Args:
        shared: whether the noise generators of two of them were in one state when they began.
    """
    return NOISE_SHARED.judged(
        {"shared": shared},
        NOISE_SHARED.fine,
        "two private optimizers began with their noise generators in the same state, so both add "
        "the same noise to their gradients",
        "do not seed the noise, or give all optimizers one generator",
    )


NOISE_SHARED = Check(
    "reuse.optimizers",
    "the noise generators of two private optimizers started in one state",
    always=True,
    optimizers=2,
    wrong=lambda seen: seen["shared"] is not False,
    private=True,
    fine="every optimizer began with noise of its own",
    public=("shared",),
    faults=(
        FaultRule(
            "noise_shared_by_optimizers",
            "noise re-used: the generators of two optimizers started in the same state",
            "where the generators of the optimizers are seeded",
            rank=-3,
        ),
    ),
)

CHECKS = (NOISE_SHARED,)
