"""Reads scores, or an audit's readings, from an archive of untrusted origin."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.files.json_reader import read_json
from lightning_audit.files.npz import Archive, open_npz
from lightning_audit.record.score_csv import ScoresError
from lightning_audit.record.store import DROPPED, EARLIER, ENTERED, INJECTED, NOT_PLANNED

_SCORES = ("scores_in", "scores_out")
_OBSERVATIONS = ("canaries", "coins", "readings")
_STATES = (NOT_PLANNED, INJECTED, DROPPED, EARLIER)
_EXPECTED = (
    "it must hold the arrays scores_in and scores_out, or the coins and readings of an audit's "
    "observations.npz"
)


class FoundScores(NamedTuple):
    """Contents of an archive, by the names of `CanaryScores`."""

    in_scores: NDArray[Any]
    out_scores: NDArray[Any]
    coin_probability: float | None = None
    dropped: int = 0
    steps: int | None = None


def read_score_npz(path: str | os.PathLike[str], max_values: int) -> FoundScores:
    """Read scores_in and scores_out, or the observations of an audit; nothing else is read.

    Raises:
        ScoresError: the file is absent, is no .npz, contains neither, or is inconsistent.
    """
    name = os.fspath(path)
    try:
        with open_npz(path, max_values) as archive:
            held = set(archive.names)
            if held.issuperset(_SCORES):
                inside, outside = (archive.numbers(key, "biuf", 1) for key in _SCORES)
                return FoundScores(inside, outside)
            if held.issuperset(_OBSERVATIONS):
                return _observations(archive)
    except (OSError, ValueError) as error:
        raise ScoresError(f"cannot read {name!r} as .npz ({error}); {_EXPECTED}.") from error
    raise ScoresError(f"{name!r} holds {_validate.shown(sorted(held - {'header'}))}; {_EXPECTED}.")


def _observations(archive: Archive) -> FoundScores:
    canaries = archive.numbers("canaries", "biuf", 1)
    coins = archive.numbers("coins", "biuf", 2)
    readings = archive.numbers("readings", "iuf", 2)
    if not len(canaries) == len(coins) == len(readings) or coins.shape != readings.shape:
        raise ValueError(
            f"canaries has shape {canaries.shape}, coins {coins.shape} and readings "
            f"{readings.shape}; they must be [steps], [steps, k] and [steps, k]"
        )
    for key, values, allowed in (("canaries", canaries, _STATES), ("coins", coins, (0, 1))):
        if (wrong := ~np.isin(values, allowed)).any():
            raise ValueError(f"{key} holds {values[wrong][0]:g}, must hold {allowed} only")
    # Use only steps whose canaries entered as planned.
    counted = np.isin(canaries, ENTERED)
    was_in, seen = coins[counted] > 0, readings[counted]
    finite = np.isfinite(seen)
    return FoundScores(
        seen[finite & was_in],
        seen[finite & ~was_in],
        _coin_probability(archive),
        dropped=int(np.sum(~finite)),
        steps=int(np.sum(counted)),
    )


def _coin_probability(archive: Archive) -> float | None:
    if "header" not in archive.names:
        return None
    header = read_json(archive.text("header"))
    if not isinstance(header, dict):
        raise ValueError(f"header={_validate.shown(header)} must be a JSON object")
    return _validate.open_unit("coin_probability", header.get("coin_probability"))
