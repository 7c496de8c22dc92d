"""Noise that comes back: found by brute force as well, and never in noise that is new."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.stats.noise_tests import SEARCHED, NoisePast, noise_log_e


@pytest.mark.parametrize("width", [2, 9, 130, 512])
def test_the_nearest_step_is_that_of_a_plain_search(width: int) -> None:
    rng = np.random.default_rng(width)
    past, rows = NoisePast(), []
    stride = max(2, width // SEARCHED)
    for step in range(40):
        now = rng.normal(size=width)
        log_e, age = past.recurrence_log_e(now)
        if rows:
            distances = [np.sum((now[::stride] - row[::stride]) ** 2) for row in rows]
            nearest = int(np.argmin(distances))
            assert age == step - nearest
            rest = np.arange(width) % stride != 0
            gap = (now - rows[nearest])[rest]
            assert log_e == pytest.approx(float(noise_log_e(len(gap), gap @ gap)), rel=1e-4)
        else:
            assert (log_e, age) == (0.0, 0)
        past.add(now)
        rows.append(now)


def test_noise_that_comes_back_is_found_whenever_it_was() -> None:
    rng = np.random.default_rng(0)
    past = NoisePast()
    rows = rng.normal(size=(300, 384))
    for row in rows:
        past.add(row)
    for earlier in (0, 17, 299):
        log_e, age = past.recurrence_log_e(rows[earlier])
        assert age == 300 - earlier
        assert log_e > 500


def test_noise_that_comes_back_beside_other_data_is_found() -> None:
    rng = np.random.default_rng(0)
    past = NoisePast()
    noise = rng.normal(size=(50, 384))
    for row in noise:
        past.add(row + 0.4 * rng.normal(size=384))
    log_e, age = past.recurrence_log_e(noise[20] + 0.4 * rng.normal(size=384))
    assert age == 30
    assert log_e > 50


def test_the_oldest_steps_give_way() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 64))
    past = NoisePast(kept=8)
    for row in rows:
        past.add(row)
    assert len(past) == 8
    for earlier in range(20):
        log_e, age = past.recurrence_log_e(rows[earlier])
        assert (log_e > 20) == (earlier >= 12)
        if earlier >= 12:
            assert age == 20 - earlier


def test_one_entry_cannot_be_searched_and_tested() -> None:
    past = NoisePast()
    past.add(np.array([0.3]))
    assert past.recurrence_log_e(np.array([0.3])) == (0.0, 0)
    assert len(past) == 1


def test_new_noise_is_held_to_be_new() -> None:
    """The mean of the e-value, the nearest of many steps chosen by the other coordinates."""
    rng = np.random.default_rng(3)
    values = []
    for _ in range(300):
        past = NoisePast()
        for row in rng.normal(size=(30, 12)) * 0.2:  # a past that lies where noise is likely
            past.add(row)
        values += [np.exp(past.recurrence_log_e(rng.normal(size=12))[0]) for _ in range(10)]
    error = np.std(values) / np.sqrt(len(values))
    assert np.mean(values) <= 1 + 3 * error
    assert np.mean(values) > 0.3  # close to the worst case, so that the bound is tried


def test_the_nearest_step_has_the_number_that_it_was_kept_by() -> None:
    rows, past = np.random.default_rng(0).normal(size=(6, 64)), NoisePast(kept=4)
    for number, row in zip((0, 1, 99, 112, 113, 128), rows, strict=True):
        past.add(row, number)
    assert past.nearest == -1
    past.recurrence_log_e(rows[3])
    assert past.nearest == 112
    past.recurrence_log_e(rows[5])
    assert past.nearest == 128
