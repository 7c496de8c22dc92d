import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused_calls import refusals, refused
from scipy import special, stats

from lightning_audit.stats.counts import epsilon_at_rates
from lightning_audit.stats.membership import (
    Challenges,
    auroc,
    measure_attack,
    measure_cross_fed,
    normal_ratio_p_value,
    roc_curve,
    tpr_at_fpr,
    tpr_at_fpr_lower,
    tradeoff_upper,
)
from lightning_audit.stats.tradeoff import GaussianTradeoff, gaussian_epsilon

scores = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0, math.inf]), min_size=1, max_size=12)


def as_published(loss: float, out: np.ndarray, inside: np.ndarray, alpha: float) -> bool:
    """Algorithm 3, with the R of appendix D and its third case."""
    m0, v0, m1, v1 = out.mean(), out.var(ddof=1), inside.mean(), inside.var(ddof=1)
    if v0 == v1:
        return bool(np.sign(m1 - m0) * (loss - m0) / np.sqrt(v0) > stats.norm.isf(alpha))
    big_r = (m0 / v0 - m1 / v1) / (1 / v1 - 1 / v0)
    shape = ((m0 + big_r) / np.sqrt(v0)) ** 2
    if v0 > v1:
        return bool((loss + big_r) ** 2 <= v0 * stats.ncx2.ppf(alpha, 1, shape))
    return bool((loss + big_r) ** 2 >= v0 * stats.ncx2.isf(alpha, 1, shape))


@pytest.mark.parametrize(("std_in", "mean_in"), [(0.5, 0.3), (2.0, 0.3), (1.3, -1.0), (0.8, 0.0)])
def test_cross_fed_counts_are_those_of_the_published_test(std_in, mean_in):
    rng = np.random.default_rng(int(10 * std_in))
    out, inside = rng.normal(1, 1, 40), rng.normal(mean_in, std_in, 40)
    for alpha in (0.02, 0.1, 0.5, 0.9):
        fp = sum(as_published(out[i], np.delete(out, i), inside, alpha) for i in range(40))
        tp = sum(as_published(inside[i], out, np.delete(inside, i), alpha) for i in range(40))
        found = measure_cross_fed(out, inside, alpha)
        assert (int(found.fp), int(found.fn)) == (fp, 40 - tp)


def test_independent_challenges_are_counted_as_published():
    rng = np.random.default_rng(3)
    draws = [rng.normal(mean, std, (30, 8)) for mean, std in [(1, 1), (0, 0.7), (1, 1), (0, 0.7)]]
    worlds = [(rng.normal(1, 1, 30), *draws[:2]), (rng.normal(0, 0.7, 30), *draws[2:])]
    found = measure_attack(*(Challenges(*world) for world in worlds), 0.2)
    fp, tp = (sum(as_published(*one, 0.2) for one in zip(*world, strict=True)) for world in worlds)
    assert (int(found.fp), int(found.tp), int(found.n_in), int(found.n_out)) == (fp, tp, 30, 30)


@given(st.floats(-3, 3), st.floats(-2, 2), st.floats(0.2, 5), st.floats(0.05, 0.95))
def test_no_other_region_of_that_size_has_more_power(m0, shift, scale, alpha):
    s0, m1, s1 = 1.5, m0 + shift, 1.5 * scale
    grid = np.linspace(m0 - 8 * s0, m0 + 8 * s0, 4001)
    p = normal_ratio_p_value(grid, m0, s0, m1, s1)
    in_region = p <= alpha
    size = np.sum(stats.norm.pdf(grid, m0, s0)[in_region]) * (grid[1] - grid[0])
    if np.any(p < 1):
        assert size == pytest.approx(alpha, abs=5e-3) or shift == 0
    ratio = stats.norm.logpdf(grid, m1, s1) - stats.norm.logpdf(grid, m0, s0)
    # Neyman and Pearson: the region holds the largest ratios.
    if in_region.any() and not in_region.all():
        assert ratio[in_region].min() >= ratio[~in_region].max() - 1e-6 * np.ptp(ratio)


def test_nearly_equal_spreads_approach_the_third_case():
    z = np.linspace(-3, 3, 61)
    equal = normal_ratio_p_value(z, 0.0, 1.0, -0.7, 1.0)
    assert equal == pytest.approx(stats.norm.cdf(z), rel=1e-12)
    for scale in (1 + 1e-9, 1 - 1e-9, 1 + 1e-15, 1 - 1e-15):
        assert normal_ratio_p_value(z, 0.0, 1.0, -0.7, scale) == pytest.approx(equal, rel=1e-6)


def test_small_p_values_keep_their_digits():
    p = normal_ratio_p_value(20.0, 0.0, 1.0, 30.0, 0.999999)
    assert p == pytest.approx(stats.norm.sf(20.0), rel=1e-6)


def test_an_outlier_leaves_the_spread_of_the_others():
    rng = np.random.default_rng(2)
    out, inside = np.append(rng.normal(0, 1e-6, 20), 1e6), rng.normal(-1e-6, 1e-6, 21)
    moments = [moment for x in (out[:-1], inside) for moment in (x.mean(), x.std(ddof=1))]
    p = normal_ratio_p_value(out[-1], *moments)
    assert int(measure_cross_fed(out, inside, float(np.clip(p + 1e-3, 1e-3, 0.99))).fp) >= 1


