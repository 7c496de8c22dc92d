from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lightning_audit.stats.epsilon_star import (
    Empirical,
    GaussianMixture,
    Method,
    Parametric,
    epsilon_star,
    epsilon_star_of_distributions,
)


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
def test_known_gammas_have_the_reference_values(train, population, pure, approximate) -> None:
    a, b = (stats.gamma(shape, scale=scale) for shape, scale in (train, population))
    for delta, references in ((0, pure), (1e-5, approximate)):
        for clip, expected in zip((1e-3, 1e-6, 1e-9), references, strict=True):
            star = epsilon_star_of_distributions(a, b, delta, clip=clip)
            assert expected - 6e-5 <= star.value <= expected + 1.6e-4
    if train != population:
        # For gammas of this order each ratio is the largest where its denominator is the clip.
        low, high = b.ppf(1e-6), a.isf(1e-6)
        exact = math.log(max(a.cdf(low), b.sf(high)) / 1e-6)
        star = epsilon_star_of_distributions(a, b, 0, clip=1e-6)
        assert star.value == pytest.approx(exact, rel=1e-9)


def test_sampled_gammas_have_the_reference_values() -> None:
    """Means of ten runs, drawn as the reference drew them; the truth is 0, 2.972 and 5.183.

    The parametric form has the truths 0, 5.087 and 9.202 at its own clip: it stays above.
    """
    expected = {
        (5, 10**3): (1.526, 0.426),
        (5, 10**4): (0.555, 0.142),
        (5, 10**5): (0.198, 0.034),
        (7, 10**3): (3.294, 5.775),
        (7, 10**4): (2.928, 5.835),
        (7, 10**5): (2.974, 5.881),
        (10, 10**3): (5.252, 10.153),
        (10, 10**4): (5.181, 10.165),
        (10, 10**5): (5.197, 10.177),
    }
    rng = np.random.default_rng(0)
    for shape in (5, 7, 10):
        for delta in (0, 1e-5):
            for n in (10**3, 10**4, 10**5):
                pairs = [(rng.gamma(5, 1, n), rng.gamma(shape, 1, n)) for _ in range(10)]
                if delta:
                    means = [
                        np.mean([epsilon_star(*pair, delta, method).value for pair in pairs])
                        for method in (Empirical(clip=1e-3), Parametric(clip=1e-6))
                    ]
                    assert means == pytest.approx(expected[shape, n], abs=6e-4)
    for shape, clip, truth in ((7, 1e-3, 2.972), (7, 1e-6, 5.087), (10, 1e-3, 5.183)):
        known = stats.gamma(5), stats.gamma(shape)
        star = epsilon_star_of_distributions(*known, 1e-5, clip=clip)
        assert star.value == pytest.approx(truth, abs=6e-4)


# The empirical form.


@pytest.mark.parametrize("method", [Empirical(1e-3), Parametric(1e-3)])
def test_more_separation_raises_it(method: Method) -> None:
    rng = np.random.default_rng(3)
    train, population = rng.normal(size=4000), rng.normal(size=4000)
    values = [epsilon_star(train - by, population, 1e-5, method).value for by in range(4)]
    assert np.all(np.diff(values) > 0.5)
    inequalities = {
        epsilon_star(train + 2, population, 1e-5, method).inequality,
        epsilon_star(train - 2, population, 1e-5, method).inequality,
    }
    assert inequalities & {"train_below", "population_above"}
    assert inequalities & {"train_above", "population_below"}


def test_order_of_the_losses_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    train, population = rng.gamma(5, size=300), rng.gamma(7, size=200)
    for method in (Empirical(1e-3), Parametric(1e-6), Parametric(1e-6, components=2)):
        star = epsilon_star(train, population, 1e-5, method)
        assert epsilon_star(train[::-1], rng.permutation(population), 1e-5, method) == star


# The parametric form and known distributions.


def paper_transform(train, population) -> tuple[np.ndarray, np.ndarray]:
    pooled = np.concatenate([train, population])

    def logit(losses: np.ndarray) -> np.ndarray:
        p = np.exp(-((losses - pooled.min()) / np.ptp(pooled) + 1.0))
        return np.log(p / (1 - p))

    return logit(train), logit(population)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01])
@pytest.mark.parametrize("clip", [1e-6, 1e-3])
def test_the_parametric_value_is_the_supremum_of_fits_to_the_logits(delta, clip) -> None:
    rng = np.random.default_rng(5)
    train, population = rng.gamma(5, size=500), rng.gamma(6.5, size=700)
    star = epsilon_star(train, population, delta, Parametric(clip))
    a, b = paper_transform(train, population)
    # Large logits are low losses.
    fits = stats.norm(a.mean(), a.std(ddof=1)), stats.norm(b.mean(), b.std(ddof=1))
    t = np.linspace(min(a.min(), b.min()) - 2, max(a.max(), b.max()) + 2, 400_001)
    tpr, fpr, fnr, tnr = fits[0].sf(t), fits[1].sf(t), fits[0].cdf(t), fits[1].cdf(t)
    best = max(
        ((tpr - delta) / np.maximum(fpr, clip)).max(),
        ((tnr - delta) / np.maximum(fnr, clip)).max(),
        ((fpr - delta) / np.maximum(tpr, clip)).max(),
        ((fnr - delta) / np.maximum(tnr, clip)).max(),
    )
    assert star.value == pytest.approx(math.log(best), abs=3e-4)
    assert star.value >= math.log(best) - 1e-9
    pooled = np.concatenate([train, population])
    p = np.exp(-((star.threshold - pooled.min()) / np.ptp(pooled) + 1))
    assert star.fpr == pytest.approx(fits[1].sf(np.log(p / (1 - p))), rel=1e-9)
    assert star.fnr == pytest.approx(fits[0].cdf(np.log(p / (1 - p))), rel=1e-9)


