"""A checkpoint holds nothing of the data but verdicts and powers of ten."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
from artefacts import differences, flat, public_state, read_checkpoints
from neighbours import Kind, neighbours
from pytorch_lightning.callbacks import ModelCheckpoint
from resume_support import RESUMING
from stages import staged
from training_matrix import COMPARED, ROWS, Physical, Row, wide
from training_support import PrivateModule, trainer_for

from lightning_audit import PrivacyAudit

pytestmark = RESUMING
#: Steps of which an attacker has all checkpoints; least absolute rank correlation by which one of
#: their numbers follows the sizes of batches. Of 24 independent pairs one in 10^7 reaches it.
SEEN, FOLLOWS = 24, 0.85


class SmallParts(Physical):
    """Parts so small that one record more or less changes their number."""

    largest = 2


SPLIT = Row("Batches", "parts of two records", lambda: wide(SmallParts, batch_size=4))
OTHERS = [row for row in COMPARED if row is not ROWS[0]]


@pytest.mark.parametrize(
    ("row", "kind"),
    staged(
        quick=[(SPLIT, "removed")],
        heavy=[(ROWS[0], "replaced")],
        nightly=[(row, kind) for row in OTHERS for kind in ("removed", "replaced")],
    ),
    ids=lambda value: value.name if isinstance(value, Row) else value,
)
def test_checkpoints_of_neighbouring_trainings_with_the_same_releases_are_equal(
    tmp_path: Path, row: Row, kind: Kind
) -> None:
    one, other = neighbours(tmp_path, row, kind, steps=16, examinations=0)
    assert len(one.checkpoints) == 5
    assert all(len(public_state(state)) > 100 for state in one.checkpoints)
    assert differences(one, other) == []


@pytest.mark.parametrize(
    ("row", "kind"),
    staged(
        heavy=[(ROWS[0], "removed")],
        nightly=[(row, kind) for row in [*OTHERS, SPLIT] for kind in ("removed", "replaced")],
    ),
    ids=lambda value: value.name if isinstance(value, Row) else value,
)
def test_neighbouring_trainings_that_stop_and_resume_leave_equal_artefacts(
    tmp_path: Path, row: Row, kind: Kind
) -> None:
    one, other = neighbours(tmp_path, row, kind, steps=16, resumes=True, examinations=1)
    assert any("resumed once" in note for note in one.report["notes"])
    assert differences(one, other) == []


# ------------------------------------------------------------------ all checkpoints of a training


class _Sizes(pl.Callback):
    """Notes how many records each batch has."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.sizes.append(len(batch[0]))


def numbers(state: dict[str, Any]) -> dict[str, float]:
    """Every finite number of a checkpoint by its place, those of lists one by one."""
    found: dict[str, float] = {}
    for place, value in flat(state).items():
        for at, one in np.ndenumerate(np.asarray(value, dtype=object)):
            if isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one):
                found[f"{place}{list(at)}"] = float(one)
    return found


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's; 0 where one of them is constant."""
    a, b = (np.argsort(np.argsort(x, kind="stable")) for x in (one, other))
    if len(set(one)) < 3 or len(set(other)) < 3:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def following(held: list[dict[str, float]], counted: list[float]) -> set[str]:
    """Places of checkpoints of successive steps whose numbers follow the sizes of batches."""
    found = set()
    for place in set(held[0]).intersection(*held[1:]):
        now = [one[place] for one in held]
        totals = [value * number for number, value in enumerate(now, 1)]
        # A sum over steps changes by its last term, and so does a mean times their number.
        changes = [[b - a for a, b in zip([0.0, *x], x, strict=False)] for x in (now, totals)]
        if max(abs(rank_correlation(x, counted)) for x in (now, *changes)) >= FOLLOWS:
            found.add(place)
    return found


@pytest.mark.heavy
def test_no_number_of_successive_checkpoints_follows_the_sizes_of_batches(tmp_path: Path) -> None:
    sizes = _Sizes()
    saver = ModelCheckpoint(
        tmp_path / "checkpoints",
        "{step:04d}",
        auto_insert_metric_name=False,
        save_top_k=-1,
        every_n_train_steps=1,
    )
    callbacks = (sizes, PrivacyAudit(seed=1, examinations=0), saver)
    trainer = trainer_for(tmp_path, *callbacks, enable_checkpointing=True, max_steps=SEEN)
    trainer.fit(PrivateModule())
    held = [numbers(state) for state in read_checkpoints(tmp_path / "checkpoints")]
    counted = [float(size) for size in sizes.sizes]
    assert len(held) == len(counted) == SEEN
    assert following(held, counted) == set()
    # What would be found: a sum and a mean of logarithms.
    logs = np.cumsum(np.log(np.array(counted) + 1.0))
    planted = [{"sum": t, "mean": t / n} for n, t in enumerate(logs.tolist(), 1)]
    assert following(planted, counted) == {"sum", "mean"}
