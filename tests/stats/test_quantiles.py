from __future__ import annotations

import numpy as np
import pytest
from claim_posteriors import (
    cdf,
    deltas,
    maximum,
    pdf,
    probabilities,
    quantile,
    regions,
    thresholds,
)
from drawn_counts import counts_of
from hypothesis import given, settings
from scipy import integrate

from lightning_audit.stats.counts import ConfusionCounts


@settings(max_examples=60)
@given(counts_of(3000), deltas, probabilities, regions)
def test_quantile_undoes_the_distribution_function(counts, delta, probability, region) -> None:
    found = quantile(probability, counts, delta, region=region)
    inside = cdf(found, counts, delta, region=region)
    if found > 0:
        assert inside == pytest.approx(probability, rel=1e-9, abs=1e-14)
        assert 1 - inside == pytest.approx(1 - probability, rel=1e-6, abs=1e-14)
    else:
        assert inside >= probability - 1e-14


@settings(max_examples=60)
@given(counts_of(3000), deltas, probabilities, regions)
def test_worlds_may_be_swapped(counts, delta, probability, region) -> None:
    swapped = ConfusionCounts(counts.fp, counts.tn, counts.fn, counts.tp)
    assert quantile(probability, swapped, delta, region=region) == pytest.approx(
        quantile(probability, counts, delta, region=region), rel=1e-9, abs=1e-12
    )


@settings(max_examples=40)
@given(counts_of(3000), deltas, probabilities)
def test_published_region_ignores_the_attack_s_direction(counts, delta, probability) -> None:
    turned = ConfusionCounts(counts.tp, counts.fn, counts.tn, counts.fp)
    assert quantile(probability, turned, delta) == pytest.approx(
        quantile(probability, counts, delta), rel=1e-9, abs=1e-12
    )


@settings(max_examples=60)
@given(counts_of(3000), deltas, probabilities)
def test_fewer_errors_give_a_larger_one_sided_quantile(counts, delta, probability) -> None:
    first = quantile(probability, counts, delta, region="one_sided")
    fn, tp, fp, tn = counts.fn, counts.tp, counts.fp, counts.tn
    fewer_fn, fewer_fp = np.minimum(fn, 1), np.minimum(fp, 1)
    for better in (
        ConfusionCounts(fn - fewer_fn, tp + fewer_fn, fp, tn),
        ConfusionCounts(fn, tp, fp - fewer_fp, tn + fewer_fp),
    ):
        assert quantile(probability, better, delta, region="one_sided") >= first * (1 - 1e-9)


@settings(max_examples=40)
@given(counts_of(3000), deltas, regions)
def test_quantiles_rise_with_probability(counts, delta, region) -> None:
    levels = (1e-9, 1e-3, 0.05, 0.5, 0.9, 1 - 1e-6)
    found = [quantile(p, counts, delta, region=region) for p in levels]
    assert found == sorted(found)


@given(counts_of(3000), deltas, regions)
def test_density_is_the_slope_of_the_distribution_function(counts, delta, region) -> None:
    at = quantile(0.6, counts, delta, region=region)
    density = pdf(at, counts, delta, region=region)
    h = 1e-4 * max(at, 1e-3)
    up, down = cdf(np.array([at + h, max(at - h, 0.0)]), counts, delta, region=region)
    if at > h:
        assert (up - down) / (2 * h) == pytest.approx(density, rel=1e-4)


@pytest.mark.parametrize(("delta", "last"), [(0.05, 9), (None, 5)])
@pytest.mark.parametrize("counts", [(35, 65, 25, 75), (50, 50, 48, 52)])
def test_density_and_atom_add_up_to_one(counts, delta, last) -> None:
    observed = ConfusionCounts(*counts)
    for region in ("two_sided", "one_sided"):
        atom = cdf(0.0, observed, delta, region=region)
        mass, _ = integrate.quad(
            lambda value, r=region: pdf(value, observed, delta, region=r), 0, last
        )
        assert atom + mass == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("region", ["two_sided", "one_sided"])
@pytest.mark.parametrize(
    ("delta", "probability"), [(1e-5, 1e-9), (1e-5, 0.05), (1e-5, 0.5), (1e-5, 0.9), (None, 0.05)]
)
@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.3, 2.0])
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(4)
def test_pruned_maximum_is_the_maximum(shift: float, delta, probability, region: str) -> None:
    counts = thresholds(60, shift)
    every = quantile(probability, counts, delta, region=region)
    value, index = maximum(probability, counts, delta, region=region)
    assert value == pytest.approx(every.max(), rel=1e-10)
    assert every[index] == pytest.approx(every.max(), rel=1e-10)


def test_pruned_maximum_of_samples_of_different_sizes_is_the_maximum() -> None:
    rng = np.random.default_rng(3)
    n = rng.integers(5, 300, (2, 40))
    fn, fp = rng.integers(0, n[0] + 1), rng.integers(0, n[1] + 1)
    counts = ConfusionCounts(fn, n[0] - fn, fp, n[1] - fp)
    every = quantile(0.05, counts, 1e-5)
    assert maximum(0.05, counts, 1e-5) == pytest.approx((every.max(), every.argmax()))
