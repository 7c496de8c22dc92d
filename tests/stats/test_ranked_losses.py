"""The empirical Epsilon*: against counting, and its invariances."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from lightning_audit.stats.epsilon_star import (
    Empirical,
    EpsilonStar,
    GaussianMixture,
    Parametric,
    epsilon_star,
    epsilon_star_of_distributions,
)


def empirical(train, population, delta: float = 0.0, clip: float = 0.0) -> EpsilonStar:
    return epsilon_star(train, population, delta, Empirical(clip))


def naive_ratios(train, population, delta: float, clip: float) -> dict[tuple[float, str], tuple]:
    """Numerator and denominator of every inequality at every loss, by counting."""
    least_train, least_population = max(clip, 1 / len(train)), max(clip, 1 / len(population))
    found = {}
    for t in {*train, *population}:
        tpr = sum(loss <= t for loss in train) / len(train)
        fpr = sum(loss <= t for loss in population) / len(population)
        fnr = sum(loss > t for loss in train) / len(train)
        tnr = sum(loss > t for loss in population) / len(population)
        found[t, "train_below"] = tpr - delta, max(fpr, least_population)
        found[t, "population_above"] = tnr - delta, max(fnr, least_train)
        found[t, "population_below"] = fpr - delta, max(tpr, least_train)
        found[t, "train_above"] = fnr - delta, max(tnr, least_population)
    return found


def paper_value(train, population, delta: float, clip: float) -> float:
    """Thresholds with a rate outside of [clip, 1 - clip] are dropped, as published."""
    best = 1.0
    for t in {*train, *population}:
        tpr = sum(loss <= t for loss in train) / len(train)
        fpr = sum(loss <= t for loss in population) / len(population)
        if not (clip <= fpr <= 1 - clip and clip <= tpr <= 1 - clip) or {0, 1} & {fpr, tpr}:
            continue
        best = max(best, (tpr - delta) / fpr, (1 - fpr - delta) / (1 - tpr))
        best = max(best, (fpr - delta) / tpr, (1 - tpr - delta) / (1 - fpr))
    return math.log(best)


few = st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, 2.0, math.inf]), min_size=1)
whole = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=15)
deltas = st.sampled_from([0.0, 1e-5, 0.05, 0.4])
clips = st.sampled_from([0.0, 1e-3, 0.1, 0.3])


@given(few, few, deltas, clips)
def test_the_empirical_value_is_the_largest_of_all_thresholds(
    train: list[float], population: list[float], delta: float, clip: float
) -> None:
    star = empirical(train, population, delta, clip)
    ratios = naive_ratios(train, population, delta, clip)
    best = max(top / below for top, below in ratios.values())
    assert star.value == pytest.approx(math.log(max(best, 1)), abs=1e-12)
    if star.value == 0:
        assert (star.threshold, star.fpr, star.fnr, star.inequality) == (None,) * 4
        assert not star.at_clip
        return
    top, below = ratios[star.threshold, star.inequality]
    assert math.log(top / below) == pytest.approx(star.value, abs=1e-12)
    assert star.fpr == pytest.approx(np.mean(np.array(population) <= star.threshold))
    assert star.fnr == pytest.approx(np.mean(np.array(train) > star.threshold))
    sizes = {"train_below": population, "train_above": population}
    assert star.at_clip == (below <= max(clip, 1 / len(sizes.get(star.inequality, train))))


@given(whole, whole, deltas, clips)
def test_dropping_thresholds_as_published_never_gives_more(train, population, delta, clip) -> None:
    least = paper_value(train, population, delta, clip)
    assert empirical(train, population, delta, clip).value >= least - 1e-12


def test_entire_separation_reads_the_log_of_the_sample_size_and_not_zero() -> None:
    train, population = np.arange(200.0), 500 + np.arange(400.0)
    star = empirical(train, population)
    assert star.value == pytest.approx(math.log(400))
    assert (star.threshold, star.fpr, star.fnr, star.at_clip) == (199.0, 0.0, 0.0, True)
    assert empirical(train, population, 0.1, 0.01).value == pytest.approx(math.log(0.9 / 0.01))
    assert paper_value(train, population, 0, 1e-3) == 0


TRANSFORMS = [lambda x: x + 3.0, lambda x: 0.25 * x, np.exp, lambda x: x**3, np.arctan]


@given(whole, whole, deltas, clips, st.sampled_from(TRANSFORMS))
def test_increasing_transforms_leave_the_empirical_value(
    train, population, delta, clip, transform
) -> None:
    before = empirical(train, population, delta, clip)
    after = empirical(transform(np.array(train)), transform(np.array(population)), delta, clip)
    at = None if before.threshold is None else float(transform(before.threshold))
    assert after == dataclasses.replace(before, threshold=at)


@given(whole, whole, deltas, clips)
def test_decreasing_transforms_and_exchanged_sides_leave_the_empirical_value(
    train, population, delta, clip
) -> None:
    value = empirical(train, population, delta, clip).value
    turned = empirical(-np.array(train), -np.array(population), delta, clip)
    assert turned.value == value
    assert empirical(population, train, delta, clip).value == value


@given(whole, deltas, clips, st.randoms())
def test_identical_sides_read_zero(losses, delta, clip, random) -> None:
    shuffled = random.sample(losses, len(losses))
    assert empirical(losses, shuffled, delta, clip).value == 0
    if len(set(losses)) > 1:
        assert epsilon_star(losses, shuffled, delta, Parametric(clip)).value == 0


@given(whole, whole, deltas, clips, st.integers(1, 5))
def test_training_losses_that_are_lower_still_raise_it(
    train, population, delta, clip, shift
) -> None:
    before = empirical(train, population, delta, clip)
    assume(before.inequality in ("train_below", "population_above"))
    after = empirical(np.array(train) - shift, population, delta, clip)
    assert after.value >= before.value


@given(whole, whole, st.sampled_from([(0.0, 0.05), (1e-5, 0.2)]))
def test_more_delta_or_clip_never_raises_it(train, population, pair) -> None:
    less, more = pair
    assert empirical(train, population, more, less).value <= (
        empirical(train, population, less, less).value
    )
    assert empirical(train, population, less, more).value <= (
        empirical(train, population, less, less).value
    )
    known = GaussianMixture((1.0,), (0.0,), (1.0,)), GaussianMixture((1.0,), (1.5,), (2.0,))
    values = [
        epsilon_star_of_distributions(*known, delta, clip=clip).value
        for delta, clip in ((less, less), (more, less), (more, more))
    ]
    assert sorted(values, reverse=True) == values


def test_constant_losses_tell_nothing() -> None:
    star = empirical([0.7] * 30, [0.7] * 7, 1e-5, 1e-3)
    assert star == EpsilonStar(0.0, None, None, None, None, False, 1e-5, 1e-3)


def test_a_million_losses_a_side_take_linear_memory() -> None:
    rng = np.random.default_rng(0)
    train, population = rng.gamma(5, size=10**6), rng.gamma(5.5, size=10**6)
    star = empirical(train, population, 1e-5, 1e-3)
    known = stats.gamma(5), stats.gamma(5.5)
    truth = epsilon_star_of_distributions(*known, 1e-5, clip=1e-3).value
    assert star.value == pytest.approx(truth, abs=0.15)
    peaks = []
    for n in (10**4, 10**5):
        tracemalloc.start()
        empirical(train[:n], population[:n], 1e-5, 1e-3)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 11 * peaks[0]
