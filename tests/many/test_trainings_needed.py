from __future__ import annotations

import pytest
from refused_calls import refusals
from scipy import special

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.many.verdict import (
    before_the_first,
    error_to_see,
    mu_of_error,
    promise_of,
    trainings_to_pass,
)
from lightning_audit.stats.power import anytime_power
from lightning_audit.stats.tradeoff import GaussianTradeoff, gaussian_mu

DELTA = 1e-5


def test_a_claim_that_the_plan_cannot_refute_is_reported_before_the_first_training() -> None:
    said = before_the_first(promise_of((8.0, DELTA)), 1000, 1e-3)
    assert "(8, 1e-05)-DP after 20,844 guesses, and 1,000 trainings are planned" in said
    assert "cannot refute the claim, only bound epsilon by at most 5" in said
    assert "claim noise_multiplier, sample_rate and steps" in said


def test_a_claim_that_the_plan_can_refute_is_reported_with_its_number() -> None:
    said = before_the_first(promise_of(GaussianTradeoff(gaussian_mu(8, DELTA))), 1000, 1e-3)
    assert said.endswith("-GDP after 42 guesses; 1,000 trainings are planned")


def test_a_mechanism_that_needs_more_trainings_is_reported_with_what_to_do() -> None:
    claim = PrivacyClaim(noise_multiplier=6.0, sample_rate=1.0, steps=100, delta=DELTA)
    said = before_the_first(promise_of(claim), 30, 1e-3)
    assert "42 guesses, and 30 trainings are planned" in said
    assert said.endswith("the audit cannot refute the claim; plan more trainings")


def test_a_number_that_is_too_large_is_named_as_such() -> None:
    assert "after more than 10^12 guesses" in before_the_first(promise_of((40.0, 0.0)), 10, 0.05)


@pytest.mark.parametrize("mu", [0.5, 0.9249, 1.666])
def test_a_pass_has_95_percent_power_against_twice_the_mu(mu: float) -> None:
    promise = promise_of(GaussianTradeoff(mu))
    needed = trainings_to_pass(promise.least_error, 1e-3)
    assert needed is not None
    strong = float(special.ndtr(-mu))
    assert anytime_power(needed, promise.least_error, strong, 1e-3) >= 0.95
    assert anytime_power(needed // 2, promise.least_error, strong, 1e-3) < 0.95


@pytest.mark.parametrize("mu", [0.5, 1.666])
def test_half_of_the_claimed_mu_must_be_seen(mu: float) -> None:
    seen = error_to_see(promise_of(GaussianTradeoff(mu)).least_error)
    assert mu_of_error(seen) == pytest.approx(0.5 * mu)


def test_failures_and_several_canaries_need_more() -> None:
    promise = promise_of(GaussianTradeoff(1.0))
    numbers = [
        trainings_to_pass(promise.least_error, 1e-3),
        trainings_to_pass(promise.least_error, 1e-3, canaries=5),
        trainings_to_pass(promise.least_error, 1e-3, failed=0.1),
    ]
    assert None not in numbers
    assert numbers == sorted(numbers)  # type: ignore[type-var]
    assert trainings_to_pass(promise.least_error, 1e-3, failed=0.5) is None


test_bad_arguments_are_refused = refusals(
    (lambda: before_the_first(promise_of((1.0, 0.0)), 0, 1e-3), "trainings=0"),
    (lambda: before_the_first(promise_of((1.0, 0.0)), 10, 0.0), r"significance=0\.0"),
)
