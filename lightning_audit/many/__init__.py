"""Audits over many trainings: plan, store, engines, looks, result.

The names below are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_audit.many.challenges import Challenges as Challenges
    from lightning_audit.many.challenges import challenge_audit as challenge_audit
    from lightning_audit.many.challenges import challenge_points as challenge_points
    from lightning_audit.many.challenges import challenges_of as challenges_of
    from lightning_audit.many.challenges import folds_p_value as folds_p_value
    from lightning_audit.many.challenges import worst_case_start as worst_case_start
    from lightning_audit.many.challenges import worst_of as worst_of
    from lightning_audit.many.clusters import DaskEngine as DaskEngine
    from lightning_audit.many.clusters import RayEngine as RayEngine
    from lightning_audit.many.driver import TrainingError as TrainingError
    from lightning_audit.many.engines import EngineError as EngineError
    from lightning_audit.many.engines import FromExecutor as FromExecutor
    from lightning_audit.many.engines import LocalProcesses as LocalProcesses
    from lightning_audit.many.engines import ThisProcess as ThisProcess
    from lightning_audit.many.records import Blank as Blank
    from lightning_audit.many.records import ChosenRecord as ChosenRecord
    from lightning_audit.many.records import Crafted as Crafted
    from lightning_audit.many.records import LogitMargin as LogitMargin
    from lightning_audit.many.records import Many as Many
    from lightning_audit.many.records import Mislabeled as Mislabeled
    from lightning_audit.many.shadows import Shadows as Shadows
    from lightning_audit.many.shadows import shadow_models as shadow_models
    from lightning_audit.many.store import StoreError as StoreError
    from lightning_audit.many.training_audit import TrainingAudit as TrainingAudit
    from lightning_audit.many.training_audit import conclude as conclude
    from lightning_audit.many.vectorised import DPSGDMany as DPSGDMany
    from lightning_audit.many.worlds import Neighbors as Neighbors
    from lightning_audit.many.worlds import lightning_training as lightning_training
    from lightning_audit.many.worlds import opacus_training as opacus_training

#: The names of each module.
_NAMES = {
    "challenges": (
        "Challenges",
        "challenge_audit",
        "challenge_points",
        "challenges_of",
        "folds_p_value",
        "worst_case_start",
        "worst_of",
    ),
    "clusters": ("DaskEngine", "RayEngine"),
    "driver": ("TrainingError",),
    "engines": ("EngineError", "FromExecutor", "LocalProcesses", "ThisProcess"),
    "records": ("Blank", "ChosenRecord", "Crafted", "LogitMargin", "Many", "Mislabeled"),
    "shadows": ("Shadows", "shadow_models"),
    "store": ("StoreError",),
    "training_audit": ("TrainingAudit", "conclude"),
    "vectorised": ("DPSGDMany",),
    "worlds": ("Neighbors", "lightning_training", "opacus_training"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
