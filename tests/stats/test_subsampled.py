from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import special, stats

from lightning_audit.stats.tradeoff import (
    GaussianTradeoff,
    PiecewiseTradeoff,
    SubsampledGaussianTradeoff,
    gaussian_mu,
)

sigmas, qs = st.floats(0.1, 20), st.floats(1e-4, 1)
directions = st.sampled_from(["both", "remove", "add"])
CASES = [(0.3**0.5, 0.25), (1.0, 0.01), (0.4, 0.9), (3.0, 1.0), (0.2, 0.05)]


def test_reference_step() -> None:
    f = SubsampledGaussianTradeoff(0.3**0.5, 0.25)
    assert f(0.1) == pytest.approx(0.7483, abs=6e-5)
    assert f.epsilon_at(1e-5) == pytest.approx(6.9533, abs=6e-5)
    same_epsilon = GaussianTradeoff(gaussian_mu(f.epsilon_at(1e-5), 1e-5))
    assert same_epsilon(0.1) == pytest.approx(0.4204, abs=6e-5)


# Naive twins.


def masses(edges: np.ndarray) -> np.ndarray:
    """Normal probabilities of the cells, with all digits in both tails."""
    low, high = edges[:-1], edges[1:]
    below, above = (
        special.ndtr(high) - special.ndtr(low),
        special.ndtr(-low) - special.ndtr(-high),
    )
    return np.where(low < 0, below, above)


def neyman_pearson(sigma: float, q: float, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """Error rates of the likelihood ratio tests, by sorting cells of the real line."""
    edges = np.concatenate([[-np.inf], np.linspace(-9 * sigma, 1 + 9 * sigma, 40_001), [np.inf]])
    out = masses(edges / sigma)
    inside = (1 - q) * out + q * masses((edges - 1) / sigma)
    null, alternative = (inside, out) if direction == "add" else (out, inside)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.nan_to_num(alternative / null, nan=1.0), kind="stable")
    alpha, power = np.cumsum(null[order]), np.cumsum(alternative[order])
    return np.clip(alpha, 0, 1), np.clip(1 - power, 0, 1)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("sigma", "q"), CASES)
def test_one_direction_is_the_neyman_pearson_curve(sigma: float, q: float, direction: str) -> None:
    alpha, beta = neyman_pearson(sigma, q, direction)
    f = SubsampledGaussianTradeoff(sigma, q, direction)
    assert f(alpha) == pytest.approx(beta, abs=1e-9)


@pytest.mark.parametrize(("sigma", "q"), CASES)
def test_both_directions_are_the_hull_of_the_two(sigma: float, q: float) -> None:
    rates = [neyman_pearson(sigma, q, direction) for direction in ("remove", "add")]
    hull = PiecewiseTradeoff(*(np.concatenate(parts) for parts in zip(*rates, strict=True)))
    f = SubsampledGaussianTradeoff(sigma, q)
    tried = np.concatenate([np.geomspace(1e-9, 0.5, 200), np.linspace(0.5, 1, 100)])
    assert f(tried) == pytest.approx(hull(tried), abs=1e-7)
    assert (hull(tried) >= f(tried) - 1e-12).all()  # chords lie above a convex curve
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        assert f.delta_at(epsilon) == pytest.approx(hull.delta_at(epsilon), abs=1e-7)


@pytest.mark.parametrize("direction", ["both", "remove", "add"])
@pytest.mark.parametrize(("sigma", "q"), CASES)
def test_privacy_curve_is_the_hockey_stick_divergence(
    sigma: float, q: float, direction: str
) -> None:
    x = np.linspace(-10 * sigma, 1 + 10 * sigma, 400_001)
    out, shifted = stats.norm.pdf(x, 0, sigma), stats.norm.pdf(x, 1, sigma)
    inside = (1 - q) * out + q * shifted
    f = SubsampledGaussianTradeoff(sigma, q, direction)
    for epsilon in (0.0, 0.05, 0.5, 2.0):
        remove = np.maximum(inside - math.exp(epsilon) * out, 0).sum() * (x[1] - x[0])
        add = np.maximum(out - math.exp(epsilon) * inside, 0).sum() * (x[1] - x[0])
        naive = {"both": max(remove, add), "remove": remove, "add": add}[direction]
        assert f.delta_at(epsilon) == pytest.approx(naive, abs=1e-8)


