import itertools
import math
import sys
import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import DOCS
from refused_calls import refusals, refused
from scipy import special, stats

from lightning_audit.stats.epsilon_star import (
    Empirical,
    EpsilonStar,
    GaussianMixture,
    Method,
    Parametric,
    PermutationNull,
    epsilon_star,
    epsilon_star_null,
    epsilon_star_of_distributions,
    fit,
    kolmogorov_smirnov,
    pareto_front,
)
from lightning_audit.stats.tradeoff import gaussian_epsilon

sys.path.append(str(DOCS / "figures"))


from known_losses import known_epsilon_star

METHODS = [Empirical(clip=1e-3), Parametric(clip=1e-6)]


deltas = st.sampled_from([0.0, 1e-5, 0.05, 0.4])


models = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12)


few = st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, 2.0, math.inf]), min_size=1)


whole = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=15)


clips = st.sampled_from([0.0, 1e-3, 0.1, 0.3])


def gaussian(mean: float, std: float = 1.0) -> GaussianMixture:
    return GaussianMixture((1.0,), (mean,), (std,))


# The numbers of the paper's simulation, and those of known distributions.
GAMMAS = [
    ((5, 1), (5, 1), [0, 0, 0], [0, 0, 0]),
    ((5, 1), (6, 1), [1.7193, 2.9609, 4.1377], [1.7176, 2.5403, 2.5403]),
    ((5, 1), (10, 1), [5.1826, 9.2032, 12.9013], [5.1825, 9.2022, 12.8760]),
    ((5, 1), (5, 1.5), [3.4644, 6.2824, 8.9374], [3.4641, 6.2635, 7.7019]),
    ((5, 1), (5, 3), [6.1150, 11.6173, 16.8704], [6.1150, 11.6172, 16.8700]),
]


@pytest.mark.parametrize(("train", "population", "pure", "approximate"), GAMMAS)
def test_known_gammas_have_the_reference_values(train, population, pure, approximate):
    a, b = (stats.gamma(shape, scale=scale) for shape, scale in (train, population))
    for delta, references in ((0, pure), (1e-5, approximate)):
        for clip, expected in zip((1e-3, 1e-6, 1e-9), references, strict=True):
            star = known_epsilon_star(a, b, delta, clip=clip)
            assert expected - 6e-5 <= star.value <= expected + 1.6e-4
    if train != population:
        # For gammas of this order each ratio is the largest where its denominator is the clip.
        low, high = b.ppf(1e-6), a.isf(1e-6)
        exact = math.log(max(a.cdf(low), b.sf(high)) / 1e-6)
        star = known_epsilon_star(a, b, 0, clip=1e-6)
        assert star.value == pytest.approx(exact, rel=1e-9)


def test_sampled_gammas_have_the_reference_values():
    """Means of ten runs, drawn as the reference drew them; the truth is 0, 2.972 and 5.183.

    The parametric form has the truths 0, 5.087 and 9.202 at its own clip: it stays above.
    """
    expected = {
        5: [(1.526, 0.426), (0.555, 0.142), (0.198, 0.034)],
        7: [(3.294, 5.775), (2.928, 5.835), (2.974, 5.881)],
        10: [(5.252, 10.153), (5.181, 10.165), (5.197, 10.177)],
    }
    rng = np.random.default_rng(0)
    for shape, delta in itertools.product(expected, (0, 1e-5)):
        for n, of_size in zip((10**3, 10**4, 10**5), expected[shape], strict=True):
            pairs = [(rng.gamma(5, 1, n), rng.gamma(shape, 1, n)) for _ in range(10)]
            if delta:
                means = [
                    np.mean([epsilon_star(*pair, delta, method).value for pair in pairs])
                    for method in (Empirical(clip=1e-3), Parametric(clip=1e-6))
                ]
                assert means == pytest.approx(of_size, abs=6e-4)
    for shape, clip, truth in ((7, 1e-3, 2.972), (7, 1e-6, 5.087), (10, 1e-3, 5.183)):
        star = known_epsilon_star(stats.gamma(5), stats.gamma(shape), 1e-5, clip=clip)
        assert star.value == pytest.approx(truth, abs=6e-4)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01])
