"""Every check, in the order of the report: by it go the gate, the diagnosis and the documents.

What is made of the registry is made when it is asked for, so that a check that is added is known
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightning_audit.checks import evidence
from lightning_audit.checks.check import Check, FaultRule, Group, NoiseStatistic
from lightning_audit.checks.integrity import (
    CLIPPING_NORM,
    FINITE,
    GRADIENT_REPLACED,
    LOGICAL_BATCH,
    LOSS_REDUCTION,
    NO_DP,
    NOISE_RESTARTED,
    NOISE_SHARED,
    UNSYNCHRONISED,
)
from lightning_audit.checks.leakage import EPSILON
from lightning_audit.checks.noise_channel import (
    BATCH_NORMALISED,
    NOISE_EXCESS,
    NOISE_SHAPE,
)
from lightning_audit.checks.noise_mean import NOISE_MEAN
from lightning_audit.checks.noise_reuse import RECURRENCE, REUSE_BROADCAST, REUSE_LAG, REUSE_PAIR
from lightning_audit.checks.noise_size import NOISE, NOISE_CANARY, NOISE_STEP, NOISE_TENSOR
from lightning_audit.checks.sensitivity import SENSITIVITY
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.run_checks.accounted_epsilon import ACCOUNTING
from lightning_audit.run_checks.batch_sampling import NOT_POISSON, SAMPLING_RATE
from lightning_audit.run_checks.dataset_size import EXPECTED_BATCH_SIZE
from lightning_audit.run_checks.loader_sampling import REPEATED
from lightning_audit.run_checks.record_coupling import COUPLING

_CHECKS = (
    NO_DP,
    NOISE,
    NOISE_TENSOR,
    NOISE_STEP,
    NOISE_CANARY,
    SENSITIVITY,
    REUSE_LAG,
    REUSE_BROADCAST,
    REUSE_PAIR,
    GRADIENT_REPLACED,
    NOISE_SHAPE,
    RECURRENCE,
    BATCH_NORMALISED,
    NOISE_MEAN,
    NOISE_EXCESS,
    CLIPPING_NORM,
    FINITE,
    UNSYNCHRONISED,
    NOISE_RESTARTED,
    NOISE_SHARED,
    COUPLING,
    EPSILON,
    ACCOUNTING,
    NOT_POISSON,
    SAMPLING_RATE,
    LOGICAL_BATCH,
    LOSS_REDUCTION,
    EXPECTED_BATCH_SIZE,
    REPEATED,
)
REGISTRY: Mapping[str, Check] = {check.name: check for check in _CHECKS}


def shares(*, warns: bool = False) -> dict[str, float]:
    """Share of the significance of each check that has one, at most 1 in all.

    Args:
        warns: for the checks that only warn, which share a second significance of the same size.
    """
    return {c.name: c.share for c in REGISTRY.values() if c.share > 0 and c.warns == warns}


def group(name: Group) -> tuple[str, ...]:
    """Names of the checks of a group."""
    return tuple(check.name for check in REGISTRY.values() if check.group == name)


def entailed(rule: FaultRule) -> tuple[str, ...]:
    """Names of the checks that a fault violates beside its own."""
    return (*rule.explains, *(name for of in rule.explains_groups for name in group(of)))


def noise_statistics(significance: float) -> list[NoiseStatistic]:
    """What is fed the noise of each step, new, for checks at this significance of a run."""
    made = (check.of_noise for check in REGISTRY.values())
    return [make(significance) for make in made if make is not None]


def in_order(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Results in the order of the report."""
    places = {name: place for place, name in enumerate(REGISTRY)}
    return sorted(results, key=lambda result: places[result.name])


def shared_log_e(results: Iterable[CheckResult]) -> float:
    """Log of the e-value that checks share; those that only warn count for nothing."""
    return evidence.shared_log_e(
        (result.log_e_value, result.share)
        for result in results
        if result.log_e_value is not None and result.share > 0 and result.name in shares()
    )
