from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from lightning_audit.stats.sampling_tests import (
    OVERLAP_TILTS,
    RATE_RATIOS,
    REPEAT_STAKE,
    PoissonBatchBets,
    largest_interval_probability,
    overlap_log_e,
    rate_log_e,
)
from lightning_audit.stats.sequential import log_mean_exp

Draw = Callable[[np.random.Generator, int], np.ndarray]
RECORDS, SIZE, EPOCH = 512, 16, 32


@pytest.mark.parametrize(("low", "high"), [(1, 1), (8, 8), (5, 9), (0, 3), (28, 30), (30, 30)])
def test_largest_probability_of_an_interval_is_that_of_the_best_of_all_rates(
    low: int, high: int
) -> None:
    rates = np.linspace(0, 1, 20_001)
    naive = (stats.binom.cdf(high, 30, rates) - stats.binom.cdf(low - 1, 30, rates)).max()
    assert largest_interval_probability(30, low, high) == pytest.approx(naive, rel=1e-6)


@pytest.mark.parametrize(
    ("records", "marked", "drawn"), [(30, 7, 5), (30, 29, 12), (10, 10, 4), (8, 3, 8), (9, 4, 0)]
)
def test_overlap_has_mean_one_under_the_hypergeometric_law(
    records: int, marked: int, drawn: int
) -> None:
    law = stats.hypergeom(records, marked, drawn)
    x = np.arange(drawn + 1)
    naive = (OVERLAP_TILTS[:, None] ** x * law.pmf(x)).sum(axis=1)
    for overlap in (max(0, drawn + marked - records), min(drawn, marked)):
        got = overlap_log_e(records, marked, drawn, overlap, OVERLAP_TILTS)
        assert got == pytest.approx(overlap * np.log(OVERLAP_TILTS) - np.log(naive), abs=1e-12)


def test_overlap_stays_exact_for_a_million_records() -> None:
    got = overlap_log_e(10**6, 5 * 10**5, 1000, 500, np.array([0.5]))
    # The draw is so small a part that it is all but binomial.
    assert got[0] == pytest.approx(500 * math.log(0.5) - 1000 * math.log(0.75), rel=1e-3)


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_bet_on_the_rate_has_mean_one_at_the_rate_and_less_below(rate: float) -> None:
    hits = np.arange(41)
    log_e = np.array([rate_log_e(40, int(k), rate) for k in hits])
    for true in (0.2 * rate, 0.7 * rate, rate):
        mean = (stats.binom.pmf(hits, 40, true)[:, None] * np.exp(log_e)).sum(axis=0)
        assert (mean <= 1 + 1e-12).all()
        if true == rate:
            assert mean == pytest.approx(np.ones(len(RATE_RATIOS)))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_bet_on_the_size_has_mean_one_at_most_whatever_the_rate(rate: float) -> None:
    for true in np.linspace(0.5 * rate, 0.5, 12):
        mean = np.zeros(2)
        for size in range(61):
            bets = PoissonBatchBets(60)
            bets.update(np.arange(round(60 * rate)))
            bets.update(np.arange(size))
            mean += stats.binom.pmf(size, 60, true) * np.exp(bets.wealth[:2])
        assert (mean <= 1 + 1e-9).all()


# ------------------------------------------------------------------ what the samplers draw


def poisson(rng: np.random.Generator, _: int) -> np.ndarray:
    return np.flatnonzero(rng.random(RECORDS) < SIZE / RECORDS)


def unequal(rng: np.random.Generator, _: int) -> np.ndarray:
    """Each record has a rate of its own, none above a tenth."""
    return np.flatnonzero(rng.random(RECORDS) < np.linspace(0, 0.1, RECORDS))


