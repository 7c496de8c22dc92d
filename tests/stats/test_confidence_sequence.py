from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import integrate, special, stats

from lightning_audit.stats.binomial import (
    clopper_pearson_upper,
    error_rate_confidence_sequence,
    error_rate_log_e,
)
from lightning_audit.stats.tradeoff import gaussian_mu

significances = st.sampled_from([1e-6, 1e-3, 0.05, 0.5])


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    trials = draw(st.integers(0, 100_000))
    return draw(st.integers(0, trials)), trials


@pytest.mark.parametrize(("n", "expected"), [(1000, 0.8255), (5000, 0.9178), (20_000, 0.9562)])
def test_reference_bounds_on_mu_at_one(n: int, expected: float) -> None:
    errors = round(2 * n * special.ndtr(-0.5))
    limit = error_rate_confidence_sequence(errors, 2 * n, 0.05)
    assert -2 * special.ndtri(limit) == pytest.approx(expected, abs=6e-4)


# Naive twins and laws.


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (3, 10), (30, 80), (100, 400)])
@pytest.mark.parametrize("rate", [0.1, 0.4, 0.7])
def test_log_e_is_the_mixture_of_likelihood_ratios(k: int, n: int, rate: float) -> None:
    parts = [
        naive_e(k, n, rate, stats.beta(kappa * rate, kappa * (1 - rate))) for kappa in (3, 30, 300)
    ]
    expected = math.log(sum(parts) / 3)
    assert float(error_rate_log_e(k, n, rate)) == pytest.approx(expected, abs=1e-7)


def naive_e(k: int, n: int, rate: float, prior: Any) -> float:
    """The likelihood ratio, averaged over the prior below the rate."""

    pole = prior.args[0] - 1

    def smooth(p: float) -> float:
        ratio = k * math.log(p / rate) + (n - k) * math.log((1 - p) / (1 - rate))
        return math.exp(ratio + prior.logpdf(p) - pole * math.log(p))

    low, *cuts = sorted(min(prior.ppf(q), rate) for q in (0.01, 0.2, 0.6, 1.0))
    # The density has a pole at 0 where its first shape is below one.
    mass, _ = integrate.quad(
        lambda p: smooth(max(p, 1e-300)), 0, low, weight="alg", wvar=(pole, 0), epsabs=0, limit=200
    )
    for high in cuts:
        if high > low:
            part, _ = integrate.quad(lambda p: smooth(p) * p**pole, low, high, epsabs=0)
            mass, low = mass + part, high
    return float(mass / prior.cdf(rate))


@pytest.mark.parametrize(
    ("errors", "trials", "one_look", "mu"),
    # -2.08, .84, .70, 4.84 and 3.53 with the single concentration 1,000.
    [
        (0, 30, 2.62, 2.13),
        (0, 100, 3.78, 3.53),
        (2, 100, 3.08, 2.65),
        (0, 1000, 5.50, 5.43),
        (20, 1000, 3.79, 3.59),
    ],
)
def test_few_guesses_prove_nearly_what_one_look_at_them_does(
    errors: int, trials: int, one_look: float, mu: float
) -> None:
    limit = error_rate_confidence_sequence(errors, trials, 0.05)
    assert round(float(-2 * special.ndtri(limit)), 2) == mu
    fixed = float(clopper_pearson_upper(errors, trials, 0.05))
    assert round(float(-2 * special.ndtri(fixed)), 2) == one_look


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.3085, 0.5])
def test_limits_of_all_looks_hold_at_once(rate: float) -> None:
    rng = np.random.default_rng(round(1e4 * rate))
    runs, looks = 2000, 400
    errors = np.cumsum(rng.random((runs, looks)) < rate, axis=1)
    trials = np.broadcast_to(np.arange(1, looks + 1), errors.shape)
    failed = (error_rate_log_e(errors, trials, rate) >= math.log(20)).any(axis=1)
    assert 0.0 < failed.mean() <= 0.05


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(0, 50), st.integers(0, 50))
def test_a_guess_of_at_least_the_rate_gains_nothing_on_average(
    rate: float, higher: float, k: int, more: int
) -> None:
    actual = max(rate, higher)
    now = float(error_rate_log_e(k, k + more, rate))
    wrong, right = (float(error_rate_log_e(k + w, k + more + 1, rate)) for w in (1, 0))
    mean = actual * math.exp(wrong - now) + (1 - actual) * math.exp(right - now)
    assert mean <= 1 + 1e-9
    if actual == rate:
        assert mean == pytest.approx(1, abs=1e-9)  # nothing is given away at the rate itself