@pytest.mark.parametrize("clip", [1e-6, 1e-3])
def test_the_parametric_value_is_the_supremum_of_fits_to_the_logits(delta, clip):
    rng = np.random.default_rng(5)
    train, population = rng.gamma(5, size=500), rng.gamma(6.5, size=700)
    pooled = np.concatenate([train, population])

    def logit(losses):
        p = np.exp(-((losses - pooled.min()) / np.ptp(pooled) + 1.0))
        return np.log(p / (1 - p))

    star = epsilon_star(train, population, delta, Parametric(clip))
    assert epsilon_star(train, train[::-1], delta, Parametric(clip)).value == 0
    # Large logits are low losses.
    a, b = logit(train), logit(population)
    fits = stats.norm(a.mean(), a.std(ddof=1)), stats.norm(b.mean(), b.std(ddof=1))
    t = np.linspace(min(a.min(), b.min()) - 2, max(a.max(), b.max()) + 2, 400_001)
    tpr, fpr, fnr, tnr = fits[0].sf(t), fits[1].sf(t), fits[0].cdf(t), fits[1].cdf(t)
    best = max(
        ((top - delta) / np.maximum(below, clip)).max()
        for top, below in ((tpr, fpr), (tnr, fnr), (fpr, tpr), (fnr, tnr))
    )
    assert star.value == pytest.approx(math.log(best), abs=3e-4)
    assert star.value >= math.log(best) - 1e-9
    assert star.fpr == pytest.approx(fits[1].sf(logit(star.threshold)), rel=1e-9)
    assert star.fnr == pytest.approx(fits[0].cdf(logit(star.threshold)), rel=1e-9)


test_losses_without_a_fit_are_named = refused(
    lambda train, population, components: epsilon_star(
        train, population, 1e-5, Parametric(1e-6, components)
    ),
    ([1.0, 1.0], [1.0], 1, r"all 1\.0, must differ for a Gaussian fit; use Empirical"),
    ([1.0, 1.0], [1.0, 2.0], 1, "losses_train has 2 losses, 1 of them distinct;.*Empirical"),
    ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], 2, "losses_train has 3 losses.*needs 4 .*fewer"),
    ([1.0, math.inf], [1.0, 2.0], 1, "between 1.0 and inf, must span a finite range.*Emp"),
)


@pytest.mark.parametrize("method", [Empirical, Parametric])
@pytest.mark.parametrize("clip", [-1e-3, 0.5, math.nan, "0.1"])
def test_a_clip_out_of_range_is_named(method, clip):
    with pytest.raises(ValueError, match=r"clip=.* must be .*; it is the smallest error rate"):
        method(clip)
    with pytest.raises(ValueError, match=r"clip=.* must be"):
        epsilon_star_of_distributions(gaussian(0), gaussian(1), 0.1, clip=clip)


def test_other_bad_arguments_are_named():
    with pytest.raises(TypeError, match="method='empirical' must be Empirical"):
        epsilon_star([1.0], [2.0], 0.0, "empirical")
    with pytest.raises(TypeError, match=r"rng=0 must be a numpy\.random\.Generator"):
        epsilon_star_null([1.0], [2.0], 0.0, Empirical(0.1), permutations=9, rng=0)
    with pytest.raises(TypeError, match="method=None must be Empirical"):
        null([1.0], [2.0], None)


def null(train, population, method: Method, permutations: int = 99, seed: int = 0, delta=1e-5):
    rng = np.random.default_rng(seed)
    return epsilon_star_null(train, population, delta, method, permutations=permutations, rng=rng)


