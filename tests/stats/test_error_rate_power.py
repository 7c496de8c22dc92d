"""Numbers of guesses, against recipes R4 and R5 of the lab, naive twins and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from refused_calls import refusals
from scipy import special, stats

from lightning_audit.stats.binomial import error_rate_log_e
from lightning_audit.stats.power import (
    anytime_power,
    flawless_guesses,
    flawless_guesses_at_end,
    further_guesses,
    guesses_for_anytime_power,
    guesses_for_power,
)
from lightning_audit.stats.tradeoff import gaussian_mu

DELTA = 1e-5


def approx_dp(epsilon: float) -> float:
    return (1 - DELTA) / (1 + math.exp(epsilon))


def gaussian(epsilon: float) -> float:
    return float(special.ndtr(-gaussian_mu(epsilon, DELTA) / 2))


@pytest.mark.parametrize(
    ("epsilon", "significance", "of_epsilon", "of_mu"),
    [
        (1, 0.05, 10, 6),
        (1, 1e-3, 23, 12),
        (4, 0.05, 166, 8),
        (4, 1e-3, 381, 18),
        (8, 0.05, 8932, 14),
        (8, 1e-3, 20_596, 31),
    ],
)
def test_flawless_guesses_at_one_look_are_those_of_the_lab(
    epsilon: float, significance: float, of_epsilon: int, of_mu: int
) -> None:
    assert flawless_guesses_at_end(approx_dp(epsilon), significance) == of_epsilon
    assert flawless_guesses_at_end(gaussian(epsilon), significance) == of_mu


def test_the_mixture_refutes_8_after_20844_flawless_guesses_and_its_gaussian_after_42() -> None:
    assert flawless_guesses(approx_dp(8), 1e-3) == 20_844
    assert flawless_guesses(gaussian(8), 1e-3) == 42


@pytest.mark.parametrize("rate", [0.5, 0.2, 0.01, 1e-6])
@pytest.mark.parametrize("significance", [0.3, 0.05, 1e-3])
def test_flawless_guesses_are_the_first_that_refute_and_no_fewer_than_at_one_look(
    rate: float, significance: float
) -> None:
    found = flawless_guesses(rate, significance)
    assert found is not None
    values = error_rate_log_e(np.zeros(2, dtype=int), np.array([found - 1, found]), rate)
    assert values[0] < -math.log(significance) <= values[1]
    assert found >= flawless_guesses_at_end(rate, significance)


@pytest.mark.parametrize(
    ("claim", "truth", "at_05", "at_001"),
    [(1, 4, 166, 342), (4, 6, None, 1076), (4, 8, 145, 305), (8, 12, 235, 496), (8, 16, 75, 160)],
)
def test_guesses_for_power_are_those_of_the_lab(
    claim: float, truth: float, at_05: int | None, at_001: int
) -> None:
    rates = gaussian(claim), gaussian(truth)
    if at_05 is not None:
        assert guesses_for_power(*rates, 0.05) == at_05
    assert guesses_for_power(*rates, 1e-3) == at_001


def test_guesses_for_power_agree_with_the_lab_where_its_search_was_coarse() -> None:
    # The lab has 1,288 and 2,654 of claim 1 at truth 2, and 529 of 4 at 6.
    assert guesses_for_power(gaussian(1), gaussian(2), 0.05) == pytest.approx(1288, rel=0.015)
    assert guesses_for_power(gaussian(1), gaussian(2), 1e-3) == pytest.approx(2654, rel=0.015)
    assert guesses_for_power(gaussian(4), gaussian(6), 0.05) == pytest.approx(529, rel=0.015)


@pytest.mark.parametrize("rates", [(0.4, 0.3), (0.25, 0.1), (0.1, 0.0)])
@pytest.mark.parametrize("significance", [0.05, 1e-3])
def test_guesses_for_power_are_the_first_of_a_naive_search(
    rates: tuple[float, float], significance: float
) -> None:
    def power(n: int) -> float:
        below = stats.binom.cdf(np.arange(n), n, rates[0]) <= significance
        most = int(np.count_nonzero(below)) - 1
        return float(stats.binom.cdf(most, n, rates[1]))

    found = guesses_for_power(*rates, significance, 0.9)
    assert found is not None
    assert power(found) >= 0.9
    assert all(power(n) < 0.9 for n in range(1, found))


@pytest.mark.parametrize("true_rate", [0.0, 0.2, 0.28])
def test_anytime_power_is_the_share_of_simulated_runs_that_are_refuted(true_rate: float) -> None:
    errors = np.random.default_rng(0).binomial(200, true_rate, 4000)
    seen = np.mean(error_rate_log_e(errors, np.full(4000, 200), 0.4) >= math.log(1e3))
    assert anytime_power(200, 0.4, true_rate, 1e-3) == pytest.approx(seen, abs=0.03)


def test_anytime_power_is_zero_where_no_attack_is_found() -> None:
    assert anytime_power(0, 0.4, 0.0, 1e-3) == 0
    assert anytime_power(10, 0.4, 0.0, 1e-3) == 0
    assert anytime_power(3, 0.5, 1.0, 0.9999999) in (0.0, 1.0)


def test_guesses_for_anytime_power_reach_it() -> None:
    found = guesses_for_anytime_power(0.4, 0.3, 1e-3, 0.9)
    assert found is not None
    assert anytime_power(found, 0.4, 0.3, 1e-3) >= 0.9
    assert anytime_power(found // 2, 0.4, 0.3, 1e-3) < 0.9
    assert guesses_for_anytime_power(0.3, 0.3, 1e-3) is None


def test_further_guesses_refute_at_the_present_rate_and_not_before() -> None:
    more = further_guesses(50, 200, 0.32, 1e-3)
    assert more is not None
    for n, refuted in ((more, True), (more - 1, False)):
        errors = 50 + math.ceil(0.25 * n)
        assert bool(error_rate_log_e(errors, 200 + n, 0.32) >= math.log(1e3)) is refuted
    assert further_guesses(0, 100, 0.32, 1e-3) == 0
    assert further_guesses(64, 200, 0.32, 1e-3) is None


test_bad_arguments_are_refused = refusals(
    (lambda: flawless_guesses(0.6, 0.05), "rate=0.6 must be at most 0.5"),
    (lambda: flawless_guesses(0.0, 0.05), r"rate=0.0 must be in \(0, 1\)"),
    (lambda: flawless_guesses_at_end(0.2, 0.0), "significance=0.0"),
    (lambda: guesses_for_power(0.2, 0.2, 0.05), "true_rate=0.2"),
    (lambda: guesses_for_power(0.2, 0.1, 0.05, 1.0), "power=1.0"),
    (lambda: further_guesses(3, 2, 0.2, 0.05), "errors"),
)


def test_numbers_that_are_too_large_are_none() -> None:
    assert flawless_guesses(1e-13, 1e-3) is None
    assert guesses_for_power(0.4, 0.3999, 0.05) is None
