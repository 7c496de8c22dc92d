"""Batches that come again, and records that are favoured: found, and not found by chance."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from lightning_audit.stats.sampling_tests import RepeatBet, favoured_log_e


def batches(records: int, rate: float, count: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(np.flatnonzero(rng.random(records) < rate)) for _ in range(count)]


def bet_on(drawn: list[tuple[int, ...]], records: int, rate: float) -> RepeatBet:
    bet = RepeatBet(records)
    for batch in drawn:
        bet.update(batch, len(batch), rate)
    return bet


def test_the_chance_of_an_earlier_batch_is_the_largest_at_any_rate_up_to_the_stated_one() -> None:
    records, rate = 6, 0.3
    known = [(0, 1), (2,), (1, 4, 5), (0, 3)]
    bet = bet_on(known, records, rate)
    rates = np.linspace(1e-4, rate, 4001)
    each = [max(rates ** len(b) * (1 - rates) ** (records - len(b))) for b in known]
    assert bet._chance(rate) == pytest.approx(sum(each), rel=1e-6)
    for own in rates[::400]:
        drawn = sum(
            own**size * (1 - own) ** (records - size)
            for size in range(records + 1)
            for chosen in combinations(range(records), size)
            if chosen in known
        )
        assert drawn <= bet._chance(rate) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("records", "rate", "stated", "count"),
    [
        (1797, 0.001, 0.002, 2000),
        (1797, 0.001, 0.01, 300),
        (100, 0.01, 0.1, 50),
        (60, 0.02, 0.2, 300),
    ],
)
def test_a_loader_that_draws_less_than_is_stated_is_not_accused(
    records: int, rate: float, stated: float, count: int
) -> None:
    """Proved in the class' docstring; before, 20 of 20 of each were accused."""
    for seed in range(20):
        bet = RepeatBet(records)
        for batch in batches(records, rate, count, seed):
            bet.update(batch, len(batch), stated)
            assert bet.log_e < math.log(1000.0)


def test_empty_batches_never_count_as_repeated() -> None:
    bet = bet_on([()] * 500, 100, 0.1)
    assert bet.again == 0
    assert bet.log_e == pytest.approx(0.0)


@pytest.mark.parametrize(("records", "rate"), [(5, 0.2), (12, 0.1), (200, 0.05), (40, 0.6)])
def test_new_batches_keep_the_mean_at_most_one(records: int, rate: float) -> None:
    # By simulation; proved in the class' docstring. Small data sets, where batches do come again.
    e = [
        math.exp(bet_on(batches(records, rate, 40, seed), records, rate).log_e)
        for seed in range(300)
    ]
    assert np.mean(e) < 1.0 + 3.0 * np.std(e) / math.sqrt(len(e)) + 1e-9
    assert max(e) < 50.0


def test_batches_that_come_again_are_found_at_once() -> None:
    drawn = batches(1000, 0.03, 30)
    bet = bet_on(drawn + drawn[:1], 1000, 0.03)
    assert bet.again == 1
    assert bet.log_e > 20.0


@pytest.mark.parametrize("rate", [0.005, 0.1, 0.6])
def test_favoured_records_are_not_found_where_none_are(rate: float) -> None:
    rng = np.random.default_rng(1)
    e = [math.exp(favoured_log_e(rng.binomial(50, rate, 300), 50, rate)) for _ in range(500)]
    assert np.mean(e) < 1.0 + 3.0 * np.std(e) / math.sqrt(len(e))
    assert max(e) < 100.0


@pytest.mark.parametrize("favoured", [1, 30, 300])
def test_favoured_records_are_found_however_few(favoured: int) -> None:
    rng = np.random.default_rng(1)
    counts = rng.binomial(200, 0.02, 3000)
    counts[:favoured] = rng.binomial(200, 0.5, favoured)
    assert favoured_log_e(counts, 200, 0.02) > 20.0


def test_where_all_records_are_taken_nothing_can_be_told() -> None:
    assert favoured_log_e(np.full(10, 5), 5, 1.0) == 0.0
    assert favoured_log_e(np.zeros(0), 5, 0.1) == 0.0
