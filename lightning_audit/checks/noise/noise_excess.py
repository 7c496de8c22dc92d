"""Noise that is larger than claimed: `noise.excess` warns."""

from __future__ import annotations

import dataclasses

from lightning_audit.checks.noise.noise_mean import NOISE_MEAN
from lightning_audit.results.audit_report import CheckResult


def equal_noise_result(processes: int) -> CheckResult:
    """Result of `noise.excess` where processes draw the same noise, so that their sum is loud.

    Args:
        processes: number of processes.
    """
    return NOISE_EXCESS.judged(
        {"processes": processes},
        "",
        "too much noise: several of the processes draw the same noise, whose sum is larger than "
        "that of independent draws; that loses no privacy, but accuracy",
        "let one process add the noise, or seed the generator of each with its rank",
    )


NOISE_EXCESS = dataclasses.replace(
    NOISE_MEAN,
    name="noise.excess",
    finds="noise that is larger than claimed (a warning: no privacy is lost, no gate fails)",
    fine="the noise is no larger than claimed",
    # Parts of a batch that are too long, or processes of equal noise, are seen without an e-value.
    wrong=lambda _: True,
)

CHECKS = (NOISE_EXCESS,)
