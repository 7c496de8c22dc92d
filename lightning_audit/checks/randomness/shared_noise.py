"""Check that private optimizers do not draw the same noise: `reuse.optimizers`."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def noise_shared_result(shared: bool) -> CheckResult:
    """Return the result of `reuse.optimizers`: two optimizers must not add the same noise.

    Args:
        shared: whether the noise generators of two of them started in the same state.
    """
    return NOISE_SHARED.judged(
        {"shared": shared},
        NOISE_SHARED.fine,
        "the noise generators of two private optimizers started in the same state, so both add "
        "the same noise to their gradients",
        "do not seed the noise, or give all optimizers one generator",
    )


NOISE_SHARED = Check(
    "reuse.optimizers",
    "the noise generators of two private optimizers started in the same state",
    title="Noise of several optimizers",
    failed_title="Optimizers share their noise",
    meaning="The noise generators of two private optimizers started in the same state, so both add "
    "the same noise.",
    look_at="Check where the noise generators of the optimizers are seeded.",
    topic="Fresh randomness",
    always=True,
    optimizers=2,
    wrong=lambda seen: seen["shared"] is not False,
    private=True,
    fine="the noise generator of every optimizer started in its own state",
    public=("shared",),
    faults=(
        FaultRule(
            "noise_shared_by_optimizers",
            "noise re-used: the generators of two optimizers started in the same state",
            "where the generators of the optimizers are seeded",
            headline="Two optimizers draw the same noise",
            rank=-3,
        ),
    ),
)

CHECKS = (NOISE_SHARED,)