@pytest.mark.parametrize("method", [*METHODS, Empirical(clip=0), Parametric(1e-3)])
def test_the_p_value_is_that_of_all_deals(method):
    """Of 126 deals of nine losses, with ties, the share with a value at least as large."""
    losses = np.array([0.1, 0.4, 0.4, 0.5, 1.1, 1.3, 1.3, 1.3, 2.0])
    train, population = losses[[0, 1, 2, 5]], losses[[3, 4, 6, 7, 8]]
    value = epsilon_star(train, population, 1e-5, method).value
    deals = [list(deal) for deal in itertools.combinations(range(9), 4)]
    dealt = [
        epsilon_star(losses[deal], np.delete(losses, deal), 1e-5, method).value for deal in deals
    ]
    exact = np.mean(np.array(dealt) >= value * (1 - 1e-9))
    found = null(train, population, method, permutations=500)
    assert found.value == pytest.approx(value, rel=1e-12)
    # Four standard errors.
    assert found.p_value == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 500))
    assert min(dealt) - 1e-9 <= found.median <= found.quantile_95 <= max(dealt) + 1e-9
    assert found.quantile_95 == pytest.approx(np.quantile(dealt, 0.95), abs=0.3)


@pytest.mark.parametrize("method", METHODS)
def test_the_generator_alone_decides_the_deals(method):
    rng = np.random.default_rng(2)
    train, population = rng.gamma(5, size=50), rng.gamma(5, size=70)
    state = np.random.get_state()[1].tolist()
    assert null(train, population, method, 9) == null(train, population, method, 9)
    assert null(train, population, method, 9) != null(train, population, method, 9, seed=3)
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize("method", METHODS)
def test_identical_sides_and_constant_losses_have_the_p_value_one(method):
    losses = np.random.default_rng(1).gamma(5, size=100)
    found = null(losses, losses, method, permutations=19)
    assert (found.value, found.p_value) == (0, 1)
    assert null([1.0] * 5, [1.0] * 3, METHODS[0], 19) == PermutationNull(0, 1, 0, 0, 19)


def test_a_deal_that_has_no_fit_counts_as_large():
    found = null([1.0, 1.0, 2.0], [1.0, 1.0, 3.0], Parametric(1e-6), 199)
    # Both large losses on one side: the other side is constant, in 2 of 5 deals.
    assert found.p_value > 0.35
    assert found.quantile_95 == math.inf


test_arguments_out_of_range_are_refused = refusals(
    *(
        (partial(epsilon_star, *given, method), message)
        for method in (Empirical(1e-3), Parametric(1e-3))
        for *given, message in (
            ([], [1.0, 2.0], 0.0, r"losses_train=\[\] must hold at least one loss; evaluate"),
            ([1, 2], [math.nan, 2], 0, "losses_population holds nan.*1 of 2, the first at index 0"),
            ([[1, 2]], [1, 2], 0.0, r"losses_train has shape \(1, 2\), must be \[n\]; ravel"),
            ([1.0, 2.0], [1.0, 3.0], 1.0, r"delta=1.0 must be in \(0, 1\); or 0 for pure DP"),
        )
    ),
    *(
        (partial(null, [1.0, 2.0], [1.0, 3.0], Empirical(0.1), n), "permutations=.* >= 1; 999 are")
        for n in (0, 1.5, True)
    ),
    (lambda: null([1.0], [2.0, 3.0], Parametric(0.1)), "losses_train has 1 losses"),
    (lambda: Parametric(1e-6, components=0), "components=0 must be a whole number >= 1; 1 is a"),
)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("method", "n", "m", "runs", "permutations"),
    [
        (Empirical(clip=1e-3), 200, 200, 1500, 39),
        (Empirical(clip=0), 50, 300, 1500, 39),
        (Parametric(clip=1e-6), 100, 200, 150, 19),
    ],
)
def test_without_leakage_the_p_value_has_its_level(method, n, m, runs, permutations):
    """Levels 1/20 to 1/2; losses with ties, so that the p-value may be larger than needed."""
    rng = np.random.default_rng(7)
    options = {"permutations": permutations, "rng": rng}
    p_values = []
    for _ in range(runs):
        losses = rng.gamma(2, size=n + m).round(2)
        found = epsilon_star_null(losses[:n], losses[n:], 1e-5, method, **options)
        p_values.append(found.p_value)
    for level in (0.05, 0.1, 0.25, 0.5):
        rejected = int(np.count_nonzero(np.array(p_values) <= level + 1e-9))
        assert stats.binom.sf(rejected - 1, runs, level) > 1e-4
        # Equal values cost some of the level, not most of it.
        assert stats.binom.cdf(rejected, runs, level * 0.6) > 1e-4


