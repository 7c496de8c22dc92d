import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_mechanisms import MECHANISMS, gaussian, plane
from refused_calls import refusals, refused
from scipy import stats

from lightning_audit.stats.output_estimates import (
    DEFAULT_THRESHOLDS,
    FITTED,
    GridRatio,
    KernelRatio,
    NeighbourRatio,
    claim_of_both_orders,
    default_neighbours,
    estimate_by_kernel,
    estimate_by_neighbours,
    exceedance,
    sample_pair,
    silverman_bandwidth,
)
from lightning_audit.stats.tradeoff import GaussianTradeoff, SubsampledGaussianTradeoff

RNG = np.random.default_rng(5)
ALPHA = np.linspace(0, 1, 2001)
each_estimator = pytest.mark.parametrize("estimator", [estimate_by_kernel, estimate_by_neighbours])


def naive_density(samples: np.ndarray, places: np.ndarray, bandwidth: float) -> np.ndarray:
    return stats.norm(samples[:, None], bandwidth).pdf(places).mean(axis=0)


@pytest.mark.parametrize("shift", [0.3, 1.0])
def test_grid_density_is_the_sum_of_kernels(shift):
    p, q = gaussian(np.random.default_rng(1), 800, shift)
    ratio = GridRatio(p, q, grid_size=2000)
    for mass, samples in ((ratio.p, p), (ratio.q, q)):
        naive = naive_density(samples, ratio.grid, silverman_bandwidth(samples))
        assert mass == pytest.approx(naive / naive.sum(), abs=2e-5 / 2)
        assert mass.sum() == pytest.approx(1)


def test_grid_ratio_is_the_likelihood_ratio():
    p, q = gaussian(np.random.default_rng(2), 200_000)
    x = np.linspace(-1.5, 2.5, 20)
    assert np.log(GridRatio(p, q)(x)) == pytest.approx(x - 0.5, abs=0.08)


def test_bandwidth_is_that_of_silverman_in_the_unit_of_the_samples():
    samples = np.random.default_rng(3).normal(2.0, 5.0, 10_000)
    assert silverman_bandwidth(samples) == pytest.approx(0.9 * 5 * 10_000**-0.2, rel=0.02)
    assert silverman_bandwidth(3 * samples) == pytest.approx(3 * silverman_bandwidth(samples))
    assert silverman_bandwidth(np.concatenate([np.zeros(900), samples[:100]])) > 0


def test_kernel_ratio_in_the_plane_is_the_quotient_of_scipys_densities():
    p, q = plane(np.random.default_rng(6), FITTED + 500)
    x = RNG.normal(0.3, 1, (30, 2))
    kernels = [stats.gaussian_kde(rows[:FITTED].T)(x.T) for rows in (p, q)]
    assert KernelRatio(p, q)(x) == pytest.approx(kernels[1] / kernels[0], rel=1e-9)


# --- Likelihood ratios by neighbours: against sorted distances.
def naive_ratio(p: np.ndarray, q: np.ndarray, x: np.ndarray, k: int) -> np.ndarray:
    """Neighbours by sorting all distances; ties with the k-th count."""
    out = []
    for point in x:
        to_p, to_q = (np.linalg.norm(rows - point, axis=1) for rows in (p, q))
        radius = np.sort(np.concatenate([to_p, to_q]))[k - 1] * (1 + 1e-12)
        near_p, near_q = np.sum(to_p <= radius), np.sum(to_q <= radius)
        out.append((near_q + 0.5) / len(q) / ((near_p + 0.5) / len(p)))
    return np.array(out)


