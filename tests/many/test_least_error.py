from __future__ import annotations

import math

import numpy as np
import pytest
from refused_calls import refusals
from scipy import special

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import epsilon_of_history, total_variation
from lightning_audit.accounting.history import Phase, leaking
from lightning_audit.many.verdict import Promise, epsilon_of_any_mechanism, promise_of
from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    PiecewiseTradeoff,
    gaussian_epsilon,
    gaussian_mu,
)

DELTA = 1e-5
FULL = PrivacyClaim(noise_multiplier=6.0, sample_rate=1.0, steps=100, delta=DELTA)
SAMPLED = PrivacyClaim(noise_multiplier=2.0, sample_rate=0.25, steps=100, delta=DELTA)


@pytest.fixture(scope="module")
def sampled() -> Promise:
    return promise_of(SAMPLED)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 30.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
def test_epsilon_and_delta_allow_the_errors_of_their_trade_off(
    epsilon: float, delta: float
) -> None:
    error = promise_of((epsilon, delta)).least_error
    f, alpha = ApproxDPTradeoff(epsilon, delta), np.linspace(0, 1, 100_001)
    naive = 0.5 * np.min(alpha + f(alpha))
    assert error == pytest.approx((1 - delta) / (1 + math.exp(epsilon)), rel=1e-12)
    assert error <= naive + 1e-12
    assert naive - error < 1e-5


@pytest.mark.parametrize("epsilon", [1, 4, 8])
def test_a_gaussian_allows_phi_of_half_its_mu(epsilon: float) -> None:
    mu = gaussian_mu(epsilon, DELTA)
    promise = promise_of(GaussianTradeoff(mu))
    assert promise.least_error == pytest.approx(special.ndtr(-mu / 2), rel=1e-9)
    assert promise.mu == pytest.approx(mu, rel=1e-8)
    assert promise.epsilon == pytest.approx(epsilon)
    steps = PrivacyClaim(noise_multiplier=10 / mu, sample_rate=1.0, steps=100, delta=DELTA)
    assert promise_of(steps).least_error == pytest.approx(promise.least_error, rel=1e-9)


def test_any_trade_off_function_allows_its_least_sum_of_errors() -> None:
    promise = promise_of(PiecewiseTradeoff([0.1, 0.4], [0.5, 0.2]))
    assert promise.least_error == pytest.approx(0.3, abs=1e-5)
    assert (promise.form, promise.gaussian) == ("tradeoff", False)
    proved = promise.proved_at(0.1)
    assert proved.epsilon == proved.epsilon_any == pytest.approx(math.log(8.9999))
    assert proved.ratio is None


def test_the_strongest_form_of_a_claim_counts() -> None:
    both = PrivacyClaim(epsilon=8.0, delta=DELTA, noise_multiplier=6.0, sample_rate=1.0, steps=100)
    assert promise_of(both) == promise_of(FULL)
    assert promise_of(PrivacyClaim(epsilon=8.0, delta=DELTA)) == promise_of((8.0, DELTA))
    assert promise_of(ApproxDPTradeoff(8.0, DELTA)) == promise_of((8.0, DELTA))
    assert promise_of(FULL).least_error > 500 * promise_of((8.0, DELTA)).least_error


def test_shuffled_passes_are_full_batches() -> None:
    shuffled = PrivacyClaim(
        noise_multiplier=2.0, sample_rate=0.1, steps=40, delta=DELTA, sampling="shuffled"
    )
    passes = PrivacyClaim(noise_multiplier=2.0, sample_rate=1.0, steps=4, delta=DELTA)
    assert promise_of(shuffled).least_error == promise_of(passes).least_error


def test_a_replaced_record_shows_more() -> None:
    error = promise_of(FULL, pair="replace_one").least_error
    assert error == pytest.approx(special.ndtr(-10 / 6), rel=1e-12)


def test_a_limit_gives_back_the_ratio_that_allows_it(sampled: Promise) -> None:
    for ratio in (0.4, 1.0, 1.7, 3.0):
        variation = total_variation(leaking(sampled.history, ratio))
        proved = sampled.proved_at(0.5 * (1 - variation))
        assert proved.ratio is not None
        assert ratio * 0.995 < proved.ratio <= ratio * (1 + 1e-9)
        truth = epsilon_of_history(leaking(sampled.history, ratio), DELTA)
        assert truth * 0.98 < proved.epsilon <= truth * 1.002


def test_a_limit_of_full_batches_is_a_gaussian_bound() -> None:
    proved = promise_of(FULL).proved_at(0.2)
    mu = -2 * special.ndtri(0.2)
    assert proved.mu == pytest.approx(mu)
    assert proved.ratio == pytest.approx(mu * 6 / 10)
    assert proved.epsilon == pytest.approx(gaussian_epsilon(mu, DELTA))
    gaussian = promise_of(GaussianTradeoff(1.0)).proved_at(0.2)
    assert gaussian.epsilon == pytest.approx(proved.epsilon)
    assert proved.epsilon_any == pytest.approx(math.log(0.8 / 0.2), rel=1e-4)


def test_a_limit_of_a_half_proves_nothing(sampled: Promise) -> None:
    for promise in (sampled, promise_of(FULL), promise_of((1.0, 0.0))):
        for limit in (0.5, 0.7, 1.0):
            proved = promise.proved_at(limit)
            assert (proved.epsilon, proved.epsilon_any, proved.mu) == (0, 0, 0)


def test_the_bound_for_any_mechanism_is_that_of_the_claim_that_just_allows_the_error() -> None:
    for epsilon, delta in ((0.3, 0.0), (4.0, 1e-5), (20.0, 0.01)):
        error = promise_of((epsilon, delta)).least_error
        assert epsilon_of_any_mechanism(error, delta) == pytest.approx(epsilon)
    assert epsilon_of_any_mechanism(0.0, 0.0) == math.inf


test_bad_claims_are_refused = refusals(
    (lambda: promise_of(PrivacyClaim(epsilon=1.0, delta=0.1), pair="same"), "pair='same'"),  # type: ignore[arg-type]
    (lambda: promise_of(PrivacyClaim(noise_multiplier=1.0)), "must state noise_multiplier"),
    (lambda: promise_of((-1.0, 0.1)), "epsilon=-1.0"),
    (lambda: promise_of(FULL, delta=0.0), "delta=0.0"),
    (lambda: promise_of(GaussianTradeoff(200.0)), "allows an attack without errors"),
    (lambda: promise_of(lambda alpha: 0.9), "trade-off function"),
    (
        lambda: promise_of(PrivacyClaim(epsilon=1.0, delta=0.1, adjacency="replace_one")),
        "adjacency='replace_one'",
    ),
    (
        lambda: promise_of(
            PrivacyClaim(epsilon=1.0, delta=0.1, adjacency="add_remove"), pair="replace_one"
        ),
        "pair='replace_one'",
    ),
)


def test_what_is_no_claim_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="claim='8'"):
        promise_of("8")  # type: ignore[arg-type]


def test_phases_of_a_promise_are_the_claimed_ones() -> None:
    assert promise_of(FULL).history == (Phase(6.0, 1.0, 100),)