def two_gaussians(rng: np.random.Generator, n: int) -> np.ndarray:
    """Three tenths of N(-2, 0.5), the rest N(1, 1)."""
    first = rng.random(n) < 0.3
    return np.where(first, rng.normal(-2, 0.5, n), rng.normal(1, 1, n))


def log_likelihood(values: np.ndarray, mixture: GaussianMixture) -> float:
    parts = zip(mixture.weights, mixture.means, mixture.stds, strict=True)
    return float(np.log(sum(w * stats.norm.pdf(values, m, s) for w, m, s in parts)).mean())


# More than 8192 values are fitted in groups.
@pytest.mark.parametrize("n", [8000, 100_000])
def test_a_mixture_is_found_again(n):
    values = two_gaussians(np.random.default_rng(0), n)
    fitted = fit("losses_train", values, 2)
    error = 5 / math.sqrt(n)
    assert fitted.weights == pytest.approx([0.3, 0.7], abs=error)
    assert fitted.means == pytest.approx([-2, 1], abs=2 * error)
    assert fitted.stds == pytest.approx([0.5, 1], abs=2 * error)
    truth = GaussianMixture((0.3, 0.7), (-2.0, 1.0), (0.5, 1.0))
    assert log_likelihood(values, fitted) >= log_likelihood(values, truth)


def test_a_component_does_not_shrink_onto_equal_losses():
    values = np.concatenate([np.full(500, 0.25), np.random.default_rng(0).normal(size=500)])
    fitted = fit("losses_train", values, 5)
    assert min(fitted.stds) == pytest.approx(1e-3 * values.std())
    assert sum(fitted.weights) == pytest.approx(1)


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_the_distance_and_its_p_value_are_those_of_kolmogorov_and_smirnov(n):
    values = np.random.default_rng(4).normal(0.1, 1, n)
    peer = stats.kstest(values, stats.norm(0, 1).cdf, method="asymp")
    assert kolmogorov_smirnov(values, gaussian(0)) == pytest.approx((peer.statistic, peer.pvalue))


def test_tails_of_mixtures_keep_their_logarithms():
    # The search for thresholds holds it elsewhere; far out only the logarithm is left.
    mixture = GaussianMixture((0.25, 0.75), (-1.0, 3.0), (2.0, 0.5))
    assert mixture.logsf(200.0) == pytest.approx(math.log(0.25) + stats.norm.logsf(200, -1, 2))


test_a_mixture_that_is_none_is_named = refused(
    GaussianMixture,
    ((), (), (), "0, 0 and 0 elements, must have equally many each, at least 1"),
    ((1.0,), (0.0, 1.0), (1.0,), "1, 2 and 1 elements"),
    ((0.5, 0.6), (0.0, 1.0), (1.0, 1.0), r"weights=\(0.5, 0.6\) must be > 0 with the sum 1"),
    ((math.nan,), (0.0,), (1.0,), r"weights=\(nan,\) must be"),
    ((1.0,), (math.inf,), (1.0,), r"means=\(inf,\) must be finite"),
    ((1.0,), (0.0,), (0.0,), r"stds=\(0.0,\) must be finite numbers > 0"),
)


