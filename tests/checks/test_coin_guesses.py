from __future__ import annotations

import math

import numpy as np
import pytest
from simulated_record import header, monitor_of, simulate

from lightning_audit.checks.accounting import Guesses
from lightning_audit.record.store import INJECTED


def naive(entries: np.ndarray) -> list[list[int]]:
    """Counts by threshold (fn, tp, fp, tn), by plain loops over the whole past."""
    counts = [[0, 0, 0, 0] for _ in range(5)]
    past: list[np.ndarray] = []
    for entry in entries:
        if entry["canaries"] != INJECTED:
            continue
        for canary, (coin, reading) in enumerate(
            zip(entry["coins"].tolist(), entry["readings"].tolist(), strict=True)
        ):
            centre = sum(p[canary] for p in past) / (len(past) + 10)
            for i, offset in enumerate((-2, -1, 0, 1, 2)):
                threshold = 0.5 + offset * float(entry["noise_multiplier"])
                guessed_in = reading - centre > threshold
                place = {(1, 0): 0, (1, 1): 1, (0, 1): 2, (0, 0): 3}[coin, int(guessed_in)]
                counts[i][place] += 1
        past.append(entry["readings"] - entry["coins"])
    return counts


SIMULATED = {
    "healthy": {},
    "schedule": {"sigma": np.geomspace(3.0, 0.5, 60)},
    "data": {"data": 0.5},
    "some steps": {"every": 3},
    "dropped": {"dropped": range(0, 60, 7)},
    "less noise": {"noise": 0.2},
}


@pytest.mark.parametrize("name", SIMULATED)
def test_counts_are_those_of_plain_loops(name: str) -> None:
    made, entries = simulate(60, **SIMULATED[name])  # type: ignore[arg-type]
    guesses = monitor_of((made, entries)).guesses
    expected = naive(entries)
    assert [[p.fn, p.tp, p.fp, p.tn] for p in guesses.points] == expected
    middle = guesses.middle
    assert [middle.fn, middle.tp, middle.fp, middle.tn] == expected[2]
    canaries = int((entries["canaries"] == INJECTED).sum()) * len(made.canaries)
    assert {sum(row) for row in expected} == {canaries}


def test_thresholds_are_told_at_the_first_steps_noise_and_the_least_noise_is_kept() -> None:
    guesses = monitor_of(simulate(40, sigma=[2.0] * 10 + [1.0] * 20 + [3.0] * 10)).guesses
    assert [point.threshold for point in guesses.points] == [-3.5, -1.5, 0.5, 2.5, 4.5]
    assert guesses.least_noise == 1.0


def test_least_noise_is_of_steps_with_canaries_alone() -> None:
    sigma = [1.0, 2.0, 2.0] * 10
    assert monitor_of(simulate(30, sigma=sigma, every=3)).guesses.least_noise == 1.0
    assert monitor_of(simulate(30, sigma=[2.0, 1.0, 1.0] * 10, every=3)).guesses.least_noise == 2.0


def test_a_reading_at_the_threshold_is_guessed_out() -> None:
    made, entries = simulate(1)
    entries["readings"][0], entries["coins"][0] = 0.5, 0
    guesses = Guesses(made)
    guesses.update(entries[0])
    assert guesses.middle.tn == len(made.canaries)


def test_nothing_seen_gives_no_points_and_no_counts() -> None:
    guesses = Guesses(header())
    assert guesses.points == ()
    assert guesses.least_noise == math.inf
    middle = guesses.middle
    assert (middle.fn, middle.tp, middle.fp, middle.tn) == (0, 0, 0, 0)


def test_a_gradient_without_noise_is_guessed_right_every_time() -> None:
    middle = monitor_of(simulate(50, noise=0.0)).guesses.middle
    assert (middle.fn, middle.fp) == (0, 0)
    assert middle.tp + middle.tn == 400
