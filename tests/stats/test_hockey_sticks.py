"""Scores of a guess made of hockey sticks."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.stats.divergences import HockeySticks, sharpest_score, sign_score
from lightning_audit.stats.tradeoff import gaussian_delta

MUS = [0.02, 0.1, 0.5, 1.0, 2.0, 4.0, 50.0]


def naive_score(sticks: HockeySticks, x: float, b: float) -> float:
    total = 0.0
    for c, t, eps in zip(sticks.weights, sticks.thresholds, sticks.epsilons, strict=True):
        if x > t:
            total += c * (b - np.exp(eps) * (1 - b))
        if x < -t:
            total += c * ((1 - b) - np.exp(eps) * b)
    return total


@pytest.mark.parametrize("mu", MUS)
def test_score_is_the_sum_of_its_sticks(mu: float) -> None:
    rng = np.random.default_rng(0)
    x, b = rng.normal(size=200), rng.integers(0, 2, 200).astype(float)
    for sticks in (sharpest_score(mu), sign_score(mu)):
        naive = [naive_score(sticks, *pair) for pair in zip(x, b, strict=True)]
        assert sticks.score(x, b) == pytest.approx(naive)
        assert sticks.score(x, b).min() >= -sticks.largest_loss - 1e-12


@pytest.mark.parametrize("mu", MUS)
def test_most_is_above_the_divergences_and_concave_in_the_square_of_mu(mu: float) -> None:
    sticks = sharpest_score(mu)
    square = np.linspace(1e-6, 9.0, 20_000) * max(mu, 0.05) ** 2
    most = sticks.most(np.sqrt(square))
    exact = gaussian_delta(sticks.epsilons, np.sqrt(square)[:, None]) @ sticks.weights
    assert (most >= exact).all()
    assert (np.diff(most) >= 0).all()
    rises = np.diff(most[::50])
    assert (np.diff(rises) <= 1e-3 * rises[:-1]).all()  # the hull is that of a grid
    # At the step that it is made for little is given away, of common noise multipliers nothing.
    made_for = min(max(mu, 0.05), 4.0)
    least = float(gaussian_delta(sticks.epsilons, made_for) @ sticks.weights)
    given = float(sticks.most(np.asarray(made_for))) / least - 1.0
    assert given < (1e-9 if mu >= 0.1 else 0.03)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_slope_is_the_derivative_of_most(mu: float) -> None:
    for sticks in (sharpest_score(mu), sign_score(mu)):
        at = np.geomspace(0.01, 5.0, 200)
        h = 1e-6 * at
        numeric = (sticks.most(at + h) - sticks.most(at - h)) / (2 * h)
        assert sticks.slope(at) == pytest.approx(numeric, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_mean_and_variance_are_those_of_the_gaussian_step(mu: float) -> None:
    rng = np.random.default_rng(1)
    b = rng.integers(0, 2, 400_000).astype(float)
    x = mu * (b - 0.5) + rng.standard_normal(len(b))
    for sticks in (sharpest_score(mu), sign_score(mu)):
        values = sticks.score(x, b)
        assert values.mean() == pytest.approx(sticks.mean, abs=5 * values.std() / len(b) ** 0.5)
        assert sticks.mean == pytest.approx(float(sticks.most(np.asarray(mu))), rel=1e-6)
        assert values.var() == pytest.approx(sticks.variance, rel=0.02)


def test_the_sharpest_score_tells_nearly_as_much_as_the_likelihood_ratio() -> None:
    def information(sticks: HockeySticks, mu: float) -> float:
        return float(sticks.slope(np.asarray(mu)) * mu) ** 2 / sticks.variance

    # Of mu^2 / 4 that the likelihood ratio has.
    assert information(sharpest_score(1.0), 1.0) == pytest.approx(0.2154, abs=2e-4)
    assert information(sign_score(1.0), 1.0) == pytest.approx(0.1452, abs=2e-4)
    for mu in (0.1, 0.5, 2.0):
        assert information(sharpest_score(mu), mu) > 1.3 * information(sign_score(mu), mu)


def test_the_mean_of_any_private_pair_is_below_most() -> None:
    """What post-processing makes of a Gaussian step."""
    sticks = sharpest_score(1.0)
    rng = np.random.default_rng(2)
    b = rng.integers(0, 2, 400_000).astype(float)
    noise = rng.standard_normal(len(b))
    limit = float(sticks.most(np.asarray(1.0)))
    for x in (
        b - 0.5 + noise,
        b - 0.2 + noise,  # the middle is off
        np.sign(b - 0.5 + noise) * 9.0,  # all readings are far
        np.cbrt(b - 0.5 + noise),
        (b - 0.5 + noise) * 7.0,
    ):
        values = sticks.score(x, b)
        assert values.mean() <= limit + 5 * values.std() / len(b) ** 0.5