def test_changed_units_leave_the_parametric_value() -> None:
    rng = np.random.default_rng(5)
    train, population = rng.gamma(5, size=500), rng.gamma(6.5, size=700)
    star = epsilon_star(train, population, 1e-5, Parametric(1e-6))
    changed = epsilon_star(7 * train - 30, 7 * population - 30, 1e-5, Parametric(1e-6))
    assert changed.value == pytest.approx(star.value, rel=1e-9)
    assert changed.threshold == pytest.approx(7 * star.threshold - 30, rel=1e-6)
    exchanged = epsilon_star(population, train, 1e-5, Parametric(1e-6))
    assert exchanged.value == pytest.approx(star.value, rel=1e-9)


# Bad input.


@pytest.mark.parametrize("method", [Empirical(1e-3), Parametric(1e-3)])
@pytest.mark.parametrize(
    ("train", "population", "delta", "message"),
    [
        ([], [1.0, 2.0], 0.0, r"losses_train=\[\] must hold at least one loss; evaluate"),
        ([1.0, 2.0], [], 0.0, r"losses_population=\[\] must hold at least one loss"),
        ([1.0, math.nan], [1.0, 2.0], 0.0, "losses_train holds nan.*1 of 2, the first at index 1"),
        (
            [1.0, 2.0],
            [math.nan, 2.0],
            0.0,
            "losses_population holds nan.*1 of 2, the first at index 0",
        ),
        ([[1.0, 2.0]], [1.0, 2.0], 0.0, r"losses_train has shape \(1, 2\), must be \[n\]; ravel"),
        (1.0, [1.0, 2.0], 0.0, r"losses_train has shape \(\), must be \[n\]"),
        ([1.0, 2.0], [1.0, 3.0], 1.0, r"delta=1.0 must be in \(0, 1\); or 0 for pure DP"),
        ([1.0, 2.0], [1.0, 3.0], -1e-5, "delta=-1e-05 must be"),
        ([1.0, 2.0], [1.0, 3.0], math.nan, "delta=nan must be"),
    ],
)
def test_bad_losses_and_deltas_are_named(train, population, delta, message, method) -> None:
    with pytest.raises(ValueError, match=message):
        epsilon_star(train, population, delta, method)


@pytest.mark.parametrize(
    ("train", "population", "components", "message"),
    [
        ([1.0, 1.0], [1.0], 1, r"all 1\.0, must differ for a Gaussian fit; use Empirical"),
        ([1.0, 1.0], [1.0, 2.0], 1, "losses_train has 2 losses, 1 of them distinct;.*Empirical"),
        ([1.0, 2.0], [3.0], 1, "losses_population has 1 losses, 1 of them distinct"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], 2, "losses_train has 3 losses.*needs 4 .*fewer"),
        ([1.0, math.inf], [1.0, 2.0], 1, "between 1.0 and inf, must span a finite range.*Emp"),
        ([-1.7e308, 0.0], [1.0, 1.7e308], 1, "must span a finite range"),
    ],
)
def test_losses_without_a_fit_are_named(train, population, components, message) -> None:
    with pytest.raises(ValueError, match=message):
        epsilon_star(train, population, 1e-5, Parametric(1e-6, components))


@pytest.mark.parametrize("method", [Empirical, Parametric])
@pytest.mark.parametrize("clip", [-1e-3, 0.5, 1, math.nan, math.inf, "0.1", True, None])
def test_a_clip_out_of_range_is_named(method, clip) -> None:
    with pytest.raises(ValueError, match=r"clip=.* must be .*; it is the smallest error rate"):
        method(clip)
    with pytest.raises(ValueError, match=r"clip=.* must be"):
        epsilon_star_of_distributions(gaussian(0), gaussian(1), 0.1, clip=clip)


def test_other_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="components=0 must be a whole number >= 1; 1 is a"):
        Parametric(1e-6, components=0)
    with pytest.raises(TypeError, match="method='empirical' must be Empirical"):
        epsilon_star([1.0], [2.0], 0.0, "empirical")
    with pytest.raises(ValueError, match="clip=0 must be > 0 if delta=0"):
        epsilon_star_of_distributions(stats.norm(0), stats.norm(1), 0, clip=0)
    with pytest.raises(TypeError, match="must both be GaussianMixture or neither"):
        epsilon_star_of_distributions(stats.norm(0), gaussian(1), 0, clip=0.1)
    with pytest.raises(ValueError, match="must have finite quantiles"):
        epsilon_star_of_distributions(stats.norm(math.nan), stats.norm(math.nan), 0, clip=0.1)
