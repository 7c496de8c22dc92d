from __future__ import annotations

import math

import numpy as np
import pytest
from drawn_counts import counts_of
from hypothesis import assume, given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import special

from lightning_audit.stats.binomial import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    jeffreys_lower,
    jeffreys_upper,
)
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    epsilon_clopper_pearson,
    epsilon_clopper_pearson_interval,
    epsilon_jeffreys,
    epsilon_jeffreys_interval,
    epsilon_katz,
    katz_log_ratios,
    mu_clopper_pearson,
    mu_pooled_clopper_pearson,
)

EXAMPLE = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
CORNER = ConfusionCounts(fn=10, tp=90, fp=0, tn=100)
deltas = st.sampled_from([0.0, 1e-5, 0.05])
significances = st.sampled_from([1e-9, 1e-3, 0.05, 0.5])
rates = st.floats(0, 1)


def published_epsilon(x: float, y: float, delta: float) -> float:
    """The largest of the four fractions as printed, for rates that leave none of them 0 / 0."""
    fractions = [
        ((1 - delta - y), x),
        ((1 - delta - x), y),
        ((y - delta), 1 - x),
        ((x - delta), 1 - y),
    ]
    return max(0.0, *(math.log(a / b) if b else math.inf for a, b in fractions if a > 0))


# Reference numbers, to the digits given.


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_flawless_attacks_are_reproduced(delta: float) -> None:
    counts = ConfusionCounts(
        fn=0, tp=np.array([100, 500, 1000]), fp=0, tn=np.array([100, 500, 1000])
    )
    interval = epsilon_clopper_pearson_interval(counts, delta, significance=0.1)
    assert interval[0] == pytest.approx([3.281, 4.906, 5.601], abs=5.1e-4)
    assert interval[0][1:] == pytest.approx([4.9056, 5.6006], abs=5.1e-5)
    assert interval[1].tolist() == [math.inf] * 3
    flawless = ConfusionCounts(0, 1000, 0, 1000)
    bounds = [f(flawless, delta, 0.1) for f in (epsilon_clopper_pearson, epsilon_jeffreys)]
    assert bounds == pytest.approx([5.8091, 6.2543], abs=5.1e-5)


def test_published_corner_case_is_reproduced() -> None:
    fnr, fpr = clopper_pearson_upper(10, 100, 0.025), clopper_pearson_upper(0, 100, 0.025)
    assert (fnr, fpr) == pytest.approx((0.17622, 0.03622), abs=5.1e-6)
    assert epsilon_at_rates(fnr, fpr, 1e-5) == pytest.approx(3.12437, abs=5.1e-6)
    low, high = epsilon_clopper_pearson_interval(CORNER, 1e-5, 0.1)
    assert low == pytest.approx(3.12437, abs=5.1e-6)
    assert high == math.inf
    bounds = [f(CORNER, 1e-5, 0.1) for f in (epsilon_clopper_pearson, epsilon_jeffreys)]
    assert bounds == pytest.approx([3.3441, 3.7928], abs=5.1e-5)


def test_published_minimum_at_no_false_positives_is_none() -> None:
    # Printed as 1.736 at (FNR+, 0): one of two terms there; by the other no epsilon is enough.
    fnr = clopper_pearson_upper(10, 100, 0.025)
    assert math.log((1 - 1e-5) / fnr) == pytest.approx(1.736, abs=5.1e-4)
    assert epsilon_at_rates(fnr, 0.0, 1e-5) == math.inf


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((35, 65, 25, 75), (0.64610, 0.51870)), ((10, 990, 5, 995), (4.55449, 4.08260))],
)
def test_log_ratios_are_reproduced(counts, expected: tuple[float, float]) -> None:
    assert katz_log_ratios(ConfusionCounts(*counts), 0.05) == pytest.approx(expected, abs=5.1e-6)
    assert epsilon_katz(ConfusionCounts(*counts), 0.1) == pytest.approx(expected[0], abs=5.1e-6)


# Naive twins.


@given(rates, rates, deltas)
def test_epsilon_of_rates_is_the_published_maximum(x: float, y: float, delta: float) -> None:
    # Next to the diagonal the published fractions cancel, to the last digits of their parts.
    assert (
        epsilon_at_rates(x, y, delta)
        == pytest.approx(published_epsilon(x, y, delta), rel=1e-9, abs=1e-9)
        or min(x, y, 1 - x, 1 - y) < 1e-6
    )


