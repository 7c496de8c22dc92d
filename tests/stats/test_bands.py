from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import special, stats

from lightning_audit.stats.binomial import clopper_pearson_upper
from lightning_audit.stats.thresholds import (
    berk_jones_level,
    dkw_half_width,
    simultaneous_upper_limits,
)


@pytest.mark.parametrize(
    ("n", "level"),
    [
        (100, 1.094e-3),
        (200, 8.481e-4),
        (500, 6.393e-4),
        (1000, 5.329e-4),
        (2500, 4.329e-4),
        (5000, 3.772e-4),
    ],
)
def test_reference_levels(n: int, level: float) -> None:
    assert berk_jones_level(n, 0.025) == pytest.approx(level, rel=6e-4)


def kept_by_binomials(bounds: np.ndarray) -> float:
    """Naive twin: counts below each bound, one conditional binomial draw after the other."""
    n, before = len(bounds), 0.0
    counts = np.zeros(n + 1)
    counts[0] = 1.0
    for i, bound in enumerate(bounds, start=1):
        share, following = (bound - before) / (1 - before), np.zeros(n + 1)
        for count in range(n + 1):
            arrivals = np.arange(n - count + 1)
            following[count:] += counts[count] * stats.binom.pmf(arrivals, n - count, share)
        following[:i] = 0
        counts, before = following, bound
    return float(counts.sum())


@pytest.mark.parametrize("significance", [1e-4, 0.025, 0.3, 0.9])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 60])
def test_level_agrees_with_conditional_binomials(n: int, significance: float) -> None:
    i = np.arange(1, n + 1)
    bounds = special.betainccinv(i, n - i + 1.0, berk_jones_level(n, significance))
    assert 1 - kept_by_binomials(bounds) == pytest.approx(significance, rel=1e-7)


def test_two_observations_can_be_done_by_hand() -> None:
    # P(U_(1) <= a, U_(2) <= b) = 2ab - a^2, with a = 1 - sqrt(g) and b = sqrt(1 - g).
    level = berk_jones_level(2, 0.05)
    a, b = 1 - math.sqrt(level), math.sqrt(1 - level)
    assert 2 * a * b - a * a == pytest.approx(0.95, rel=1e-9)


@settings(max_examples=30)
@given(st.integers(1, 300), st.sampled_from([1e-8, 1e-3, 0.05, 0.5]))
def test_level_falls_with_observations_and_rises_with_significance(
    n: int, significance: float
) -> None:
    level = berk_jones_level(n, significance)
    assert significance / n * (1 - 1e-3) <= level <= significance
    assert berk_jones_level(n + 1, significance) <= level * (1 + 1e-3)
    assert berk_jones_level(n, significance * 1.5) > level


@given(st.integers(0, 300), st.sampled_from([1e-3, 0.05, 0.5]))
def test_dkw_limits_are_the_rates_and_a_half_width(n: int, significance: float) -> None:
    limits = simultaneous_upper_limits(n, significance, "dkw")
    assert limits.shape == (n + 1,)
    if n:
        expected = np.minimum(np.arange(n + 1) / n + dkw_half_width(n, significance), 1)
        assert (limits == expected).all()


def test_berk_jones_limits_are_clopper_pearson_limits_at_their_level() -> None:
    limits = simultaneous_upper_limits(40, 0.05, "berk_jones")
    level = berk_jones_level(40, 0.05)
    assert (limits == clopper_pearson_upper(np.arange(41), 40, level)).all()
    assert (np.diff(limits) > 0).all()
    assert limits[-1] == 1


def test_many_observations_are_compared_at_some_counts_with_the_significance_shared() -> None:
    n = 20_000
    limits = simultaneous_upper_limits(n, 0.05, "berk_jones")
    some = np.flatnonzero(np.diff(limits))
    assert limits[some] == pytest.approx(
        clopper_pearson_upper(some, n, 0.05 / len(some)), rel=1e-12
    )
    # Between those counts the limit is that of the next one; all count up to the last is 1.
    assert (np.diff(limits) >= 0).all()
    assert limits[-1] == 1
    # Not much wider than an exact band would be: it has a level of about .05 / 90.
    alone = clopper_pearson_upper(np.arange(n + 1), n, 0.05 / 90)
    rates = np.arange(n + 1) / n
    middle = slice(10, n - 10)
    wider = (limits - rates)[middle] / (alone - rates)[middle]
    assert 1.0 < wider.min() < wider.max() < 1.45
    assert np.mean(wider) < 1.3


def test_no_observation_limits_nothing() -> None:
    assert simultaneous_upper_limits(0, 0.05, "berk_jones").tolist() == [1.0]
    assert simultaneous_upper_limits(0, 0.05, "dkw").tolist() == [1.0]


def test_cached_limits_cannot_be_overwritten() -> None:
    with pytest.raises(ValueError, match="read-only"):
        simultaneous_upper_limits(5, 0.05, "dkw")[0] = 0.0


test_arguments_out_of_range_are_refused = refusals(
    (lambda: berk_jones_level(0, 0.05), "n=0 must be a whole number >= 1"),
    (lambda: berk_jones_level(5, 1.0), r"significance=1\.0 must be in \(0, 1\); it is"),
    (lambda: berk_jones_level(5, 1e-9), r"significance=1e-09 must be in \[1e-08, 1\) .* DKW"),
    (lambda: dkw_half_width(0, 0.05), "n=0 must be"),
    (lambda: dkw_half_width(5, 0.6), r"significance=0\.6 must be in \(0, 1/2\]"),
    (lambda: simultaneous_upper_limits(5, 0.05, "ks"), "band='ks' must be one of"),
)


def crossing_rate(n: int, significance: float, band: str, ties: int, repetitions: int) -> float:
    """Share of samples whose true rate exceeds its limit at some threshold."""
    rng = np.random.default_rng([n, ties])
    limits = simultaneous_upper_limits(n, significance, band)
    uniform = np.sort(rng.random((repetitions, n)), axis=1)
    if not ties:
        # The rate is largest against its count just below each observation.
        return float(np.mean((uniform > limits[:-1]).any(axis=1)))
    crossed = np.zeros(repetitions, dtype=bool)
    for level in range(1, ties):
        counts = (uniform <= level / ties).sum(axis=1)
        crossed |= level / ties > limits[counts]
    return float(np.mean(crossed))


@pytest.mark.heavy
@pytest.mark.parametrize("n", [20, 200])
def test_bands_fail_as_often_as_they_say(n: int) -> None:
    repetitions, significance = 100_000, 0.025
    error = 4 * math.sqrt(significance / repetitions)
    exact = crossing_rate(n, significance, "berk_jones", 0, repetitions)
    assert exact == pytest.approx(significance, abs=error)
    assert crossing_rate(n, significance, "dkw", 0, repetitions) <= significance + error
    # Scores with ties only make the band wider than need be.
    assert crossing_rate(n, significance, "berk_jones", 12, repetitions) <= significance + error
