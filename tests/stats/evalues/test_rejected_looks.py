"""What was rejected at which look, and what a rejection says where the leakage varies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stages import most_failures, staged

from lightning_audit.record.snapshot import restore, snapshot
from lightning_audit.stats.evalues.error_rate_bet import ErrorRateBet
from lightning_audit.stats.evalues.rejected_looks import LEVELS, RejectedLooks

VALUES = np.array([0.5, 1.0, 2.0, 4.0, 8.0])


def naive_front(
    curves: list[np.ndarray], looks: list[int], significance: float
) -> list[tuple[float, int]]:
    """Every look's largest rejected value; those that a later look does as well are left out."""
    needed = -math.log(significance)
    coarse = LEVELS[needed - 1e-12 <= LEVELS]
    best: list[tuple[float, int]] = []
    for i in reversed(range(len(looks))):
        level = needed if i == len(looks) - 1 else (coarse[0] if len(coarse) else math.inf)
        rejected = VALUES[curves[i] >= level]
        if len(rejected) and (not best or rejected[-1] > best[-1][0]):
            best.append((float(rejected[-1]), looks[i]))
    return best


@given(
    st.lists(st.lists(st.floats(-5, 45), min_size=5, max_size=5), min_size=1, max_size=12),
    st.floats(1e-14, 0.9),
)
def test_front_equals_a_search_over_all_looks(
    heights: list[list[float]], significance: float
) -> None:
    table = RejectedLooks(VALUES)
    curves = [np.sort(height)[::-1] for height in heights]
    looks = [3 * i + 1 for i in range(len(curves))]
    for curve, look in zip(curves, looks, strict=True):
        table.update(curve, look)
    front = table.front(significance)
    assert front == naive_front(curves, looks, significance)
    assert restore(snapshot(table)).front(significance) == front


def test_a_value_that_is_rejected_no_longer_stays_with_the_look_that_rejected_it() -> None:
    table = RejectedLooks(VALUES)
    table.update(np.array([9.0, 8.0, 7.0, 6.0, 0.0]), 100)
    table.update(np.array([9.0, 4.0, 1.0, 0.0, -3.0]), 900)
    assert table.front(0.05) == [(1.0, 900), (4.0, 100)]
    assert table.front(math.exp(-8.5)) == [(0.5, 900)]
    assert table.front(math.exp(-9.5)) == []


def test_a_level_between_those_kept_proves_less_of_the_past_and_the_same_of_now() -> None:
    table = RejectedLooks(VALUES)
    curve = np.array([3.3, 3.3, 3.3, 0.0, 0.0])
    table.update(curve, 10)
    assert table.front(math.exp(-3.2)) == [(2.0, 10)]
    table.update(np.zeros(5), 20)
    assert table.front(math.exp(-3.2)) == []
    assert table.front(math.exp(-3.0)) == [(2.0, 10)]


def test_the_table_of_an_audit_takes_85_kilobytes() -> None:
    assert RejectedLooks(np.geomspace(0.01, 12.0, 359))._last.nbytes < 85_000


# ------------------------------------------------------------------ leakage that varies

GRID = np.geomspace(0.1, 4.0, 200)


def ratios_of(course: str, steps: int) -> np.ndarray:
    """Leakage over claim of each step."""
    t = np.arange(steps)
    return {
        "constant": np.ones(steps),
        "rises": np.where(t < steps // 10, 0.5, 2.0),
        "falls": np.where(t < steps // 10, 2.0, 0.5),
        "alternates": np.where(t % 2 == 0, 0.5, 1.5),
        "alternates slowly": np.where((t // 60) % 2 == 0, 1.6, 0.6),
    }[course]


RUNS = 2000


@pytest.mark.parametrize("runs", staged(heavy=[200], nightly=[RUNS]))
@pytest.mark.parametrize("p", [0.2, 0.5])
@pytest.mark.parametrize(
    "course", ["constant", "rises", "falls", "alternates", "alternates slowly", "follows"]
)
@pytest.mark.heavy_one_in(3)
def test_what_is_rejected_is_below_the_mean_ratio_so_far_at_all_looks_together(
    course: str, p: float, runs: int
) -> None:
    steps, k = 600, 8
    rng = np.random.default_rng(3)
    bet = ErrorRateBet((runs, k), GRID, p)
    missed, total = np.zeros(runs, dtype=bool), np.zeros(runs)
    for step in range(steps):
        if course == "follows":  # less noise as long as little was proved
            now = np.where(bet.ratio_lower(0.05) < 0.8 * total / max(step, 1), 1.5, 0.5)
        else:
            now = np.full(runs, ratios_of(course, steps)[step])
        coins = (rng.random((runs, k)) < p).astype(float)
        bet.update(coins, coins + rng.standard_normal((runs, k)) / now[:, None], 1.0)
        total += now
        if step % 10 == 9:
            missed |= bet.ratio_lower(0.05) > total / (step + 1)
    print(f"\n{course} p={p}: {missed.mean()}")
    assert missed.sum() <= most_failures(runs, 0.05, RUNS)
