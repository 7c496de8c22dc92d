"""lightning-audit: does this DP-SGD training give the privacy that it claims?

The names below are imported when they are first used, so that reading a report does not load
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lightning_audit.blackbox.mechanism import audit_mechanism as audit_mechanism
    from lightning_audit.blackbox.privatize import assert_privatizes as assert_privatizes
    from lightning_audit.callbacks.epsilon_star import EpsilonStar as EpsilonStar
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit as PrivacyAudit
    from lightning_audit.checks.demands import Resolution as Resolution
    from lightning_audit.claims import PrivacyClaim as PrivacyClaim
    from lightning_audit.dpsgd.hand_over import per_sample as per_sample
    from lightning_audit.dpsgd.hand_over import released as released
    from lightning_audit.dpsgd.hand_over import rows as rows
    from lightning_audit.results import AuditReport as AuditReport
    from lightning_audit.results import InconclusiveAudit as InconclusiveAudit
    from lightning_audit.results import PrivacyViolation as PrivacyViolation
    from lightning_audit.results import Verdict as Verdict
    from lightning_audit.scores import CanaryScores as CanaryScores

_HOMES = {
    "AuditReport": "lightning_audit.results",
    "CanaryScores": "lightning_audit.scores",
    "EpsilonStar": "lightning_audit.callbacks.epsilon_star",
    "InconclusiveAudit": "lightning_audit.results",
    "PrivacyAudit": "lightning_audit.callbacks.privacy_audit",
    "PrivacyClaim": "lightning_audit.claims",
    "PrivacyViolation": "lightning_audit.results",
    "Resolution": "lightning_audit.checks.demands",
    "Verdict": "lightning_audit.results",
    "assert_privatizes": "lightning_audit.blackbox.privatize",
    "audit_mechanism": "lightning_audit.blackbox.mechanism",
    "per_sample": "lightning_audit.dpsgd.hand_over",
    "released": "lightning_audit.dpsgd.hand_over",
    "rows": "lightning_audit.dpsgd.hand_over",
}

__all__ = [
    "AuditReport",
    "CanaryScores",
    "EpsilonStar",
    "InconclusiveAudit",
    "PrivacyAudit",
    "PrivacyClaim",
    "PrivacyViolation",
    "Resolution",
    "Verdict",
    "assert_privatizes",
    "audit_mechanism",
    "per_sample",
    "released",
    "rows",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