def test_epsilon_of_rates_is_exact_next_to_zero() -> None:
    # Rates that leave epsilon = 2^-40: one plus the gap over the rate, both exact in doubles.
    assert epsilon_at_rates(0.25, 0.75 - 2.0**-42, 0.0) == pytest.approx(2.0**-40, rel=1e-11)
    assert epsilon_at_rates(0.25 + 2.0**-42, 0.75, 0.0) == pytest.approx(2.0**-40, rel=1e-11)
    assert epsilon_at_rates(1e-310, 1e-310, 0.0) == pytest.approx(310 * math.log(10), rel=1e-12)


def test_no_epsilon_is_enough_for_certain_leaks() -> None:
    found = epsilon_at_rates(
        np.array([0.0, 0.5, 1.0, 0.0, 1e-6, 0.0]), np.array([0, 0, 0.4, 1, 0, 0.99999]), 1e-5
    )
    assert found.tolist()[:4] == [math.inf, math.inf, math.inf, 0.0]
    assert found[5] == 0.0
    assert epsilon_at_rates(0.5, 0.5, 0.0) == 0.0


@pytest.mark.parametrize(
    ("interval", "lower", "upper"),
    [
        (epsilon_clopper_pearson_interval, clopper_pearson_lower, clopper_pearson_upper),
        (epsilon_jeffreys_interval, jeffreys_lower, jeffreys_upper),
    ],
)
@pytest.mark.parametrize(
    "counts", [(35, 65, 25, 75), (10, 90, 0, 100), (95, 5, 80, 20), (50, 50, 40, 60), (1, 0, 0, 1)]
)
def test_interval_is_the_range_over_the_rectangle(counts, interval, lower, upper) -> None:
    fn, tp, fp, tn = counts
    sides = [
        np.linspace(lower(k, n, 0.0125), upper(k, n, 0.0125), 401)
        for k, n in ((fn, fn + tp), (fp, fp + tn))
    ]
    grid = epsilon_at_rates(*np.meshgrid(*sides), 0.01)
    low, high = interval(ConfusionCounts(*counts), 0.01, 0.05)
    # The grid has both diagonal corners, but may miss the band where epsilon is zero.
    assert low == pytest.approx(grid.min(), abs=0.02 if low == 0 else 1e-12)
    assert high == pytest.approx(grid.max(), rel=1e-12)


# Laws.

#: Bounds on epsilon, and on mu by the significances that they are proved for.
BOUNDS = [
    epsilon_clopper_pearson,
    epsilon_jeffreys,
    lambda c, delta, level: epsilon_katz(c, level),
    lambda c, delta, level: mu_clopper_pearson(c, level),
    lambda c, delta, level: mu_pooled_clopper_pearson(c, min(level, 0.25)),
]
INTERVALS = [epsilon_clopper_pearson_interval, epsilon_jeffreys_interval]


@pytest.mark.parametrize("bound", BOUNDS)
@given(counts_of(), deltas, significances)
def test_fewer_errors_never_lower_a_bound(bound, counts, delta, significance) -> None:
    if bound is BOUNDS[2]:
        # At small counts the normal limit is undefined, or widens faster than it moves.
        assume(counts.n_in > 0)
        spread = counts.fn * counts.tp / counts.n_in
        assume(spread > special.ndtri(significance / 2) ** 2 / 4 + 2)
    one = int(counts.fn > 0)
    better = ConfusionCounts(counts.fn - one, counts.tp + one, counts.fp, counts.tn)
    # The bounds on mu are known to a rounding.
    slack = 1e-12 if bound in BOUNDS[3:] else 0.0
    assert bound(better, delta, significance) >= bound(counts, delta, significance) * (1 - slack)


@pytest.mark.parametrize("bound", BOUNDS)
@given(counts_of(), deltas)
def test_bounds_rise_with_significance(bound, counts, delta) -> None:
    found = [bound(counts, delta, level) for level in (1e-9, 1e-3, 0.05, 0.25, 0.5)]
    assert found == sorted(found)
    assert found[0] >= 0


