"""An e-value for each entry: few entries with a fault are found among many without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from stages import most_failures, staged

from lightning_audit.stats.noise_tests import EntryBets, noise_log_e, quiet_entries
from lightning_audit.stats.sequential import log_mean_exp

FloatArray = NDArray[np.float64]
FLAGS = np.log(1e5)


def bets(rows: FloatArray) -> tuple[list[float], EntryBets]:
    made, found = EntryBets(rows.shape[1]), []
    for row in rows:
        made.update(row)
        found.append(float(log_mean_exp(made.entry_log_e)))
    return found, made


def silent(rows: FloatArray) -> FloatArray:
    return np.zeros_like(rows)


def halved(rows: FloatArray) -> FloatArray:
    return 0.5 * rows


def constant(rows: FloatArray) -> FloatArray:
    return np.broadcast_to(rows[:1], rows.shape)


@pytest.mark.parametrize(("fault", "within"), [(silent, 15), (halved, 120), (constant, 30)])
def test_one_entry_in_a_hundred_is_found(fault: Callable, within: int) -> None:
    for seed in range(5):
        rows = np.random.default_rng(seed).normal(size=(200, 400))
        rows[:, [7, 50, 200, 399]] = fault(rows[:, [7, 50, 200, 399]])
        found, made = bets(rows)
        at = next(step for step, log_e in enumerate(found) if log_e >= FLAGS)
        assert at < within
        assert {7, 50, 200, 399} >= set(quiet_entries(made.entry_log_e, FLAGS))
        assert (
            made.ratios[[7, 50, 200, 399]].max()
            < 0.7
            < np.delete(made.ratios, [7, 50, 200, 399]).min()
        )


def test_it_is_what_its_definition_gives() -> None:
    rows = np.random.default_rng(0).normal(size=(30, 5)) + 0.3
    values = []
    for entry in rows.T:
        centres = np.array(
            [[0.0, entry[:t].sum() / (t + 10), entry[t - 1] if t else 0.0] for t in range(30)]
        )
        squares = np.sum((entry[:, None] - centres) ** 2, axis=0)
        values.append(np.mean(np.exp(noise_log_e(30, squares))))
    found, made = bets(rows)
    assert np.exp(made.entry_log_e) == pytest.approx(values)
    assert found[-1] == pytest.approx(np.log(np.mean(values)))


def data_that_follow(new: FloatArray) -> FloatArray:
    rows = np.zeros_like(new)
    for t in range(len(new)):
        rows[t] = new[t] + (-0.8 * rows[t - 1] if t else 0.0)
    return rows


SOUND: dict[str, Callable[[FloatArray], FloatArray]] = {
    "new": lambda new: new,
    "larger": lambda new: 1.5 * new,
    "beside data that follow": data_that_follow,
    "on a fine lattice": lambda new: np.round(new * 64.0) / 64.0,
}


@pytest.mark.parametrize("runs", staged(heavy=[300], nightly=[3000]))
@pytest.mark.parametrize("width", [1, 50])
@pytest.mark.parametrize("made", SOUND.values(), ids=SOUND)
def test_noise_as_claimed_is_accused_at_the_level_at_most(
    made: Callable[[FloatArray], FloatArray], width: int, runs: int
) -> None:
    highest = [
        max(bets(made(np.random.default_rng([seed, width]).normal(size=(60, width))))[0])
        for seed in range(runs)
    ]
    assert sum(log_e >= np.log(20.0) for log_e in highest) <= most_failures(runs, 0.05, 3000)
