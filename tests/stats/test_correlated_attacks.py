import json
import re

import numpy as np
import pytest
from places import DATA, DOCS
from refused_calls import refused, refused_changes
from scipy import stats
from stages import staged

from lightning_audit.stats.attack_strength import attack_counts, attack_strength_posterior
from lightning_audit.stats.correlated_attacks import (
    CorrelatedMasses,
    Correlations,
    _log_likelihood,
    correlated_attack_posterior,
    pooled_attacks,
)
from lightning_audit.stats.counts import ConfusionCounts

COUNTS = json.loads((DATA / "mia_error_counts.json").read_text())
NO_ERROR = attack_counts([0] * 9 + [1], 128, [13, 12, 10, 14, 11, 9, 13, 12, 15, 10], 128)


def published(name: str) -> ConfusionCounts:
    counts = COUNTS["sets"][name]
    return attack_counts(counts["false_negatives"], 100, counts["false_positives"], 100)


def smallest_epsilon(x: np.ndarray, y: np.ndarray, delta: float) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        pairs = ((1 - delta - x, y), (1 - delta - y, x), (x - delta, 1 - y), (y - delta, 1 - x))
        logs = [np.where(a > 0, np.log(np.maximum(a, 1e-300) / b), -np.inf) for a, b in pairs]
    return np.maximum.reduce(logs)


def naive_masses(fp, fn, n, inflation, r, delta, levels) -> tuple[np.ndarray, float]:
    """Masses outside, and the likelihood averaged over the rates, by a fine grid of rates."""
    at = (np.arange(1000) + 0.5) / 1000
    x, y = np.meshgrid(at, at, indexing="ij")
    sx, sy = (np.sqrt(n * rate * (1 - rate) * inflation) for rate in (x, y))
    u, v = (fp - n * x) / sx, (fn - n * y) / sy
    density = np.exp(-0.5 * (u**2 - 2 * r * u * v + v**2) / (1 - r**2))
    density /= 2 * np.pi * sx * sy * np.sqrt(1 - r**2)
    leak = smallest_epsilon(x, y, delta)
    outside = [float(np.sum(density[leak > level]) / np.sum(density)) for level in levels]
    return np.array(outside), float(np.mean(density))


@pytest.mark.parametrize(
    ("fp", "fn", "inflation", "r", "delta"),
    [
        (20, 30, 1.0, 0.0, 0.0),
        (20, 30, 2.5, 0.6, 0.01),
        (70, 60, 0.4, -0.7, 0.05),
        (2, 45, 1.7, 0.3, 0.001),
        (50, 50, 1.0, 0.9, 0.2),
    ],
)
def test_masses_are_those_of_a_fine_grid_of_rates(fp, fn, inflation, r, delta):
    levels = np.array([0.0, 0.2, 0.6, 1.0, 1.5, 2.5, 4.0])
    points = Correlations(np.array([inflation, 1.0]), np.array([r, 0.0]), np.zeros(2))
    masses = CorrelatedMasses(np.array([[fp, fn]]), np.array([[100, 100]]), points, levels)
    expected, total = naive_masses(fp, fn, 100, inflation, r, delta, levels)
    assert masses.outside(delta)[0, 0] == pytest.approx(expected, abs=2e-3)
    assert masses.log_totals[0, 0] == pytest.approx(np.log(total), abs=3e-3)


def naive_likelihood(fp, fn, n, inflation, r, x, y) -> float:
    """Probability of the counts at a pair of rates, one that is not 0 or n taken for a density."""
    spread = np.sqrt(n * np.array([x * (1 - x), y * (1 - y)]) * inflation)
    law = stats.multivariate_normal([n * x, n * y], np.outer(spread, spread) * [[1, r], [r, 1]])
    grids = []
    for count, rate, s in ((fp, x, spread[0]), (fn, y, spread[1])):
        ends = (n - 0.5, n * rate + 9 * s) if count else (n * rate - 9 * s, 0.5)
        if count in (0, n) and ends[0] >= ends[1]:
            return 0.0
        grids.append(np.linspace(*ends, 301) if count in (0, n) else np.array([float(count)]))
    values = law.pdf(np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1))
    values = values.reshape([grid.size for grid in grids])
    for axis, grid in reversed(list(enumerate(grids))):
        values = np.trapezoid(values, grid, axis=axis) if grid.size > 1 else values.take(0, axis)
    return float(values)


