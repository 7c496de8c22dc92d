"""A checkpoint holds nothing of the data but verdicts and powers of ten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from neighbours import Kind, neighbours
from training_matrix import ROWS

#: What the clock and a run's name decide; the checksum is of all of it.
_BY_THE_CLOCK = {"run", "checksum", "cost", "schedule"}


def flat(state: Any, place: str = "") -> dict[str, Any]:
    """Every value of a checkpoint's state by its place, but e-values in powers of ten."""
    if isinstance(state, torch.Tensor):
        return {place: state.tolist()}
    if isinstance(state, dict):
        pairs = [(k, v) for k, v in state.items() if k not in _BY_THE_CLOCK]
        pairs = [(k, v) for k, v in pairs if k != "log_e_value"]
        return {p: v for key, value in pairs for p, v in flat(value, f"{place}/{key}").items()}
    if isinstance(state, list | tuple):
        return {p: v for n, item in enumerate(state) for p, v in flat(item, f"{place}/{n}").items()}
    return {place: state}


@pytest.mark.parametrize("kind", ["removed", "replaced"])
def test_checkpoints_of_neighbouring_trainings_with_the_same_releases_are_equal(
    tmp_path: Path, kind: Kind
) -> None:
    one, other = neighbours(tmp_path, ROWS[0], kind, examinations=1)
    first, second = flat(one.state), flat(other.state)
    assert len(first) > 100
    assert {p: (v, second.get(p)) for p, v in first.items() if repr(v) != repr(second.get(p))} == {}
    assert first.keys() == second.keys()