@given(st.floats(0.01, 0.99), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_pair_of_unequal_rates_gains_nothing_either(
    rate: float, p: float, fnr: float, fpr: float
) -> None:
    alternative = p * rate
    if (fnr + fpr) / 2 < rate:
        return
    means = [r * alternative / rate + (1 - r) * (1 - alternative) / (1 - rate) for r in (fnr, fpr)]
    assert math.prod(means) <= 1 + 1e-9


@given(counts(), significances)
def test_all_rates_above_the_limit_are_rejected_and_none_below(
    found: tuple[int, int], significance: float
) -> None:
    limit = error_rate_confidence_sequence(*found, significance)
    threshold = -math.log(significance)
    above = limit + (1 - limit) * np.linspace(1e-6, 1 - 1e-9, 40)
    below = limit * np.linspace(0.5, 1 - 1e-6, 40)
    above, below = above[above < 1], below[below > 0]
    assert (error_rate_log_e(*found, above) >= threshold - 1e-4).all()
    assert (error_rate_log_e(*found, below) <= threshold + 1e-4).all()


@given(counts(), significances)
def test_limit_lies_above_the_one_look_limit_and_the_observed_rate(
    found: tuple[int, int], significance: float
) -> None:
    limit = error_rate_confidence_sequence(*found, significance)
    assert 0 < limit <= 1
    assert limit >= clopper_pearson_upper(*found, significance) - 1e-9
    k, n = found
    if k < n:
        assert error_rate_confidence_sequence(k + 1, n, significance) >= limit - 1e-12
    assert error_rate_confidence_sequence(k, n, significance / 2) >= limit - 1e-12


def test_numbers_give_floats_and_arrays_broadcast() -> None:
    assert type(error_rate_confidence_sequence(3, 10, 0.05)) is float
    table = error_rate_confidence_sequence(np.array([[0], [3]]), np.array([10, 100, 1000]), 0.05)
    assert table.shape == (2, 3)
    assert table[1, 0] == error_rate_confidence_sequence(3, 10, 0.05)
    assert error_rate_confidence_sequence(0, 0, 0.05) == 1.0


test_arguments_out_of_range_are_refused = refusals(
    (lambda: error_rate_confidence_sequence(-1, 5, 0.05), "errors=-1 must hold whole"),
    (lambda: error_rate_confidence_sequence(6, 5, 0.05), "errors=6 must be at most trials=5"),
    (lambda: error_rate_confidence_sequence(1, 5, 0.0), r"significance=0\.0 must be in"),
    (lambda: error_rate_log_e(1, 5, 0.0), r"rate=0\.0 must be in \(0, 1\)"),
    (lambda: error_rate_log_e(1, 2.5, 0.5), r"trials=2\.5 must hold whole"),
)


def flagged(noise: float, looks: int, runs: int, every: int) -> np.ndarray:
    """First observation a world at which the claim of epsilon 1.27 is rejected, at .05."""
    claimed = gaussian_mu(1.27, 1e-5)
    rate = float(special.ndtr(-claimed / 2))
    rng = np.random.default_rng([round(100 * noise), looks])
    actual = float(special.ndtr(-claimed / noise / 2))
    errors = np.cumsum(rng.binomial(2 * every, actual, (runs, looks)), axis=1)
    trials = 2 * every * np.arange(1, looks + 1)
    hit = error_rate_log_e(errors, np.broadcast_to(trials, errors.shape), rate) >= math.log(20)
    return np.where(hit.any(axis=1), (np.argmax(hit, axis=1) + 1.0) * every, np.inf)


@pytest.mark.heavy
def test_correct_runs_are_flagged_less_often_than_the_significance() -> None:
    rate = float(np.mean(np.isfinite(flagged(1.0, looks=100, runs=6000, every=50))))
    assert rate == pytest.approx(0.013, abs=0.008)


@pytest.mark.parametrize(
    ("noise", "every", "looks", "median"),
    [
        (0.9, 50, 1000, 19_350),
        (0.8255, 50, 300, 4800),
        (0.8, 50, 300, 3550),
        (0.5, 10, 200, 220),
    ],
)
def test_reference_medians_until_violations_are_flagged(
    noise: float, every: int, looks: int, median: float
) -> None:
    # Medians of 100 to 300 runs scatter by a tenth.
    found = float(np.median(flagged(noise, looks, 1500, every)))
    assert found == pytest.approx(median, rel=0.12)
