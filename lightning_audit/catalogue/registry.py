"""Every check, in the order of the report: by it go the gate, the diagnosis and the documents.

What is made of the registry is made when it is asked for, so that a check that is added is known
everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from lightning_audit.catalogue import evidence
from lightning_audit.catalogue.check import Check, FaultRule, Group
from lightning_audit.catalogue.claim_checks import (
    ACCOUNTING,
    EXPECTED_BATCH_SIZE,
    NOT_POISSON,
    REPEATED,
    SAMPLING_RATE,
)
from lightning_audit.catalogue.ledger_checks import (
    LEDGER_ACCOUNTANT,
    LEDGER_DRAWS,
    LEDGER_RECORDS,
    LEDGER_SCHEDULE,
    LEDGER_STEPS,
)
from lightning_audit.catalogue.noise_checks import (
    BATCH_NORMALISED,
    NOISE,
    NOISE_CANARY,
    NOISE_ENTRIES,
    NOISE_EXCESS,
    NOISE_MEAN,
    NOISE_SHAPE,
    NOISE_STEP,
    NOISE_TENSOR,
    NOISE_WHOLE,
)
from lightning_audit.catalogue.noise_examination import REPLAY_NOISE
from lightning_audit.catalogue.replay_checks import (
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
)
from lightning_audit.catalogue.reuse_checks import (
    NOISE_RESTARTED,
    NOISE_SHARED,
    RECURRENCE,
    REUSE_BROADCAST,
    REUSE_ENTRIES,
    REUSE_FORECAST,
    REUSE_LAG,
    REUSE_PAIR,
)
from lightning_audit.catalogue.step_checks import (
    CLIPPING_NORM,
    COUPLING,
    EPSILON,
    FINITE,
    GRADIENT_REPLACED,
    LOGICAL_BATCH,
    LOSS_REDUCTION,
    NO_DP,
    SENSITIVITY,
    UNSYNCHRONISED,
)
from lightning_audit.results.audit_report import CheckResult

_CHECKS = (
    NO_DP,
    NOISE,
    NOISE_TENSOR,
    NOISE_STEP,
    NOISE_CANARY,
    SENSITIVITY,
    REPLAY_SENSITIVITY,
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_NOISE,
    REUSE_LAG,
    REUSE_BROADCAST,
    REUSE_PAIR,
    GRADIENT_REPLACED,
    NOISE_SHAPE,
    NOISE_ENTRIES,
    NOISE_WHOLE,
    RECURRENCE,
    REUSE_FORECAST,
    REUSE_ENTRIES,
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
    LEDGER_DRAWS,
    LEDGER_STEPS,
    LEDGER_SCHEDULE,
    LEDGER_RECORDS,
    LEDGER_ACCOUNTANT,
    LOGICAL_BATCH,
    LOSS_REDUCTION,
    EXPECTED_BATCH_SIZE,
    REPEATED,
)
REGISTRY: Mapping[str, Check] = {check.name: check for check in _CHECKS}


#: Part of the significance that is handed out; the rest is for checks that come later.
_HANDED_OUT = 0.9


def share(check: Check) -> float:
    """What a check gets of the significance: its weight over the sum of all, times `_HANDED_OUT`.

    A check that is added costs the others almost nothing: all shares shrink a little. Checks that
    only warn share a second significance of the same size.
    """
    weights = {c.name: c.weight for c in REGISTRY.values() if c.warns == check.warns}
    weights[check.name] = check.weight  # of one that is not listed, too
    return _HANDED_OUT * check.weight / math.fsum(weights.values()) if check.weight else 0.0


def shares(*, warns: bool = False) -> dict[str, float]:
    """Share of the significance of each check that has one.

    Args:
        warns: for the checks that only warn, which share a second significance of the same size.
    """
    return {c.name: share(c) for c in REGISTRY.values() if c.weight > 0 and c.warns == warns}


def group(name: Group) -> tuple[str, ...]:
    """Names of the checks of a group."""
    return tuple(check.name for check in REGISTRY.values() if check.group == name)


def entailed(rule: FaultRule) -> tuple[str, ...]:
    """Names of the checks that a fault violates beside its own."""
    return (*rule.explains, *(name for of in rule.explains_groups for name in group(of)))


def teller(fault: str, name: str = "") -> tuple[Check, FaultRule] | None:
    """The check that tells a fault by itself, and its rule; None where there is none.

    Args:
        fault: its name.
        name: of the check, where several tell it; empty for the first.
    """
    checks = [check for check in REGISTRY.values() if name in ("", check.name)]
    told = ((check, rule) for check in checks for rule in check.faults)
    return next(((check, rule) for check, rule in told if rule.name == fault), None)


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