def test_full_batches_are_gaussian() -> None:
    tried = np.linspace(0, 1, 101)
    for direction in ("both", "remove", "add"):
        f = SubsampledGaussianTradeoff(0.5, 1.0, direction)
        assert f(tried) == pytest.approx(GaussianTradeoff(2.0)(tried), abs=1e-14)
        assert f.epsilon_at(1e-5) == pytest.approx(GaussianTradeoff(2.0).epsilon_at(1e-5), rel=1e-9)


# Laws.


@given(sigmas, qs, st.floats(1e-12, 1 - 1e-12))
def test_add_is_the_inverse_of_remove_and_both_is_its_own(
    sigma: float, q: float, alpha: float
) -> None:
    remove, add, both = (
        SubsampledGaussianTradeoff(sigma, q, direction) for direction in ("remove", "add", "both")
    )
    beta = remove(alpha)
    assume(1e-9 < beta < 1 - 1e-9)
    assert add(beta) == pytest.approx(alpha, rel=1e-6, abs=1e-12)
    assert both(alpha) <= min(remove(alpha), add(alpha)) + 1e-12
    own = both(alpha)
    assume(1e-9 < own < 1 - 1e-9)
    assert both(own) == pytest.approx(alpha, rel=1e-5, abs=1e-12)


@given(sigmas, qs, directions, st.floats(-10, -0.01).map(lambda power: 10.0**power))
def test_epsilon_undoes_delta(sigma: float, q: float, direction: str, delta: float) -> None:
    f = SubsampledGaussianTradeoff(sigma, q, direction)
    epsilon = f.epsilon_at(delta)
    assert 0 <= epsilon < math.inf
    if epsilon == 0:
        assert f.delta_at(0.0) <= delta * (1 + 1e-12)
    else:
        # Delta falls by at most e^epsilon times what epsilon is off.
        assert f.delta_at(epsilon) == pytest.approx(delta, rel=1e-7, abs=1e-15)


@given(sigmas, qs, st.floats(0, 20))
def test_removing_a_record_is_the_worse_direction(sigma: float, q: float, epsilon: float) -> None:
    remove, add, both = (
        SubsampledGaussianTradeoff(sigma, q, direction).delta_at(epsilon)
        for direction in ("remove", "add", "both")
    )
    assert add <= remove * (1 + 1e-9) + 1e-15
    assert both == remove


@given(sigmas, qs, st.floats(0.01, 0.99), st.floats(1.01, 2))
def test_more_noise_and_less_sampling_raise_the_curve(
    sigma: float, q: float, alpha: float, factor: float
) -> None:
    beta = SubsampledGaussianTradeoff(sigma, q)(alpha)
    assert SubsampledGaussianTradeoff(factor * sigma, q)(alpha) >= beta - 1e-12
    assert SubsampledGaussianTradeoff(sigma, q / factor)(alpha) >= beta - 1e-12


def test_ends_and_shapes() -> None:
    for direction in ("both", "remove", "add"):
        f = SubsampledGaussianTradeoff(0.7, 0.2, direction)
        assert f(np.array([0.0, 1.0])).tolist() == [1.0, 0.0]
        assert f.delta_at(math.inf) == 0.0
        assert f.epsilon_at(0.5) == 0.0
        assert type(f(0.5)) is type(f.delta_at(1.0)) is type(f.epsilon_at(1e-5)) is float
        assert f.epsilon_at(np.array([[1e-9], [1e-5]])).shape == (2, 1)
    # Whatever adding a record does, its loss is at most ln 1/(1 - q).
    assert SubsampledGaussianTradeoff(0.1, 0.2, "add").epsilon_at(1e-12) <= -math.log(0.8)


test_arguments_out_of_range_are_refused = refusals(
    (lambda: SubsampledGaussianTradeoff(0.0, 0.5), r"noise_multiplier=0\.0 must be"),
    (lambda: SubsampledGaussianTradeoff(1.0, 0.0), r"sample_rate=0\.0 must be in \(0, 1\]"),
    (lambda: SubsampledGaussianTradeoff(1.0, 0.5, "in"), "direction='in' must be one of"),
    (lambda: SubsampledGaussianTradeoff(1.0, 0.5)(1.5), r"alpha=1\.5 must be"),
    (lambda: SubsampledGaussianTradeoff(1.0, 0.5).epsilon_at(0.0), r"delta=0\.0 must be"),
)
