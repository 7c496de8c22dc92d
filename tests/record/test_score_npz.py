from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_audit.record.scores import FoundScores, ScoresError, read_score_npz

OBSERVATIONS: dict[str, Any] = {
    "header": json.dumps({"coin_probability": 0.25}),
    # Planned and entered, dropped, entered in an earlier part, not planned.
    "canaries": np.array([1, 2, 3, 0], dtype="u1"),
    "coins": np.array([[1, 0], [1, 0], [0, 1], [1, 1]], dtype="u1"),
    "readings": np.array([[1.5, 0.25], [9.0, 9.0], [np.nan, 2.0], [8.0, 8.0]]),
}


def read(directory: Path, **arrays: Any) -> FoundScores:
    np.savez(directory / "o.npz", **arrays)
    return read_score_npz(directory / "o.npz", 1000)


def test_readings_are_those_of_steps_whose_canaries_went_in(tmp_path: Path) -> None:
    found = read(tmp_path, **OBSERVATIONS)
    assert (found.in_scores.tolist(), found.out_scores.tolist()) == ([1.5, 2.0], [0.25])
    assert (found.coin_probability, found.dropped, found.steps) == (0.25, 1, 2)


def test_an_archive_without_a_header_has_coins_of_an_unknown_probability(tmp_path: Path) -> None:
    arrays = {name: value for name, value in OBSERVATIONS.items() if name != "header"}
    assert read(tmp_path, **arrays).coin_probability is None


def test_scores_come_before_observations_and_have_no_steps(tmp_path: Path) -> None:
    found = read(tmp_path, scores_in=np.ones(2), scores_out=np.zeros(3), **OBSERVATIONS)
    assert (len(found.in_scores), len(found.out_scores), found.steps) == (2, 3, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"header": "[1]"}, r"header=\[1\] must be a JSON object"),
        ({"header": "{}"}, r"coin_probability=None must be in \(0, 1\)"),
        ({"header": '{"coin_probability": 2}'}, r"coin_probability=2 must be in \(0, 1\)"),
        ({"canaries": np.array([1, 2, 4, 0])}, r"canaries holds 4, must hold \(0, 1, 2, 3\) only"),
        ({"coins": OBSERVATIONS["coins"] + 1}, r"coins holds 2, must hold \(0, 1\) only"),
        ({"coins": OBSERVATIONS["coins"][:, :1]}, r"coins \(4, 1\) and readings \(4, 2\)"),
    ],
)
def test_observations_that_contradict_themselves_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScoresError, match=message):
        read(tmp_path, **{**OBSERVATIONS, **changes})


def test_other_arrays_are_named(tmp_path: Path) -> None:
    with pytest.raises(ScoresError, match=r"holds \['losses'\]; it must hold the arrays scores_in"):
        read(tmp_path, losses=np.ones(3))