@pytest.mark.parametrize(
    ("fp", "fn", "inflation", "r"),
    [
        (0, 30, 1.0, 0.5),
        (30, 0, 2.0, 0.5),
        (30, 100, 1.5, 0.5),
        (100, 30, 1.0, -0.8),
        (0, 0, 2.0, 0.6),
        (0, 100, 2.0, 0.6),
        (100, 100, 1.0, -0.6),
    ],
)
def test_a_count_of_0_or_of_all_is_what_is_rounded_to_it(fp, fn, inflation, r):
    n, at = 100, [0.002, 0.02, 0.3, 0.97, 0.995]
    rates = np.array([[x, y] for x in at for y in at])
    errors, trials = np.array([fp, fn]), np.array([n, n])
    points = Correlations(np.array([inflation]), np.array([r]), np.zeros(1))
    extreme = (errors == 0) | (errors == n)
    logs = _log_likelihood(errors, trials, extreme, rates, points)[:, 0]
    spread = np.sqrt(n * rates * (1 - rates) * inflation)
    logs -= np.sum(np.where(extreme, 0.0, np.log(spread)), axis=1)
    expected = [naive_likelihood(fp, fn, n, inflation, r, *pair) for pair in rates.tolist()]
    assert max(expected) > 1e-4
    assert np.exp(logs) == pytest.approx(expected, rel=2e-3, abs=1e-9)


def test_where_most_attacks_make_no_error_the_posterior_is_about_the_binomial_one():
    found, published = (
        correlated_attack_posterior(NO_ERROR, 1e-5, 128, extreme_counts=way).joint.epsilon
        for way in ("interval", "density")
    )
    binomial = attack_strength_posterior(NO_ERROR, 1e-5).epsilon
    assert found.mean == pytest.approx(binomial.mean, abs=0.1)
    assert found.interval(0.1) == pytest.approx(binomial.interval(0.1), abs=0.15)
    assert published.quantile(0.05) > 20  # out of reach of the counts


@pytest.mark.heavy
def test_the_published_losses_are_reproduced():
    counts = published("A3_fixed_init_sigma_0.1")
    found = correlated_attack_posterior(counts, 1e-3, 100, extreme_counts="density")
    assert found.joint.epsilon.mean == pytest.approx(1.713, abs=0.006)
    assert found.joint.epsilon.interval(0.1) == pytest.approx((1.167, 2.449), abs=0.012)
    assert found.joint.strength.mean == pytest.approx(0.061, abs=0.004)
    assert found.tau[0] == pytest.approx(0.0074, abs=3e-4)
    assert found.rho[0] == pytest.approx(-0.0072, abs=2e-4)
    # The chain behind the printed interval has about 20 independent samples of tau and of rho.
    assert found.joint.epsilon.interval(0.1) == pytest.approx((1.29, 2.53), abs=0.15)