def of_a_part(rng: np.random.Generator, _: int) -> np.ndarray:
    """A third of the data set is trained on, at rate one half."""
    return np.flatnonzero(rng.random(RECORDS // 3) < 0.5)


def drifting(rng: np.random.Generator, t: int) -> np.ndarray:
    return np.flatnonzero(rng.random(RECORDS) < (0.02 + 0.02 * (t // EPOCH % 2)))


def without_replacement(rng: np.random.Generator, _: int) -> np.ndarray:
    return rng.choice(RECORDS, SIZE, replace=False)


class Shuffled:
    """Every record once in an epoch, in batches of Poisson sizes, so that no size tells."""

    def __init__(self) -> None:
        self.left = np.zeros(0, dtype=np.int64)

    def __call__(self, rng: np.random.Generator, t: int) -> np.ndarray:
        size = rng.binomial(RECORDS, SIZE / RECORDS)
        if len(self.left) < size:
            self.left = rng.permutation(RECORDS)
        batch, self.left = self.left[:size], self.left[size:]
        return batch


class SeededEachEpoch:
    """A Poisson sampler whose generator starts again in each epoch."""

    def __call__(self, _: np.random.Generator, t: int) -> np.ndarray:
        return poisson(np.random.default_rng(t % EPOCH), 0)


def highest(draw: Draw, seed: int, steps: int, floor: float = math.inf) -> tuple[float, int, str]:
    """The largest log e-value, the batch at which it passed ``floor``, and what showed it."""
    rng, bets = np.random.default_rng(seed), PoissonBatchBets(RECORDS)
    top = 0.0
    for t in range(steps):
        if t % EPOCH == 0:
            bets.start_epoch()
        bets.update(draw(rng, t))
        top = max(top, bets.log_e)
        if top >= floor:
            break
    return top, t + 1, bets.NAMES[int(bets.wealth.argmax())]


@pytest.mark.heavy
@pytest.mark.parametrize("draw", [poisson, unequal, of_a_part, drifting])
def test_poisson_sampling_of_any_rates_alarms_in_less_than_its_significance(draw: Draw) -> None:
    tops = np.array([highest(draw, seed, 100)[0] for seed in range(200)])
    # Nominal .05; 17 of 200 is three standard errors above it.
    assert (tops >= math.log(20)).sum() <= 17
    assert tops.max() < math.log(1e5)


def test_rates_that_vary_leave_a_short_run_without_alarm() -> None:
    for draw in (poisson, unequal, of_a_part, drifting):
        assert highest(draw, 7, 60)[0] < math.log(1e5)


@pytest.mark.parametrize(
    ("make", "what", "at_most"),
    [
        (lambda: without_replacement, "size", 12),
        (Shuffled, "unseen", 16),
        (SeededEachEpoch, "repeated", EPOCH + 3),
    ],
)
def test_other_sampling_is_found_in_few_batches_and_named(
    make: Callable[[], Draw], what: str, at_most: int
) -> None:
    for seed in range(5):
        top, batches, seen = highest(make(), seed, 100, floor=math.log(1e5))
        assert (top >= math.log(1e5), seen) == (True, what)
        assert batches <= at_most


def test_favoured_records_are_found_by_the_rate_of_those_that_came_before() -> None:
    rng, bets = np.random.default_rng(0), PoissonBatchBets(RECORDS)
    for t in range(4 * EPOCH):
        if t % EPOCH == 0:
            bets.start_epoch()
        # The expected size is right, but only a quarter of the records is ever drawn.
        bets.update(np.flatnonzero(rng.random(RECORDS // 4) < 4 * SIZE / RECORDS))
    (all_records, seen) = (rate_log_e(*map(int, row), SIZE / RECORDS) for row in bets.counts)
    assert log_mean_exp(all_records) < 5
    assert log_mean_exp(seen) > math.log(1e5)


def test_wrong_sampling_after_a_long_healthy_time_is_not_paid_for_by_repetition_bets() -> None:
    bets = PoissonBatchBets(RECORDS)
    rng = np.random.default_rng(0)
    for t in range(10 * EPOCH):
        if t % EPOCH == 0:
            bets.start_epoch()
        bets.update(poisson(rng, t))
    # All but the first epoch's batches were bet on, and each lost the stake at most.
    assert bets.wealth[4] >= 9 * EPOCH * math.log(1 - REPEAT_STAKE) - 1e-9


def test_of_more_records_than_are_watched_evenly_spaced_ones_stand_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lightning_audit.stats.sampling_tests.WATCHED", 200)
    bets = PoissonBatchBets(RECORDS)
    order = np.random.default_rng(0).permutation(RECORDS)
    bets.start_epoch()
    for start in range(0, RECORDS, SIZE):
        bets.update(order[start : start + SIZE])
    assert bets.wealth[2] > math.log(1e5)