@pytest.mark.parametrize("bound", BOUNDS)
@given(counts_of(), deltas, significances)
def test_worlds_may_be_swapped(bound, counts, delta, significance) -> None:
    swapped = ConfusionCounts(counts.fp, counts.tn, counts.fn, counts.tp)
    slack = 1e-11 if bound in BOUNDS[3:] else 0.0
    value = bound(counts, delta, significance)
    assert bound(swapped, delta, significance) == pytest.approx(value, rel=slack, abs=0)


@given(counts_of(), significances)
def test_larger_delta_never_raises_a_bound(counts, significance) -> None:
    found = [epsilon_clopper_pearson(counts, delta, significance) for delta in (0, 1e-9, 0.01, 0.5)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("interval", INTERVALS)
@given(counts_of(), deltas, significances)
def test_interval_holds_the_observed_epsilon(interval, counts, delta, significance) -> None:
    low, high = interval(counts, delta, significance)
    assert 0 <= low <= high
    if counts.n_in and counts.n_out:
        observed = epsilon_at_rates(
            float(counts.fn / counts.n_in), float(counts.fp / counts.n_out), delta
        )
        # At the significance .5 a limit of one trial is on the observed rate's other side.
        if significance < 0.1:
            assert low <= observed <= high


@given(counts_of(), deltas, significances)
def test_jeffreys_claims_more_than_clopper_pearson(counts, delta, significance) -> None:
    assert epsilon_jeffreys(counts, delta, significance) >= epsilon_clopper_pearson(
        counts, delta, significance
    )


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_is_zero_without_data_and_without_leakage(bound) -> None:
    nothing = ConfusionCounts(
        [0, 0, 0, 500, 99, 0, 100], [0, 10, 9, 500, 1, 1000, 0],
        [0, 0, 0, 500, 99, 3, 100], [0, 0, 0, 500, 1, 0, 0],
    )  # fmt: skip
    for delta in (0.0, 1e-5):
        assert bound(nothing, delta, 0.05).tolist() == [0.0] * 7


def test_an_interval_without_data_is_all_there_is() -> None:
    assert epsilon_clopper_pearson_interval(ConfusionCounts(0, 0, 0, 0), 0, 0.05) == (0, math.inf)


def test_an_attack_turned_round_is_in_the_interval_but_proves_no_bound() -> None:
    turned = ConfusionCounts(fn=65, tp=35, fp=75, tn=25)
    assert epsilon_clopper_pearson(turned, 0.05, 0.05) == 0.0
    assert epsilon_clopper_pearson_interval(turned, 0.05, 0.05) == pytest.approx(
        epsilon_clopper_pearson_interval(EXAMPLE, 0.05, 0.05), rel=1e-12
    )


# Arguments.


def test_one_threshold_gives_floats_and_many_give_arrays() -> None:
    many = ConfusionCounts(np.array([[35], [10]]), 65, np.array([25, 0, 1]), 75)
    for bound in BOUNDS:
        assert type(bound(EXAMPLE, 0.0, 0.05)) is float
        assert bound(many, 0.0, 0.05).shape == (2, 3)
        assert bound(many, 0.0, 0.05)[0, 0] == bound(EXAMPLE, 0.0, 0.05)
    for interval in INTERVALS:
        assert interval(many, 0.0, 0.05)[1].shape == (2, 3)
    assert type(epsilon_at_rates(0.1, 0.2, 0)) is float


test_arguments_out_of_range_are_refused = refusals(
    (lambda: epsilon_at_rates(1.5, 0.1, 0.0), r"fnr=1\.5 must be in \(0, 1\]; an error rate"),
    (
        lambda: epsilon_clopper_pearson(EXAMPLE, 1.0, 0.05),
        r"delta=1\.0 must be in \(0, 1\); or",
    ),
    (lambda: epsilon_clopper_pearson(EXAMPLE, -0.1, 0.05), r"delta=-0\.1 must be in"),
    (lambda: epsilon_jeffreys(EXAMPLE, 0.0, 0.0), r"significance=0\.0 must be in \(0, 1\); it"),
    (lambda: epsilon_katz(EXAMPLE, 2.0), r"significance=2\.0 must be in \(0, 1\); it is"),
)
