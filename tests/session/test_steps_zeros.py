from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.record.store import restore, snapshot
from lightning_audit.session.recorder import ReleasedShares
from lightning_audit.session.step import ZeroEntries


def test_what_was_not_released_reads_as_the_claimed_noise() -> None:
    rng = np.random.default_rng(0)
    mask = np.arange(20_000) % 2 == 0
    dead = ZeroEntries(mask, True, np.ones(2), False)
    filled = dead.filled(np.full(20_000, 7.0), 3.0, rng)
    assert (filled[~mask] == 7.0).all()
    assert filled[mask].std() == pytest.approx(3.0, rel=0.05)


def test_a_canary_is_read_along_the_part_that_was_released() -> None:
    rng = np.random.default_rng(0)
    dead = ZeroEntries(np.zeros(1, bool), False, np.array([1.0, 0.25, 0.0]), True)
    read = dead.readings(np.array([2.0, 2.0, 0.0]), 5.0, rng)
    assert read[:2].tolist() == [2.0, 4.0]
    assert read[2] != 0.0


def test_shares_are_those_of_all_steps() -> None:
    shares = ReleasedShares((2, 2), 2)
    assert shares.canaries.tolist() == [1.0, 1.0]
    shares.update(None)
    shares.update(
        ZeroEntries(np.array([True, True, False, False]), True, np.array([0.0, 0.5]), True)
    )
    assert shares.canaries.tolist() == [0.5, 0.75]
    assert shares.tensors.tolist() == [0.5, 1.0]
    other = restore(snapshot(shares))
    assert other.tensors.tolist() == [0.5, 1.0]
