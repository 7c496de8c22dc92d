"""Lightning callbacks."""

from __future__ import annotations

from lightning_audit.callbacks.privacy_audit import PrivacyAudit as PrivacyAudit

__all__ = ["PrivacyAudit"]