def rows_of_the_page() -> dict[str, list[float]]:
    """Numbers of Table 1 as docs/estimators shows them, in the order of the kept counts."""
    page = DOCS / "estimators" / "mcmc-dp-est.md"
    rows = re.findall(r"^\| A\d.*?\|(.*)\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    numbers = [[float(n) for n in re.findall(r"(?<![\d.])-?\d*\.\d+", row)] for row in rows]
    return dict(zip(COUNTS["sets"], numbers, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith(("A1", "A3")) else pytest.param(name, marks=pytest.mark.heavy)
        for name in COUNTS["sets"]
    ],
)
def test_the_binomial_column_of_the_page_is_computed(name):
    numbers = rows_of_the_page()[name]
    assert (len(numbers), numbers[:2]) == (12, COUNTS["sets"][name]["printed_epsilon_90"])
    found = attack_strength_posterior(published(name), 1e-3).epsilon.interval(0.1)
    assert numbers[2:4] == [round(end, 2) for end in found]


@pytest.mark.heavy
@pytest.mark.parametrize("name", COUNTS["sets"])
@pytest.mark.heavy_one_in(6)
def test_the_correlated_columns_of_the_page_are_computed(name):
    numbers = rows_of_the_page()[name]
    counts = published(name)
    for way, shown in (("density", numbers[4:8]), ("interval", numbers[8:])):
        found = correlated_attack_posterior(counts, 1e-3, 100, extreme_counts=way)
        interval = found.joint.epsilon.interval(0.1)
        assert shown[:2] == [round(end, 2) for end in interval]
        assert shown[2:] == [round(float(x), 4) for x in (found.tau[0], found.rho[0])]
        printed = COUNTS["sets"][name]["printed_epsilon_90"]
        assert (way == "interval") or interval == pytest.approx(printed, abs=0.2)


def test_known_correlations_of_zero_give_the_reference_of_independent_ones():
    counts = published("A3_fixed_init_sigma_0.1")
    found = correlated_attack_posterior(
        counts, 1e-3, 100, correlation=(0.0, 0.0), extreme_counts="density"
    )
    assert found.joint.epsilon.mean == pytest.approx(1.758, abs=0.004)
    assert found.joint.epsilon.interval(0.1) == pytest.approx((1.279, 2.514), abs=0.006)
    assert (found.tau, found.rho) == ((0.0, 0.0), (0.0, 0.0))


def test_groups_are_pooled_by_their_labels():
    counts = attack_counts([9, 7, 5, 2], 50, [3, 4, 8, 1], 50)
    pooled, cluster = pooled_attacks(counts, ["b", "a", "b", "c"])
    assert pooled == attack_counts([7, 14, 2], [50, 100, 50], [4, 11, 1], [50, 100, 50])
    assert cluster == 50


test_bad_arguments_are_named = refused_changes(
    correlated_attack_posterior,
    {"counts": attack_counts([30], 100, [20], 100), "delta": 1e-3, "cluster": 100},
    ({"cluster": 1}, "cluster=1 must be between 2 and the fewest challenges of a side, 100"),
    ({"cluster": 2.5}, "cluster=2.5 must be a whole number"),
    ({"correlation": (1.0, 0.0)}, r"correlation=\(1.0, 0.0\) must have tau in"),
    ({"correlation": (-0.02, 0.0)}, r"correlation=.* must have tau in \(-1/99, 1\)"),
    ({"correlation": (0.0, 0.01)}, r"correlation=.* \|rho\| below"),
    ({"correlation": 0.1}, "correlation=0.1 must be two numbers"),
    ({"extreme_counts": "no"}, "extreme_counts='no' must be one of"),
)


test_bad_groups_are_named = refused(
    lambda trials, groups: pooled_attacks(attack_counts([1, 2], trials, [3, 4], trials), groups),
    ([50, 50], [0], r"groups has shape \(1,\), must be \(2,\): one label an attack"),
    ([50, 60], [0, 0], r"counts have \[50, 60\] challenges, must have one number"),
)


# The heavy stage has the first draws of the nightly's.
@pytest.mark.parametrize("runs", staged(heavy=[15], nightly=[50]))
def test_the_interval_holds_its_level_averaged_over_the_prior(runs):
    rng = np.random.default_rng(11)
    n, tau, rho = 200, 0.01, 0.004
    inflation = 1 + (n - 1) * tau
    correlation = n * rho / inflation
    ranks = []
    for _ in range(runs):
        epsilon, s = abs(rng.normal(0, np.sqrt(10))), rng.random()
        x, y = rng.random((2, 1_000_000))
        leak = smallest_epsilon(x, y, 0.0)
        chosen = np.flatnonzero((leak > s * epsilon) & (leak <= epsilon))[:3]
        if chosen.size < 3:
            pytest.fail("too few pairs of rates to draw attacks from")
        z = rng.standard_normal((2, 3))
        z[1] = correlation * z[0] + np.sqrt(1 - correlation**2) * z[1]
        rates = np.stack([x[chosen], y[chosen]])
        drawn = n * rates + z * np.sqrt(n * rates * (1 - rates) * inflation)
        fp, fn = np.clip(np.round(drawn), 0, n).astype(int)
        counts = attack_counts(fn, n, fp, n)
        joint = correlated_attack_posterior(counts, 0.0, n, correlation=(tau, rho)).joint
        ranks.append((joint.epsilon.cdf(epsilon), joint.strength.cdf(s)))
    for rank in np.array(ranks).T:
        assert stats.kstest(rank, "uniform").pvalue > 0.01
