"""Converts this package's objects to plain data and back, for checkpoints.

A snapshot consists of dicts, lists, strings, numbers and arrays only: reading it runs no code but
this package's. It contains every attribute, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_PACKAGE = "lightning_audit"

#: Names of classes in snapshots. A class may be moved or renamed; its name here does not change, so
#: that old checkpoints can be read.
_CLASSES: Mapping[str, str] = {
    "audit_monitor": "checks.monitor:AuditMonitor",
    "canary_noise_check": "checks.noise_size:CanaryNoiseCheck",
    "coin_bet": "stats.evalues.coin_bet:CoinBet",
    "epochs": "checks.witnesses:_Epochs",
    "evidence": "catalogue.evidence:Evidence",
    "following": "checks.post_processing:_Following",
    "guesses": "checks.coin_guesses:Guesses",
    "leakage_bet": "stats.evalues.leakage_bet:LeakageBet",
    "leakage_bound": "checks.leakage:LeakageBound",
    "loud_steps": "checks.sensitivity:LoudSteps",
    "moves_outside": "taps.moves_outside:MovesOutside",
    "onset": "checks.noise_size:Onset",
    "part_shifts": "checks.part_shifts:PartShifts",
    "pooled_sums": "checks.noise_size:PooledSums",
    "predictable_centre": "stats.evalues.sequential:PredictableCentre",
    "record_header": "record.store:RecordHeader",
    "released_shares": "session.recorder:ReleasedShares",
    "reuse_check": "checks.noise_reuse:ReuseCheck",
    "sensitivity_check": "checks.sensitivity:SensitivityCheck",
    "shift_estimate": "checks.part_shifts:ShiftEstimate",
    "signal_bet": "stats.evalues.signal_bet:SignalBet",
    "signal_bound": "checks.leakage:SignalBound",
    "single_step_bet": "stats.evalues.sequential:SingleStepBet",
    "stake_plan": "stats.evalues.leakage_bet:StakePlan",
    "step_history": "accounting.step_history:StepHistory",
    "stretch": "stats.evalues.leakage_bet:Stretch",
    "student_bound": "checks.leakage:StudentBound",
    "trace": "checks.witnesses:_Trace",
    "two_groups": "stats.evalues.two_groups:TwoGroups",
    "use_of_release": "checks.post_processing:UseOfRelease",
    "witness_noise_check": "checks.noise_size:WitnessNoiseCheck",
    "witness_reducer": "checks.witnesses:WitnessReducer",
}
_NAMES = {place: name for name, place in _CLASSES.items()}


def snapshot(value: Any) -> Any:
    """Return plain data from which `restore` creates an equal value.

    Args:
        value: None, a bool, number, string, numpy array, an object of this package's classes, or a
            list, tuple or dict of such.

    Returns:
        The value as dicts, lists and plain values; arrays are copied.

    Raises:
        TypeError: the value, or a part of it, is of another kind.

    Example:
        >>> snapshot((1, {"a": 2.0}))
        {'tuple': [1, {'dict': [['a', 2.0]]}]}
    """
    match value:
        case None | bool() | int() | float() | str():
            # numpy's float64 is a subclass of float and is stored as a float.
            return value.item() if isinstance(value, np.generic) else value
        case np.generic():
            return value.item()
        case np.ndarray():
            return value.copy()
        case list():
            return [snapshot(item) for item in value]
        case tuple():
            return {"tuple": [snapshot(item) for item in value]}
        case dict():
            return {"dict": [[snapshot(k), snapshot(v)] for k, v in value.items()]}
    kind = type(value)
    place = f"{kind.__module__.removeprefix(f'{_PACKAGE}.')}:{kind.__qualname__}"
    if place not in _NAMES:
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} cannot be part of a snapshot; give a class of "
            "this package a name in record/snapshot.py."
        )
    state = {name: snapshot(item) for name, item in vars(value).items()}
    return {"object": _NAMES[place], "state": state}


def restore(data: Any) -> Any:
    """Return the value from which `snapshot` created the data.

    Returns:
        An equal value that shares no array with ``data``.

    Raises:
        ValueError: the data are no snapshot, or contain a class that this version does not have.

    Example:
        >>> restore({"tuple": [1, {"dict": [["a", 2.0]]}]})
        (1, {'a': 2.0})
    """
    match data:
        case {"tuple": items}:
            return tuple(restore(item) for item in items)
        case {"dict": items}:
            return {restore(k): restore(v) for k, v in items}
        case {"object": name, "state": state}:
            kind = _class(name)
            value: Any = object.__new__(kind)
            for attribute, item in state.items():
                # Frozen dataclasses refuse plain assignment.
                object.__setattr__(value, attribute, restore(item))
            return value
        case dict():
            raise ValueError(
                f"keys {sorted(data)} are no part of a snapshot; take another checkpoint."
            )
        case list():
            return [restore(item) for item in data]
        case np.ndarray():
            return data.copy()
    return data


def _class(name: object) -> type:
    place = _CLASSES.get(name) if isinstance(name, str) else None
    if place is None:
        raise ValueError(
            f"the snapshot holds a {name!r}, which this version of lightning-audit does not have; "
            "resume with the version that wrote it."
        )
    module, _, qualified = place.partition(":")
    kind: type = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), qualified)
    return kind
