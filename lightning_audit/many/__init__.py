"""Audits over many trainings: plan, store, engines, looks and result.

The names below are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_audit.many.driver import TrainingError as TrainingError
    from lightning_audit.many.engines.dask_engine import DaskEngine as DaskEngine
    from lightning_audit.many.engines.engine_protocol import EngineError as EngineError
    from lightning_audit.many.engines.executors import FromExecutor as FromExecutor
    from lightning_audit.many.engines.executors import ThisProcess as ThisProcess
    from lightning_audit.many.engines.local_processes import LocalProcesses as LocalProcesses
    from lightning_audit.many.engines.ray_engine import RayEngine as RayEngine
    from lightning_audit.many.game.canary_records import Blank as Blank
    from lightning_audit.many.game.canary_records import ChosenRecord as ChosenRecord
    from lightning_audit.many.game.canary_records import Crafted as Crafted
    from lightning_audit.many.game.canary_records import Many as Many
    from lightning_audit.many.game.canary_records import Mislabeled as Mislabeled
    from lightning_audit.many.game.logit_margin import LogitMargin as LogitMargin
    from lightning_audit.many.game.user_training import lightning_training as lightning_training
    from lightning_audit.many.game.user_training import opacus_training as opacus_training
    from lightning_audit.many.game.vectorised import DPSGDMany as DPSGDMany
    from lightning_audit.many.game.worlds import Neighbors as Neighbors
    from lightning_audit.many.shadow.challenge_selection import challenge_points as challenge_points
    from lightning_audit.many.shadow.challenges import Challenges as Challenges
    from lightning_audit.many.shadow.challenges import challenge_audit as challenge_audit
    from lightning_audit.many.shadow.challenges import challenges_of as challenges_of
    from lightning_audit.many.shadow.selection_price import folds_p_value as folds_p_value
    from lightning_audit.many.shadow.selection_price import worst_of as worst_of
    from lightning_audit.many.shadow.shadow_models import shadow_models as shadow_models
    from lightning_audit.many.shadow.shadows import Shadows as Shadows
    from lightning_audit.many.shadow.worst_start import worst_case_start as worst_case_start
    from lightning_audit.many.training_audit import TrainingAudit as TrainingAudit
    from lightning_audit.many.training_audit import conclude as conclude
    from lightning_audit.many.training_store import StoreError as StoreError

_HOMES = {
    "Blank": "game.canary_records",
    "ChosenRecord": "game.canary_records",
    "Challenges": "shadow.challenges",
    "Crafted": "game.canary_records",
    "DPSGDMany": "game.vectorised",
    "DaskEngine": "engines.dask_engine",
    "EngineError": "engines.engine_protocol",
    "FromExecutor": "engines.executors",
    "LocalProcesses": "engines.local_processes",
    "LogitMargin": "game.logit_margin",
    "Many": "game.canary_records",
    "Mislabeled": "game.canary_records",
    "Neighbors": "game.worlds",
    "Shadows": "shadow.shadows",
    "RayEngine": "engines.ray_engine",
    "StoreError": "training_store",
    "ThisProcess": "engines.executors",
    "TrainingAudit": "training_audit",
    "TrainingError": "driver",
    "challenge_audit": "shadow.challenges",
    "challenge_points": "shadow.challenge_selection",
    "challenges_of": "shadow.challenges",
    "conclude": "training_audit",
    "folds_p_value": "shadow.selection_price",
    "lightning_training": "game.user_training",
    "opacus_training": "game.user_training",
    "shadow_models": "shadow.shadow_models",
    "worst_case_start": "shadow.worst_start",
    "worst_of": "shadow.selection_price",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
