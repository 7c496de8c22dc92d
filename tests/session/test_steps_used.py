from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_audit.canaries.gradient import Dirac, place
from lightning_audit.checks.probes import Witnesses
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.hooks.gradient_tap import Moves, Reading
from lightning_audit.layout import TensorSlot
from lightning_audit.record.store import DROPPED, INJECTED
from lightning_audit.session.step import Coordinates, PlannedStep, used_release

PLACEMENT = place([Dirac()], [TensorSlot("weight", (40,))], np.random.default_rng(0))
(AT,) = PLACEMENT.support()[0]
COORDINATES = Coordinates(Witnesses({0: np.setdiff1d(np.arange(40), [AT])[:6]}), PLACEMENT)
DIRECTIONS = PLACEMENT.draw(np.random.default_rng(0))
PLAN = PlannedStep(
    StepClaim(1.0, 1.0, 1.0), np.ones(1), DIRECTIONS, INJECTED, COORDINATES.locate(DIRECTIONS)
)
#: Among what is read.
CANARY = int(np.flatnonzero(COORDINATES.by_tensor[0] == AT)[0])


def values(witness: float, canary: float) -> np.ndarray:
    read = np.full(7, witness)
    read[CANARY] = canary
    return read


def test_each_is_read_along_the_canary_in_units_of_its_own_size() -> None:
    start = np.zeros(7)
    reading = Reading(
        values(2.0, 5.0), used=values(0.5, -1.0), moves=Moves(values(-0.1, 0.3), start, None)
    )
    found = used_release(PLAN, reading, COORDINATES)
    assert found is not None
    assert found.rest == pytest.approx([2.5])
    assert found.used == pytest.approx([-2.0])
    # An update goes against the gradient.
    assert found.moved == pytest.approx([-3.0])


def test_what_was_not_seen_or_has_no_size_is_not_told() -> None:
    found = used_release(PLAN, Reading(values(2.0, 5.0), used=values(0.0, 1.0)), COORDINATES)
    assert found is not None
    assert (found.used, found.moved) == (None, None)
    assert used_release(PLAN, Reading(values(0.0, 1.0)), COORDINATES) is None
    assert used_release(PLAN, Reading(values(2.0, 5.0), replaced=True), COORDINATES) is None
    assert (
        used_release(replace(PLAN, status=DROPPED), Reading(values(2.0, 5.0)), COORDINATES) is None
    )
