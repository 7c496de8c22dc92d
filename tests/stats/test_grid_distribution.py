from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lightning_audit.stats.posteriors import GridDistribution, cumulative, increasing_curve


@pytest.mark.parametrize("law", [stats.gamma(3.0), stats.beta(2.5, 4.0), stats.expon(scale=0.5)])
def test_quantiles_cdf_and_mean_are_those_of_the_density(law) -> None:
    points = np.linspace(0.0, law.ppf(1 - 1e-9), 400)
    found = GridDistribution(points, 7.0 * law.pdf(points))
    for p in (0.01, 0.3, 0.5, 0.99):
        assert found.quantile(p) == pytest.approx(law.ppf(p), abs=1e-4)
        assert found.cdf(found.quantile(p)) == pytest.approx(p, abs=1e-12)
    assert found.mean == pytest.approx(law.mean(), abs=1e-4)
    assert found.interval(0.1) == (found.quantile(0.05), found.quantile(0.95))
    inside = found.cdf(np.array([0.0, law.median(), 1e9]))
    assert inside == pytest.approx([0.0, 0.5, 1.0], abs=1e-4)


def test_weights_change_the_density() -> None:
    points = np.linspace(0.0, 1.0, 101)
    found = GridDistribution(points, np.ones(101)).reweighted(points)
    assert found.cdf(0.5) == pytest.approx(0.25, abs=1e-6)


def test_a_grid_cannot_be_changed_after_the_check() -> None:
    points = np.linspace(0.0, 2.0, 9)
    found = GridDistribution(points, np.ones(9))
    points[0] = 1.0
    assert found.points[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        found.density[0] = -1.0


def test_integrals_of_parabolas_are_exact_and_never_fall() -> None:
    x = np.array([0.0, 0.5, 1.5, 2.0, 4.0])
    even = np.linspace(0.0, 3.0, 7)
    assert cumulative(even, even**2)[-1] == pytest.approx(9.0, rel=1e-12)
    assert cumulative(x[:2], np.array([1.0, 3.0])).tolist() == [0.0, 1.0]
    spiky = cumulative(x, np.array([0.0, 9.0, 0.0, 9.0, 0.0]))
    assert (np.diff(spiky) >= 0).all()


def test_a_curve_through_increasing_values_increases_whatever_the_slopes() -> None:
    x, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.0, 5.0, 5.1])
    curve = increasing_curve(x, y, np.array([50.0, -3.0, 50.0, 50.0]))
    values = curve(np.linspace(0.0, 3.0, 301))
    assert (np.diff(values) >= -1e-12).all()
    assert curve(x) == pytest.approx(y)


@pytest.mark.parametrize(
    ("points", "density", "message"),
    [
        ([0.0, 1.0], [1.0, 1.0], r"points of shape \(2,\) must be at least three increasing"),
        ([0.0, 1.0, 1.0], [1.0] * 3, "must be at least three increasing numbers; sort them"),
        ([0.0, 1.0, 2.0], [1.0] * 2, r"density of shape \(2,\) must hold one finite value"),
        ([0.0, 1.0, 2.0], [1.0, -1.0, 1.0], "one finite value >= 0 for each of the 3 points"),
        ([0.0, 1.0, 2.0], [0.0] * 3, "density is 0 at every point, must be positive"),
    ],
)
def test_what_is_no_density_is_refused(points, density, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GridDistribution(np.array(points), np.array(density))