def test_the_false_positive_rate_is_the_target_for_normal_losses():
    rng, fp = np.random.default_rng(4), 0
    for _ in range(300):
        fp += int(measure_cross_fed(rng.normal(0, 1, 200), rng.normal(-1, 2, 200), 0.1).fp)
    # Cross-fed decisions agree more than independent ones: a wide interval.
    assert fp / 60_000 == pytest.approx(0.1, abs=0.004)


test_bad_losses_are_named = refused(
    measure_cross_fed,
    ([1.0, 2.0], [1.0, 2.0, 3.0], 0.1, r"losses_out has shape \(2,\), must be \[n\] with n >="),
    ([1.0, 2.0, 3.0], [[1.0]], 0.1, r"losses_in has shape \(1, 1\), must be"),
    ([1.0, np.nan, 3.0], [1.0, 2.0, 3.0], 0.1, "losses_out holds nan .*1 of 3, .* at index 1"),
    ([1.0, 2.0, 3.0], [1.0, 2.0, 3.5], 1.0, r"alpha=1.0 must be in \(0, 1\)"),
    ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], 0.1, "std_out=0.0 must be > 0: equal losses"),
)


GOOD = np.array([[1.0, 2.0], [3.0, 5.0]])
test_bad_shadows_are_named = refused(
    lambda shadows: measure_attack(
        Challenges([1.0, 2.0], GOOD, GOOD), Challenges([1.0, 2.0], shadows, GOOD), 0.1
    ),
    (np.ones((2, 1)), "inside.shadows_out has 1 shadow models, must have at least 2"),
    (np.ones((3, 4)), r"inside.shadows_out has shape \(3, 4\) for losses of shape \(2,\)"),
)


@given(scores, scores)
def test_area_is_the_share_of_pairs_in_order_and_that_under_the_curve(inside, outside):
    pairs = [(x > y) + 0.5 * (x == y) for x in inside for y in outside]
    assert auroc(inside, outside) == pytest.approx(np.mean(pairs), abs=1e-15)
    assert auroc(outside, inside) == pytest.approx(1 - np.mean(pairs), abs=1e-15)
    curve = roc_curve(inside, outside)
    area = np.sum(np.diff(curve.fpr) * (curve.tpr[1:] + curve.tpr[:-1]) / 2)
    assert auroc(inside, outside) == pytest.approx(area, abs=1e-12)
    if np.isfinite([*inside, *outside]).all():
        u = stats.mannwhitneyu(inside, outside, method="asymptotic").statistic
        assert auroc(inside, outside) == pytest.approx(u / (len(inside) * len(outside)))


@given(scores, scores)
def test_curve_holds_the_rates_of_every_threshold(inside, outside):
    curve = roc_curve(inside, outside)
    points = list(zip(curve.fpr, curve.tpr, strict=True))
    assert (np.diff(curve.fpr) >= 0).all()
    assert (np.diff(curve.tpr) >= 0).all()
    assert (points[0], points[-1]) == ((0.0, 0.0), (1.0, 1.0))
    for t, point in zip(curve.thresholds, points, strict=True):
        assert point == (np.mean(np.array(outside) > t), np.mean(np.array(inside) > t))


@given(scores, scores, st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 0.7, 1.0]))
def test_rate_at_a_rate_is_the_largest_of_a_threshold(inside, outside, fpr):
    curve = roc_curve(inside, outside)
    assert tpr_at_fpr(inside, outside, fpr) == curve.tpr[curve.fpr <= fpr + 1e-12].max()


def test_a_product_that_rounds_down_costs_no_score():
    assert 0.29 * 100 < 29
    assert [tpr_at_fpr([70.5], np.arange(100.0), fpr) for fpr in (0.29, 0.28)] == [1.0, 0.0]


def test_constant_scores_tell_nothing():
    same = [3.0] * 50
    assert (auroc(same, same), tpr_at_fpr(same, same, 0.9)) == (0.5, 0.0)
    assert tpr_at_fpr_lower(same, same, 0.9, 0.05) == 0.0
    assert tradeoff_upper(same, same, 0.05).epsilon_at(1e-5) == 0.0


def gaussian(n: int, mu: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, n])
    return mu + rng.standard_normal(n), rng.standard_normal(n)


def test_lower_rate_lies_below_the_observed_one_and_nears_it():
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
def test_trade_off_bound_is_the_polygon_below_the_bands_points(band):
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


def test_some_thresholds_say_as_much_as_all_of_them():
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
    (lambda: tpr_at_fpr([1.0], [1.0], 1.5), r"fpr=1\.5 must be in \(0, 1\]"),
    (lambda: tradeoff_upper([1.0], [1.0], 0.05, "ks"), "band='ks' must be one of"),
)


@pytest.mark.heavy
@pytest.mark.parametrize("mu", [0.0, 1.5])
@pytest.mark.parametrize("n", [200, 12_000])
def test_bounds_hold_at_all_rates_and_deltas_together(n, mu):
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