@st.composite
def samples(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    dimension = draw(st.integers(1, 3))
    sizes = [draw(st.integers(4, 25)) for _ in range(3)]
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    rows = [rng.normal(0, 1, (n, dimension)) for n in sizes]
    if dimension == 1 and draw(st.booleans()):
        rows = [np.round(r) for r in rows]  # many ties
    return rows[0], rows[1], rows[2], draw(st.integers(1, sum(sizes[:2]) - 1))


@given(samples())
def test_neighbours_are_those_of_sorted_distances(drawn):
    p, q, x, k = drawn
    scale = 1.0 if p.shape[1] == 1 else np.concatenate([p, q]).std(axis=0)
    expected = naive_ratio(p / scale, q / scale, x / scale, k)
    assert NeighbourRatio(p, q, k)(x) == pytest.approx(expected)


def test_many_queries_in_the_plane_are_answered_in_parts(monkeypatch):
    p, q = plane(np.random.default_rng(8), 60)
    x = RNG.normal(0, 1, (97, 2))
    whole = NeighbourRatio(p, q, 7)(x)
    monkeypatch.setattr("lightning_audit.stats.output_estimates._PART", 70)
    assert NeighbourRatio(p, q, 7)(x).tolist() == whole.tolist()


@pytest.mark.parametrize(("samples", "k"), [(4, 3), (100, 11), (2000, 45), (10_000, 101)])
def test_default_number_of_neighbours_is_odd_and_near_the_root(samples, k):
    assert default_neighbours(samples) == k


# --- Samples and claims as arguments: what is taken, and what is refused in which words.
def test_samples_of_any_shape_are_rows_of_floats():
    p, q = sample_pair([True, False, True], [3, 4])
    assert (p.tolist(), q.tolist()) == ([[1.0], [0.0], [1.0]], [[3.0], [4.0]])
    p, q = sample_pair(np.arange(12).reshape(2, 3, 2), np.zeros((5, 6)))
    assert (p.shape, q.shape, p[1].tolist()) == ((2, 6), (5, 6), [6, 7, 8, 9, 10, 11])


test_what_are_no_samples_is_refused = refused(
    sample_pair,
    ([1.0, np.nan], [1.0, 2.0], r"samples_p\[1\] is not finite \(1 of 2"),
    ([1.0, 1e200], [1.0, 2.0], "samples_p holds numbers beyond 1e.100"),
    ([1.0, 2.0], [1.0], r"samples_q has shape \(1,\), must hold at least 2"),
    ([1.0, 2.0], ["a", "b"], "samples_q has dtype <U1, must hold real"),
    (np.ones((5, 2)), np.ones(5), "2 numbers a sample and samples_q 1"),
    (np.ones((5, 0)), np.ones(5), "a sample must hold a number"),
)


def test_a_claim_of_both_orders_of_the_worlds_is_taken_as_it_is():
    both = SubsampledGaussianTradeoff(1.0, 0.1)
    assert claim_of_both_orders(both) is both


def naive_exceedance(ratios, weights, thresholds, smoothing):
    if smoothing == 0:
        above = ratios > thresholds[:, None]
    else:
        above = np.clip((ratios - thresholds[:, None]) / smoothing + 0.5, 0, 1)
    return above @ weights


def distance(estimate, truth) -> float:
    return float(np.max(np.abs(estimate(ALPHA) - truth(ALPHA))))


def reference_errors(name: str, n: int, draws: int, rng) -> list[float]:
    sampler, claim = MECHANISMS[name]
    return [distance(estimate_by_kernel(*sampler(rng, n)), claim(1.0)) for _ in range(draws)]


@pytest.mark.heavy
def test_errors_of_the_reference_table_to_the_digits():
    """Drawn as the reference drew them: one generator, the rows one after the other."""
    rng, found = np.random.default_rng(0), []
    for name in MECHANISMS:
        for n, draws in ((1000, 30), (10_000, 20), (100_000, 10)):
            errors = reference_errors(name, n, draws, rng)
            found.append((round(float(np.mean(errors)), 4), round(max(errors), 4)))
    mean, largest = zip(*found, strict=True)
    assert list(mean) == [0.0333, 0.0103, 0.0040, 0.0401, 0.0175, 0.0062]
    assert largest == pytest.approx([0.077, 0.020, 0.0088, 0.091, 0.040, 0.0087], abs=6e-4)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize(("n", "most"), [(1000, 0.13), (100_000, 0.02)])
def test_both_estimates_approach_the_true_curve(name, n, most):
    sampler, claim = MECHANISMS[name]
    p, q = sampler(np.random.default_rng([n, len(name)]), n)
    assert distance(estimate_by_kernel(p, q), claim(1.0)) < most
    assert distance(estimate_by_neighbours(p, q), claim(1.0)) < most


def test_ten_dimensions_are_estimated_by_neighbours():
    rng = np.random.default_rng(4)
    p, q = rng.normal(0, 1, (4000, 10)), rng.normal(1 / np.sqrt(10), 1, (4000, 10))
    assert distance(estimate_by_neighbours(p, q, neighbours=401), GaussianTradeoff(1.0)) < 0.08


@given(st.integers(1, 60), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 2.0]))
def test_exceedance_is_the_sum_over_all_pairs(n, seed, smoothing):
    rng = np.random.default_rng(seed)
    ratios, weights = rng.exponential(2, n), rng.random(n)
    ratios[rng.random(n) < 0.2] = 1e10  # where a density is at its floor
    thresholds = rng.exponential(2, 15)
    assert exceedance(ratios, weights, thresholds, smoothing) == pytest.approx(
        naive_exceedance(ratios, weights, thresholds, smoothing), abs=1e-10
    )


