"""Membership attacks: functions of scores and membership of shadow models, and their errors.

The names below are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_audit.attacks.lira_attack import lira as lira
    from lightning_audit.attacks.measured_mia import cross_fed_mia as cross_fed_mia
    from lightning_audit.attacks.measured_mia import measure_mia as measure_mia
    from lightning_audit.attacks.plain_scores import log_probability as log_probability
    from lightning_audit.attacks.plain_scores import normal_ratio as normal_ratio
    from lightning_audit.attacks.plain_scores import out_quantile as out_quantile
    from lightning_audit.attacks.plain_scores import score_difference as score_difference
    from lightning_audit.attacks.plain_scores import score_threshold as score_threshold
    from lightning_audit.attacks.rmia_attack import rmia as rmia
    from lightning_audit.attacks.separation import AttackPerformance as AttackPerformance
    from lightning_audit.attacks.separation import attack_performance as attack_performance

_HOMES = {
    "AttackPerformance": "separation",
    "attack_performance": "separation",
    "cross_fed_mia": "measured_mia",
    "lira": "lira_attack",
    "log_probability": "plain_scores",
    "measure_mia": "measured_mia",
    "normal_ratio": "plain_scores",
    "out_quantile": "plain_scores",
    "rmia": "rmia_attack",
    "score_difference": "plain_scores",
    "score_threshold": "plain_scores",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