@pytest.mark.heavy
def test_p_values_of_the_fit_reject_gaussian_losses_less_often_than_they_say():
    """The fit follows the losses: the p-values are too large, so that a small one counts."""
    rng, p_values = np.random.default_rng(5), []
    for _ in range(2000):
        values = rng.normal(size=200)
        p_values.append(kolmogorov_smirnov(values, fit("losses_train", values, 1))[1])
    assert np.mean(np.array(p_values) <= 0.2) < 0.02


# --- Epsilon* of known distributions: the paper's numbers, other forms, and the search for it.
#: Values of two Gaussians, training losses N(0, 1) and population N(3, 1), by delta and clip.
CLIPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-9, 1e-12, 0)


OF_GAUSSIANS = {
    0: (6.1400, 7.7667, 9.2394, 10.5907, 14.1227, 17.1246, math.inf),
    1e-5: (6.1400, 7.7666, 9.2393, 10.5905, 14.1154, 16.6698, 16.6755),
}


@pytest.mark.parametrize(
    ("delta", "clip", "expected"),
    [(d, *at) for d, row in OF_GAUSSIANS.items() for at in zip(CLIPS, row, strict=True)],
)
def test_known_gaussians_have_the_reference_values(delta, clip, expected):
    star = epsilon_star_of_distributions(gaussian(0), gaussian(3), delta, clip=clip)
    # The reference is a maximum over a fixed grid: it may be short by one unit.
    assert expected - 6e-5 <= star.value <= expected + 1.1e-4
    if delta == 0 < clip:
        exact = special.log_ndtr(3 + special.ndtri(clip)) - math.log(clip)
        assert star.value == pytest.approx(exact, rel=1e-9)
        assert star.at_clip
    if max(delta, clip) > 0:
        scipy = known_epsilon_star(stats.norm(0, 1), stats.norm(3, 1), delta, clip=clip)
        assert scipy.value == pytest.approx(star.value, rel=1e-9)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2])
def test_without_a_clip_gaussians_have_the_epsilon_of_gdp(mu, delta):
    """The likelihood ratio is monotone in the loss, so that thresholds are the best regions."""
    star = epsilon_star_of_distributions(gaussian(0), gaussian(mu), delta, clip=0)
    t = np.linspace(-12, 12, 200_001)
    ratio = (special.ndtr(t) - delta) / special.ndtr(t - mu)
    assert star.value == pytest.approx(math.log(ratio.max()), abs=1e-7)
    assert star.value == pytest.approx(gaussian_epsilon(mu, delta), rel=1e-9)
    assert not star.at_clip


@settings(max_examples=50)
@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=4),
    st.lists(st.floats(0.2, 3), min_size=2, max_size=4),
    deltas,
    st.sampled_from([1e-6, 1e-2]),
)
def test_no_threshold_of_mixtures_gives_more(means, stds, delta, clip):
    k = min(len(means), len(stds))
    train = GaussianMixture((1 / k,) * k, tuple(means[:k]), tuple(stds[:k]))
    star = epsilon_star_of_distributions(train, gaussian(0.5, 1.5), delta, clip=clip)
    t = np.linspace(-20, 20, 20_001)
    tpr, fnr = (
        sum(special.ndtr(sign * (t - m) / s) / k for m, s in zip(means, stds, strict=False))
        for sign in (1, -1)
    )
    fpr, tnr = special.ndtr((t - 0.5) / 1.5), special.ndtr(-(t - 0.5) / 1.5)
    best = 1.0
    for top, below in ((tpr, fpr), (fpr, tpr), (fnr, tnr), (tnr, fnr)):
        best = max(best, ((top - delta) / np.maximum(below, clip)).max())
    assert math.log(best) - 1e-9 <= star.value <= math.log(best) + 0.02


@pytest.mark.parametrize(
    ("mean", "std", "clip"), [(0.014, 1.51, 0.05), (0.019, 2.1, 0.05), (0.009, 2.63, 0.01)]
)
def test_of_two_maxima_that_are_nearly_equal_the_larger_one_is_found(mean, std, clip):
    """The population is wide: the upper tail's maximum is the larger one by what the mean adds."""
    star = epsilon_star_of_distributions(gaussian(0), gaussian(mean, std), 0, clip=clip)
    t = -special.ndtri(clip)
    assert star.value == pytest.approx(special.log_ndtr((mean - t) / std) - math.log(clip))
    assert star.inequality == "population_above"
    assert star.threshold == pytest.approx(t, rel=1e-9)


