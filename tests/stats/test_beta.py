from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from beta_twins import beta_cdf, log_beta_density
from scipy import stats

from lightning_audit.stats.binomial import Beta, deviance, stirling_error

SHAPES = [0.5, 1.0, 1.5, 7.5, 15.0, 15.5, 300.5, 1e4 + 0.5, 1e6 + 0.5]


@pytest.mark.parametrize("b", SHAPES)
@pytest.mark.parametrize("a", SHAPES)
def test_density_has_twelve_digits_up_to_a_million(a: float, b: float) -> None:
    rate = Beta.of(np.array([a]), np.array([b]), 1e-26)
    mean, std = float(stats.beta.mean(a, b)), float(stats.beta.std(a, b))
    for z in (-8, -2, 0, 1, 6):
        # The point and its complement are each rounded once; the twin's point is exact.
        x = mp.mpf(min(max(mean + z * std, mean * 1e-3), 1 - (1 - mean) * 1e-3))
        with mp.workdps(40):
            exact = mp.exp(log_beta_density(mp.mpf(a), mp.mpf(b), x, 1 - x)) * x * (1 - x)
            here = rate.density_of_logit(np.array([[float(x)]]), np.array([[float(1 - x)]]))
        if exact > 1e-280:
            assert float(mp.mpf(here[0, 0]) / exact - 1) == pytest.approx(0, abs=4e-12)


def test_distribution_function_keeps_small_values_on_either_side() -> None:
    rate = Beta.of(np.array([990.5]), np.array([10.5]), 1e-26)
    x, rest = np.array([0.9]), np.array([0.1])
    exact = beta_cdf(mp.mpf("990.5"), mp.mpf("10.5"), mp.mpf("0.9"))
    assert rate.below(x, rest)[0] == pytest.approx(float(exact), rel=1e-11)
    mirrored = rate.mirrored_where(np.array([True]))
    assert mirrored.above(rest, x)[0] == rate.below(x, rest)[0]
    assert rate.below(x, rest) + rate.above(x, rest) == pytest.approx(1.0, abs=1e-15)


def test_interval_leaves_out_the_tail() -> None:
    a, b = np.array([0.5, 30.5, 1e6]), np.array([100.5, 70.5, 10.5])
    rate = Beta.of(a, b, 1e-9)
    assert stats.beta.cdf(rate.lower, a, b) == pytest.approx(1e-9, rel=1e-6)
    assert stats.beta.cdf(rate.lower_rest, b, a) == pytest.approx(1e-9, rel=1e-6)


@pytest.mark.parametrize("k", [0.5, 3.0, 1e3, 1e6])
@pytest.mark.parametrize("ratio", [1e-3, 0.5, 0.8181, 0.8182, 0.999999, 1.0, 1.0001, 1.25, 40.0])
def test_deviance_has_full_digits_around_its_minimum(k: float, ratio: float) -> None:
    mean = k * ratio
    with mp.workdps(40):
        exact = k * mp.log(mp.mpf(k) / mean) + mp.mpf(mean) - k
    assert deviance(np.array(k), np.array([mean]))[0] == pytest.approx(float(exact), rel=1e-14)


@pytest.mark.parametrize("z", [0.5, 1.0, 14.5, 15.0, 15.5, 1e3, 1e8])
def test_stirling_error_is_that_of_the_gamma_function(z: float) -> None:
    with mp.workdps(40):
        exact = mp.loggamma(mp.mpf(z) + 1) - (
            (mp.mpf(z) + 0.5) * mp.log(z) - z + mp.log(2 * mp.pi) / 2
        )
    assert float(stirling_error(np.array(z))) == pytest.approx(float(exact), abs=3e-14)
