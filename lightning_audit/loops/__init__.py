"""Audits of plain PyTorch loops, and of the rounds of federated learning."""

from __future__ import annotations

from lightning_audit.loops.attaching import attach as attach
from lightning_audit.loops.audit import Audit as Audit
from lightning_audit.loops.rounds import Rounds as Rounds

__all__ = ["Audit", "Rounds", "attach"]