def test_without_delta_and_clip_only_the_same_tails_have_a_finite_value():
    assert epsilon_star_of_distributions(gaussian(0), gaussian(0), 0, clip=0).value == 0
    star = epsilon_star_of_distributions(gaussian(0, 1), gaussian(0, 1.01), 0, clip=0)
    assert (star.value, star.at_clip) == (math.inf, True)
    train, population = (
        GaussianMixture(weights, (0.0, 1.0), (2.0, 1.0)) for weights in ((0.5, 0.5), (0.25, 0.75))
    )
    star = epsilon_star_of_distributions(train, population, 0, clip=0)
    assert star.value == pytest.approx(math.log(2), abs=1e-6)


def beaten(model: tuple[int, int], by: tuple[float, float]) -> bool:
    return by[0] <= model[0] and by[1] >= model[1] and tuple(by) != tuple(model)


@given(models)
def test_the_front_is_what_no_model_beats(models):
    front = {models[i] for i in pareto_front(*np.array(models).T)}
    assert front == {m for m in models if not any(beaten(m, other) for other in models)}


@given(models)
def test_the_convex_front_is_what_no_mixture_of_two_beats(models):
    found = pareto_front(*np.array(models).T, convex=True)
    points = np.array(models, dtype=float)
    for i, model in enumerate(models):
        weights = np.linspace(0, 1, 841)[:, None, None, None]
        mixtures = weights * points[:, None] + (1 - weights) * points
        better = (mixtures[..., 0] <= model[0] + 1e-9) & (mixtures[..., 1] >= model[1] + 1e-3)
        if i in found:
            assert not better.any()
        elif not any(beaten(model, other) for other in models):
            # Left out of the plain front by a mixture, or equal to a model on it.
            equal = (mixtures[..., 0] <= model[0] + 1e-9) & (mixtures[..., 1] >= model[1] - 1e-9)
            assert equal.any()


test_bad_models_are_named = refused(
    pareto_front,
    ([], [], r"cost=\[\] must be finite numbers"),
    ([1.0], [np.nan], "benefit=.*nan.* must be finite numbers"),
    ([1.0, 2.0], [1.0], "cost has 2 elements and benefit 1, must have equally many"),
)


# --- The empirical Epsilon*: against counting, and its invariances.
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


@given(few, few, deltas, clips)
def test_the_empirical_value_is_the_largest_of_thresholds(train, population, delta, clip):
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


@given(whole, deltas, clips, st.randoms())
def test_identical_sides_read_zero(losses, delta, clip, random):
    shuffled = random.sample(losses, len(losses))
    assert empirical(losses, shuffled, delta, clip).value == 0
    if len(set(losses)) > 1:
        assert epsilon_star(losses, shuffled, delta, Parametric(clip)).value == 0


def test_constant_losses_tell_nothing():
    star = empirical([0.7] * 30, [0.7] * 7, 1e-5, 1e-3)
    assert star == EpsilonStar(0.0, None, None, None, None, False, 1e-5, 1e-3)


def test_a_million_losses_a_side_take_linear_memory():
    rng = np.random.default_rng(0)
    train, population = rng.gamma(5, size=10**6), rng.gamma(5.5, size=10**6)
    star = empirical(train, population, 1e-5, 1e-3)
    known = stats.gamma(5), stats.gamma(5.5)
    truth = known_epsilon_star(*known, 1e-5, clip=1e-3).value
    assert star.value == pytest.approx(truth, abs=0.15)
    peaks = []
    for n in (10**4, 10**5):
        tracemalloc.start()
        empirical(train[:n], population[:n], 1e-5, 1e-3)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 11 * peaks[0]
