from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import special, stats

from lightning_audit.stats.counts import epsilon_at_rates
from lightning_audit.stats.membership import (
    auroc,
    roc_curve,
    tpr_at_fpr,
    tpr_at_fpr_lower,
    tradeoff_upper,
)
from lightning_audit.stats.tradeoff import GaussianTradeoff, gaussian_epsilon

scores = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0, math.inf]), min_size=1, max_size=12)


@given(scores, scores)
def test_area_is_the_share_of_pairs_in_the_right_order(inside, outside) -> None:
    pairs = [(x > y) + 0.5 * (x == y) for x in inside for y in outside]
    assert auroc(inside, outside) == pytest.approx(np.mean(pairs), abs=1e-15)
    assert auroc(outside, inside) == pytest.approx(1 - np.mean(pairs), abs=1e-15)


@given(scores, scores)
def test_area_is_that_under_the_curve_and_mann_whitneys_statistic(inside, outside) -> None:
    curve = roc_curve(inside, outside)
    area = np.sum(np.diff(curve.fpr) * (curve.tpr[1:] + curve.tpr[:-1]) / 2)
    assert auroc(inside, outside) == pytest.approx(area, abs=1e-12)
    if np.isfinite([*inside, *outside]).all():
        u = stats.mannwhitneyu(inside, outside, method="asymptotic").statistic
        assert auroc(inside, outside) == pytest.approx(u / (len(inside) * len(outside)))


@given(scores, scores)
def test_curve_holds_the_rates_of_every_threshold(inside, outside) -> None:
    curve = roc_curve(inside, outside)
    points = list(zip(curve.fpr, curve.tpr, strict=True))
    assert (np.diff(curve.fpr) >= 0).all()
    assert (np.diff(curve.tpr) >= 0).all()
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (1.0, 1.0)
    for t, point in zip(curve.thresholds, points, strict=True):
        assert point == (np.mean(np.array(outside) > t), np.mean(np.array(inside) > t))


@given(scores, scores, st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 0.7, 1.0]))
def test_rate_at_a_rate_is_the_largest_of_a_threshold(inside, outside, fpr) -> None:
    curve = roc_curve(inside, outside)
    expected = curve.tpr[curve.fpr <= fpr + 1e-12].max()
    assert tpr_at_fpr(inside, outside, fpr) == expected


def test_a_product_that_rounds_down_costs_no_score() -> None:
    outside, inside = np.arange(100.0), [70.5]
    assert 0.29 * 100 < 29
    assert tpr_at_fpr(inside, outside, 0.29) == 1.0
    assert tpr_at_fpr(inside, outside, 0.28) == 0.0


def test_constant_scores_tell_nothing() -> None:
    same = [3.0] * 50
    assert auroc(same, same) == 0.5
    assert tpr_at_fpr(same, same, 0.9) == 0.0
    assert tpr_at_fpr_lower(same, same, 0.9, 0.05) == 0.0
    assert tradeoff_upper(same, same, 0.05).epsilon_at(1e-5) == 0.0


def gaussian(n: int, mu: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, n])
    return mu + rng.standard_normal(n), rng.standard_normal(n)


def test_lower_rate_lies_below_the_observed_one_and_nears_it() -> None:
    rates = []
    for n in (100, 1000, 30_000):
        groups = gaussian(n, 2.0, 0)
        rates.append((tpr_at_fpr(*groups, 0.05), tpr_at_fpr_lower(*groups, 0.05, 0.05)))
    assert all(lower < seen for seen, lower in rates)
    truth = special.ndtr(2 + special.ndtri(0.05))
    assert rates[2] == pytest.approx((truth, truth), abs=0.04)
    assert tpr_at_fpr_lower([1.0] * 9, [0.0] * 9, 0.01, 0.05) == 0.0  # nothing limits a rate to .01
    assert tpr_at_fpr_lower([1.0] * 9, [0.0] * 9, 1.0, 0.05) == 1.0


@pytest.mark.parametrize("band", ["berk_jones", "dkw"])
def test_trade_off_bound_is_the_polygon_below_the_bands_points(band) -> None:
    from lightning_audit.stats.thresholds import simultaneous_upper_limits

    inside, outside = gaussian(60, 2.0, 1)
    f = tradeoff_upper(inside, outside, 0.05, band)
    limits = simultaneous_upper_limits(60, 0.025, band)
    found = 0.0
    for t in np.concatenate([inside, outside]):
        fnr, fpr = limits[np.sum(inside <= t)], limits[np.sum(outside > t)]
        assert f(fpr) <= fnr + 1e-12
        assert f(fnr) <= fpr + 1e-12
        if fnr + fpr < 1:
            found = max(found, epsilon_at_rates(fnr, fpr, 1e-3))
    assert f.epsilon_at(1e-3) == pytest.approx(found, rel=1e-9)


def test_some_thresholds_say_as_much_as_all_of_them() -> None:
    from lightning_audit.stats import membership

    groups = gaussian(30_000, 2.0, 2)
    fewer = tradeoff_upper(*groups, 0.05).epsilon_at(np.array([1e-5, 1e-2, 0.3]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "_MOST", 10**6)
        every = tradeoff_upper(*groups, 0.05).epsilon_at(np.array([1e-5, 1e-2, 0.3]))
    assert (fewer <= every + 1e-12).all()
    assert fewer == pytest.approx(every, rel=0.02)


test_arguments_out_of_range_are_refused = refusals(
    (lambda: auroc([], [1.0]), "scores_in is empty"),
    (lambda: roc_curve([1.0], []), "scores_out is empty"),
    (lambda: auroc([math.nan], [1.0]), "scores_in holds nan"),
    (lambda: auroc([[1.0]], [1.0]), "scores_in has shape"),
    (lambda: tpr_at_fpr([1.0], [1.0], 1.5), r"fpr=1\.5 must be in \(0, 1\]"),
    (lambda: tpr_at_fpr_lower([1.0], [1.0], 0.1, 0.0), r"significance=0\.0"),
    (lambda: tradeoff_upper([1.0], [1.0], 0.05, "ks"), "band='ks' must be one of"),
)


@pytest.mark.heavy
@pytest.mark.parametrize("mu", [0.0, 1.5])
@pytest.mark.parametrize("n", [200, 12_000])
def test_bounds_hold_at_all_rates_and_deltas_together(n: int, mu: float) -> None:
    deltas, rates = np.logspace(-6, -0.5, 8), np.array([0.01, 0.1, 0.3])
    truth = gaussian_epsilon(mu, deltas)
    tpr = 1 - GaussianTradeoff(mu)(rates)
    missed, repetitions = np.zeros(2), 1000 if n == 200 else 200
    for seed in range(repetitions):
        groups = gaussian(n, mu, seed)
        missed[0] += np.any(tradeoff_upper(*groups, 0.05).epsilon_at(deltas) > truth + 1e-9)
        lower = np.array([tpr_at_fpr_lower(*groups, rate, 0.05) for rate in rates])
        missed[1] += np.any(lower > tpr)
    print(f"\nn={n} mu={mu} missed {missed / repetitions}")
    assert (missed / repetitions <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)).all()
