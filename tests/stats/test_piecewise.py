from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy.spatial import ConvexHull

from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    PiecewiseTradeoff,
    TradeoffFunction,
)

rates = st.floats(0, 1)
points = st.lists(st.tuples(rates, rates), max_size=20)


def of_points(found: list[tuple[float, float]]) -> PiecewiseTradeoff:
    return PiecewiseTradeoff([a for a, _ in found], [b for _, b in found])


# Two points so near that rounding decides which is above the other's line: one of them must stay.
@example(
    [(0.7143257050979355, 0.28283178817419974), (0.714325705097931, 0.2828317881742041)], 0, 0, 0
)
@given(points, rates, rates, rates)
def test_is_a_tradeoff_function_on_or_below_its_points(
    found: list[tuple[float, float]], alpha: float, other: float, weight: float
) -> None:
    f = of_points(found)
    assert isinstance(f, TradeoffFunction)
    for a, b in found:
        assert f(a) <= b + 1e-12
    assert 0 <= f(alpha) <= 1 - alpha + 1e-12
    if alpha <= other:
        assert f(alpha) >= f(other) - 1e-12
    between = f(min(weight * alpha + (1 - weight) * other, 1.0))
    assert between <= weight * f(alpha) + (1 - weight) * f(other) + 1e-12
    assert (np.diff(f.alphas) > 0).all()
    assert (np.diff(f.betas) <= 0).all()
    assert f.betas[-1] == 0


@given(points)
def test_every_corner_is_a_point(found: list[tuple[float, float]]) -> None:
    f = of_points(found)
    given_points = {*found, (0.0, 1.0), (1.0, 0.0)}
    assert set(zip(f.alphas.tolist(), f.betas.tolist(), strict=True)) <= given_points


def test_corners_are_those_of_a_library_hull() -> None:
    rng = np.random.default_rng(0)
    alpha = rng.random(500)
    beta = (1 - np.sqrt(alpha)) ** 2 + 0.2 * rng.random(500)
    f = PiecewiseTradeoff(np.minimum(alpha, 1), np.minimum(beta, 1))
    cloud = np.column_stack([alpha, beta])
    cloud = np.vstack([cloud[beta <= 1], [[0, 1], [1, 0], [1, 1]]])
    corners = cloud[ConvexHull(cloud).vertices]
    corners = corners[(corners != 1).any(axis=1)]
    order = np.argsort(corners[:, 0])
    assert f.alphas == pytest.approx(corners[order, 0])
    assert f.betas == pytest.approx(corners[order, 1])


@given(points, st.floats(0, 20))
def test_privacy_curve_is_the_maximum_over_the_corners(
    found: list[tuple[float, float]], epsilon: float
) -> None:
    f = of_points(found)
    naive = max(0.0, float(np.max(1 - f.betas - math.exp(epsilon) * f.alphas)))
    assert f.delta_at(epsilon) == pytest.approx(naive, abs=1e-14)


@given(points, st.floats(1e-9, 1 - 1e-9))
def test_epsilon_is_the_least_with_its_delta(
    found: list[tuple[float, float]], delta: float
) -> None:
    f = of_points(found)
    epsilon = f.epsilon_at(delta)
    if math.isinf(epsilon):
        assert f.betas[0] < 1 - delta
        return
    assert f.delta_at(epsilon) <= delta + 1e-13
    if 1e-9 < epsilon < 700:  # beyond, e^epsilon is infinite
        assert f.delta_at(epsilon * (1 - 1e-9)) > delta - 1e-13


@given(st.floats(0.1, 5), st.floats(1e-4, 0.5), st.floats(0, 8), st.floats(1e-3, 0.9))
def test_three_corners_of_approx_dp_give_its_own_curve(
    epsilon: float, delta: float, other: float, wanted: float
) -> None:
    exact = ApproxDPTradeoff(epsilon, delta)
    equal = (1 - delta) / (1 + math.exp(epsilon))
    f = PiecewiseTradeoff([0.0, equal, 1 - delta], [1 - delta, equal, 0.0])
    alphas = np.linspace(0, 1, 50)
    assert f(alphas) == pytest.approx(exact(alphas), abs=1e-14)
    assert f.delta_at(other) == pytest.approx(exact.delta_at(other), abs=1e-13)
    if abs(wanted - delta) > 1e-9:
        assert f.epsilon_at(wanted) == pytest.approx(exact.epsilon_at(wanted), abs=1e-6)


def test_points_of_a_curve_give_the_curve_from_above() -> None:
    exact = GaussianTradeoff(1.0)
    alphas = np.concatenate([np.geomspace(1e-9, 0.1, 2000), np.linspace(0.1, 1, 2000)])
    f = PiecewiseTradeoff(alphas, exact(alphas))
    tried = np.geomspace(1e-8, 1, 777)
    assert (f(tried) >= exact(tried) - 1e-15).all()
    assert f(tried) == pytest.approx(exact(tried), abs=2e-6)
    assert f.epsilon_at(1e-5) == pytest.approx(exact.epsilon_at(1e-5), rel=1e-4)


def test_named_cases() -> None:
    nothing = PiecewiseTradeoff([], [])
    assert nothing(0.3) == pytest.approx(0.7)
    assert (nothing.delta_at(0.0), nothing.epsilon_at(1e-5)) == (0.0, 0.0)
    everything = PiecewiseTradeoff([0.0], [0.0])
    assert everything(0.0) == 0.0
    assert (everything.delta_at(math.inf), everything.epsilon_at(0.5)) == (1.0, math.inf)
    leak = PiecewiseTradeoff([0.0], [0.9])
    assert leak.epsilon_at(np.array([0.05, 0.1, 0.2])).tolist() == [math.inf, 0.0, 0.0]
    assert repr(leak) == "PiecewiseTradeoff(2 corners)"
    assert type(leak(0.5)) is float
    assert leak(np.array([[0.0, 1.0]])).tolist() == [[0.9, 0.0]]


test_arguments_out_of_range_are_refused = refusals(
    (lambda: PiecewiseTradeoff([1.1], [0.5]), r"alpha=1\.1 must be in \(0, 1\]"),
    (lambda: PiecewiseTradeoff([0.5], [math.nan]), "beta=nan must be"),
    (lambda: PiecewiseTradeoff([0.5], [0.5, 0.1]), r"shape \(1,\) and beta \(2,\), must be"),
    (lambda: PiecewiseTradeoff([], [])(-0.1), r"alpha=-0\.1 must be"),
    (lambda: PiecewiseTradeoff([], []).delta_at(-1.0), r"epsilon=-1\.0 must be"),
    (lambda: PiecewiseTradeoff([], []).epsilon_at(0.0), r"delta=0\.0 must be in \(0, 1\)"),
)
