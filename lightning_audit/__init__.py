"""lightning-audit: does this DP-SGD training give the privacy that it claims?

The names below are imported at their first use, so that reading a report does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightning_audit._version import __version__ as __version__

if TYPE_CHECKING:
    from lightning_audit.accounting.claims import PrivacyClaim as PrivacyClaim
    from lightning_audit.blackbox.mechanism import audit_mechanism as audit_mechanism
    from lightning_audit.blackbox.privatize import assert_privatizes as assert_privatizes
    from lightning_audit.callbacks.epsilon_star import EpsilonStar as EpsilonStar
    from lightning_audit.callbacks.examination import Examination as Examination
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit as PrivacyAudit
    from lightning_audit.dpsgd.hand_over import per_sample as per_sample
    from lightning_audit.dpsgd.hand_over import released as released
    from lightning_audit.dpsgd.hand_over import rows as rows
    from lightning_audit.loops.attaching import attach as attach
    from lightning_audit.loops.audit import Audit as Audit
    from lightning_audit.loops.rounds import Rounds as Rounds
    from lightning_audit.many.audit_trainings import audit_training as audit_training
    from lightning_audit.record.scores import CanaryScores as CanaryScores
    from lightning_audit.results.audit_report import AuditReport as AuditReport
    from lightning_audit.results.audit_report import ClaimUsedUp as ClaimUsedUp
    from lightning_audit.results.audit_report import InconclusiveAudit as InconclusiveAudit
    from lightning_audit.results.audit_report import PrivacyViolation as PrivacyViolation
    from lightning_audit.results.audit_report import Verdict as Verdict
    from lightning_audit.verdict.allow import Allow as Allow
    from lightning_audit.verdict.judge import Resolution as Resolution


_HOMES = {
    "Allow": "lightning_audit.verdict.allow",
    "Audit": "lightning_audit.loops.audit",
    "AuditReport": "lightning_audit.results.audit_report",
    "CanaryScores": "lightning_audit.record.scores",
    "EpsilonStar": "lightning_audit.callbacks.epsilon_star",
    "Examination": "lightning_audit.callbacks.examination",
    "ClaimUsedUp": "lightning_audit.results.audit_report",
    "InconclusiveAudit": "lightning_audit.results.audit_report",
    "PrivacyAudit": "lightning_audit.callbacks.privacy_audit",
    "PrivacyClaim": "lightning_audit.accounting.claims",
    "PrivacyViolation": "lightning_audit.results.audit_report",
    "Resolution": "lightning_audit.verdict.judge",
    "Rounds": "lightning_audit.loops.rounds",
    "Verdict": "lightning_audit.results.audit_report",
    "attach": "lightning_audit.loops.attaching",
    "assert_privatizes": "lightning_audit.blackbox.privatize",
    "audit_mechanism": "lightning_audit.blackbox.mechanism",
    "audit_training": "lightning_audit.many.audit_trainings",
    "per_sample": "lightning_audit.dpsgd.hand_over",
    "released": "lightning_audit.dpsgd.hand_over",
    "rows": "lightning_audit.dpsgd.hand_over",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
