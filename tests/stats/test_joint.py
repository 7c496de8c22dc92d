from __future__ import annotations

import math

import numpy as np
import pytest
from claim_posteriors import cdf, outside, quantile
from scipy import integrate, special, stats

from lightning_audit.stats.counts import ConfusionCounts, epsilon_at_rates

heavy = pytest.mark.heavy

# Naive twins; a delta of None stands for mu.


@pytest.mark.parametrize(
    ("counts", "delta", "value"),
    [
        ((35, 65, 25, 75), 0.05, 1.3),
        ((0, 2, 0, 2), 0.0, 5.0),
        ((1, 1, 1, 1), 0.01, 0.0051),
        ((0, 1000, 0, 1000), 1e-5, 7.2),
        ((998, 2, 999, 1), 1e-9, 5.0),
        ((1, 1, 1, 1), None, 0.01),
        ((0, 2, 0, 2), None, 3.0),
        ((998, 2, 999, 1), None, 5.0),
        pytest.param((35, 65, 25, 75), 0.05, 0.1, marks=heavy),
        pytest.param((10, 90, 0, 100), 1e-5, 4.0, marks=heavy),
        pytest.param((35, 65, 25, 75), None, 0.7, marks=heavy),
        pytest.param((0, 1000, 0, 1000), None, 6.1, marks=heavy),
        # A million observations.
        pytest.param((900, 100, 2, 998), 0.0, 3.0, marks=heavy),
        pytest.param((300, 700, 30_000, 970_000), 1e-5, 3.1, marks=heavy),
        pytest.param((500, 500, 500_000, 500_000), 1e-5, 0.05, marks=heavy),
        pytest.param((159_000, 841_000, 158_500, 841_500), 1e-9, 1.668, marks=pytest.mark.nightly),
        pytest.param((900, 100, 2, 998), None, 1.6, marks=heavy),
        pytest.param((300, 700, 30_000, 970_000), None, 2.41, marks=heavy),
        pytest.param((500, 500, 500_000, 500_000), None, 0.05, marks=heavy),
        pytest.param((5, 999_995, 1000, 0), None, 1.0, marks=heavy),
    ],
)
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(3)
def test_mass_has_twelve_digits_inside_and_outside(counts, delta, value: float) -> None:
    below, above = outside(value, counts, delta)
    for region, mass in (("two_sided", below + above), ("one_sided", below)):
        observed = ConfusionCounts(*counts)
        inside = cdf(value, observed, delta, region=region)
        assert inside == pytest.approx(float(1 - mass), rel=1e-12, abs=1e-15)
        # An upper quantile inverts the mass outside.
        if 1e-9 < mass < 0.99:
            found = quantile(float(1 - mass), observed, delta, region=region)
            assert found == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("counts", "delta", "probability"),
    [
        ((10, 990, 5, 995), 1e-5, 1e-10),
        pytest.param((3, 97, 30, 70), 0.0, 1e-6, marks=heavy),
        pytest.param((0, 50, 0, 50), 0.05, 1e-8, marks=heavy),
        pytest.param((10, 990, 5, 995), None, 1e-10, marks=heavy),
    ],
)
def test_small_quantiles_have_nine_digits(counts, delta, probability: float) -> None:
    found = quantile(probability, ConfusionCounts(*counts), delta, region="one_sided")
    below, _ = outside(found, counts, delta)
    assert float(1 - below) == pytest.approx(probability, rel=1e-9)


@pytest.mark.parametrize("region", ["two_sided", "one_sided"])
def test_agrees_with_two_dimensional_quadrature(region: str) -> None:
    x, y = stats.beta(5.5, 10.5), stats.beta(3.5, 12.5)
    epsilon, delta = 1.0, 0.05

    def start(fnr: float) -> float:
        return max(0.0, 1 - delta - math.exp(epsilon) * fnr, (1 - delta - fnr) / math.e)

    def stop(fnr: float) -> float:
        mirrored = 1 - start(1 - fnr)
        return mirrored if region == "two_sided" else 1.0

    c = (1 - delta) / (1 + math.e)
    twin = sum(
        integrate.dblquad(lambda q, p: x.pdf(p) * y.pdf(q), low, high, start, stop, epsabs=1e-9)[0]
        for low, high in ((0, c), (c, 1 - c), (1 - c, 1))
    )
    found = cdf(epsilon, ConfusionCounts(5, 10, 3, 12), delta, region=region)
    assert found == pytest.approx(twin, abs=1e-7)


@pytest.mark.parametrize("delta", [0.01, None])
@pytest.mark.parametrize("prior", [0.5, 1.0])
@pytest.mark.parametrize("counts", [(35, 65, 25, 75), (70, 30, 60, 40), (3, 4, 0, 9)])
def test_agrees_with_draws_from_the_posterior(counts, prior: float, delta) -> None:
    rng, draws = np.random.default_rng(1), 200_000
    fn, tp, fp, tn = (count + prior for count in counts)
    rates = rng.beta(fn, tp, draws), rng.beta(fp, tn, draws)
    if delta is None:
        shift = -special.ndtri(rates[0]) - special.ndtri(rates[1])
        of_regions = np.abs(shift), np.maximum(shift, 0)
    else:
        epsilons = epsilon_at_rates(*rates, delta)
        of_regions = epsilons, np.where(rates[0] + rates[1] < 1, epsilons, 0.0)
    for region, drawn in zip(("two_sided", "one_sided"), of_regions, strict=True):
        for value in (0.0, 0.2, 0.9, 2.5):
            inside = cdf(value, ConfusionCounts(*counts), delta, region=region, prior=prior)
            error = 4 * math.sqrt(inside * (1 - inside) / draws) + 1e-6
            assert abs(np.mean(drawn <= value) - inside) < error