def test_points_are_integrals_over_the_grid():
    p, q = gaussian(np.random.default_rng(7), 3000)
    ratio, estimate = GridRatio(p, q), estimate_by_kernel(p, q)
    for mass, rate in ((ratio.p, estimate.alpha), (ratio.q, 1 - estimate.beta)):
        naive = naive_exceedance(ratio.ratios, mass, DEFAULT_THRESHOLDS, 0.1)
        assert rate == pytest.approx(naive, abs=1e-12)


@each_estimator
def test_without_noise_there_are_no_errors_and_equal_worlds_toss_a_coin(estimator):
    curve = estimator(np.zeros(400), np.ones(400)).convex()
    assert curve(0.01) < 0.01
    assert curve.epsilon_at(1e-3) > 5
    values = np.random.default_rng(10).normal(size=4000)
    assert distance(estimator(values[::2], values[1::2]), GaussianTradeoff(0.0)) < 0.06


def test_convex_hull_lies_on_or_below_the_estimate():
    estimate = estimate_by_kernel(*gaussian(np.random.default_rng(11), 500))
    assert (estimate.convex()(ALPHA) <= estimate(ALPHA) + 1e-12).all()
    assert estimate.samples == (500, 500)


test_arguments_out_of_range_are_refused = refusals(
    (
        lambda: claim_of_both_orders(SubsampledGaussianTradeoff(1.0, 0.1, "add")),
        "direction 'add' only, must be of both",
    ),
    (lambda: NeighbourRatio([1.0, 2.0], [1.0, 2.0], 4), "neighbours=4 must be less than the 4"),
    (lambda: GridRatio(np.ones((5, 2)), np.ones((5, 2))), "has 2 numbers a sample, must have"),
    (lambda: GridRatio([1.0, 2.0], [1.0, 2.0], bandwidth=0), "bandwidth=0 must be a finite"),
    (lambda: GridRatio([1.0, 2.0], [1.0, 2.0], grid_size=4), "grid_size=4 must be at least 16"),
    (lambda: KernelRatio(np.ones((3, 2)), np.ones((3, 2))), "must be more than 3 in 2 dim"),
    (lambda: KernelRatio(np.ones((9, 2)), np.ones((9, 2))), "lies in a subspace"),
    (lambda: estimate_by_kernel([1, 2], [1, 2], smoothing=-1), "smoothing=-1 must be a finite"),
    (lambda: estimate_by_kernel([1, 2], [1, 2], thresholds=[-1.0]), "thresholds=.*must hold"),
    (lambda: estimate_by_neighbours([1, 2], [1, 2]), "must hold at least 4 samples"),
    (lambda: estimate_by_kernel(np.eye(4), np.eye(4), bandwidth=1), "bandwidth=1 must be None"),
    (lambda: estimate_by_kernel([1, 2], [1, 2])(1.5), "alpha=1.5 must be"),
)
