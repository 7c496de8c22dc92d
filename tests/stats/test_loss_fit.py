from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lightning_audit.stats.epsilon_star import (
    GaussianMixture,
    LogitScale,
    Parametric,
    epsilon_star,
    fit,
    kolmogorov_smirnov,
)


def two_gaussians(rng: np.random.Generator, n: int) -> np.ndarray:
    """Three tenths of N(-2, 0.5), the rest N(1, 1)."""
    first = rng.random(n) < 0.3
    return np.where(first, rng.normal(-2, 0.5, n), rng.normal(1, 1, n))


def log_likelihood(values: np.ndarray, mixture: GaussianMixture) -> float:
    parts = zip(mixture.weights, mixture.means, mixture.stds, strict=True)
    return float(np.log(sum(w * stats.norm.pdf(values, m, s) for w, m, s in parts)).mean())


def test_the_scale_is_the_negative_logit_of_the_paper() -> None:
    losses = np.array([0.2, 0.5, 3.0, 7.0])
    scale = LogitScale.of(losses)
    p = np.exp(-((losses - 0.2) / 6.8 + 1))
    assert scale.forward(losses) == pytest.approx(-np.log(p / (1 - p)), rel=1e-12)
    assert [scale.backward(y) for y in scale.forward(losses)] == pytest.approx(losses, rel=1e-12)
    assert scale.backward(-3.0) < 0.2 < 7.0 < scale.backward(3.0)


def test_one_gaussian_has_the_mean_and_standard_deviation_of_the_values() -> None:
    values = np.array([1.0, 2.0, 4.0])
    fitted = fit("losses_train", values, 1)
    assert fitted.means == pytest.approx([7 / 3])
    assert fitted.stds == pytest.approx([math.sqrt(7 / 3)])


# More than 8192 values are fitted in groups.
@pytest.mark.parametrize("n", [8000, 100_000])
def test_a_mixture_is_found_again(n: int) -> None:
    values = two_gaussians(np.random.default_rng(0), n)
    fitted = fit("losses_train", values, 2)
    error = 5 / math.sqrt(n)
    assert fitted.weights == pytest.approx([0.3, 0.7], abs=error)
    assert fitted.means == pytest.approx([-2, 1], abs=2 * error)
    assert fitted.stds == pytest.approx([0.5, 1], abs=2 * error)
    truth = GaussianMixture((0.3, 0.7), (-2.0, 1.0), (0.5, 1.0))
    assert log_likelihood(values, fitted) >= log_likelihood(values, truth)


def test_groups_of_neighbours_change_the_fit_by_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = two_gaussians(np.random.default_rng(1), 30_000)
    grouped = fit("losses_train", values, 2)
    monkeypatch.setattr("lightning_audit.stats.epsilon_star._GROUPS", 10**6)
    exact = fit("losses_train", values, 2)
    assert grouped != exact
    for name in ("weights", "means", "stds"):
        assert getattr(grouped, name) == pytest.approx(getattr(exact, name), abs=1e-4)


def test_a_component_does_not_shrink_onto_equal_losses() -> None:
    values = np.concatenate([np.full(500, 0.25), np.random.default_rng(0).normal(size=500)])
    fitted = fit("losses_train", values, 5)
    assert min(fitted.stds) == pytest.approx(1e-3 * values.std())
    assert sum(fitted.weights) == pytest.approx(1)


def test_more_components_fit_better() -> None:
    rng = np.random.default_rng(2)
    train, population = np.exp(0.2 * two_gaussians(rng, 3000)), rng.gamma(5, 0.3, 3000)
    one, two, five = (
        epsilon_star(train, population, 1e-5, Parametric(1e-3, k)).fit for k in (1, 2, 5)
    )
    assert one.ks_train > 5 * two.ks_train > 5 * five.ks_train / 1.5
    assert one.p_train < 1e-6
    assert two.p_train > 0.05


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_the_distance_and_its_p_value_are_those_of_kolmogorov_and_smirnov(n: int) -> None:
    values = np.random.default_rng(4).normal(0.1, 1, n)
    peer = stats.kstest(values, stats.norm(0, 1).cdf, method="asymp")
    fitted = GaussianMixture((1.0,), (0.0,), (1.0,))
    assert kolmogorov_smirnov(values, fitted) == pytest.approx((peer.statistic, peer.pvalue))


def test_mixtures_have_the_distribution_function_of_their_parts() -> None:
    mixture = GaussianMixture((0.25, 0.75), (-1.0, 3.0), (2.0, 0.5))
    x = np.array([[-60.0, -1.0], [2.0, 4.5]])
    cdf = 0.25 * stats.norm.cdf(x, -1, 2) + 0.75 * stats.norm.cdf(x, 3, 0.5)
    assert np.exp(mixture.logcdf(x)) == pytest.approx(cdf, rel=1e-9)
    assert np.exp(mixture.logsf(x)) == pytest.approx(1 - cdf, rel=1e-9)
    # Far out only the logarithm is left.
    assert mixture.logsf(200.0) == pytest.approx(math.log(0.25) + stats.norm.logsf(200, -1, 2))


@pytest.mark.parametrize(
    ("weights", "means", "stds", "message"),
    [
        ((), (), (), "0, 0 and 0 elements, must have equally many each, at least 1"),
        ((1.0,), (0.0, 1.0), (1.0,), "1, 2 and 1 elements"),
        ((0.5, 0.6), (0.0, 1.0), (1.0, 1.0), r"weights=\(0.5, 0.6\) must be > 0 with the sum 1"),
        ((1.5, -0.5), (0.0, 1.0), (1.0, 1.0), r"weights=.* must be > 0"),
        ((math.nan,), (0.0,), (1.0,), r"weights=\(nan,\) must be"),
        ((1.0,), (math.inf,), (1.0,), r"means=\(inf,\) must be finite"),
        ((1.0,), (0.0,), (0.0,), r"stds=\(0.0,\) must be finite numbers > 0"),
        ((1.0,), (0.0,), (math.nan,), r"stds=\(nan,\) must be"),
    ],
)
def test_a_mixture_that_is_none_is_named(weights, means, stds, message) -> None:
    with pytest.raises(ValueError, match=message):
        GaussianMixture(weights, means, stds)


@pytest.mark.heavy
def test_p_values_of_the_fit_reject_gaussian_losses_less_often_than_they_say() -> None:
    """The fit follows the losses: the p-values are too large, so that a small one counts."""
    rng = np.random.default_rng(5)
    p_values = []
    for _ in range(2000):
        values = rng.normal(size=200)
        p_values.append(kolmogorov_smirnov(values, fit("losses_train", values, 1))[1])
    assert np.mean(np.array(p_values) <= 0.2) < 0.02
