"""The test of a stream of outputs: its false alarms, what it finds, and its bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from known_mechanisms import LaplaceTradeoff, gaussian, laplace, plane, randomised_response
from refused_calls import refusals

from lightning_audit.stats.output_tests import EPSILONS, SequentialTradeoffTest
from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    SubsampledGaussianTradeoff,
)


def runs_flagged(sampler, claim, runs: int, most: int, significance: float, truth=None):
    """How often a claim is refuted at any look, and how often a bound exceeds the truth."""
    rng = np.random.default_rng([runs, most])
    refuted = wrong = 0
    for _ in range(runs):
        test, largest = SequentialTradeoffTest(claim, delta=0.0), 0.0
        while test.samples < most:
            test.update(*sampler(rng, 20))
            largest = max(largest, test.log_e)
        refuted += largest >= -math.log(significance)
        if truth is not None:
            wrong += test.epsilon_lower(significance) > truth + 1e-9
    return refuted / runs, wrong / runs


NULLS = {
    "Gaussian": (gaussian, GaussianTradeoff(1.0), None),
    "Laplace": (laplace, ApproxDPTradeoff(1.0, 0.0), 1.0),
    "Laplace, its own curve": (laplace, LaplaceTradeoff(1.0), 1.0),
    "randomised response": (randomised_response, ApproxDPTradeoff(1.0, 0.0), 1.0),
    "in the plane": (plane, GaussianTradeoff(1.0), None),
    "no leakage": (lambda rng, n: gaussian(rng, n, 0.0), ApproxDPTradeoff(0.0, 0.0), 0.0),
}


@pytest.mark.heavy
@pytest.mark.parametrize("null", NULLS)
def test_a_true_claim_is_refuted_at_any_look_less_often_than_the_significance(null: str) -> None:
    sampler, claim, truth = NULLS[null]
    level = 0.2
    refuted, wrong = runs_flagged(sampler, claim, 40, 400, level, truth)
    assert refuted <= level
    assert wrong <= level


@pytest.mark.parametrize(
    ("sampler", "claim", "most"),
    [
        (gaussian, GaussianTradeoff(0.5), 1500),
        (laplace, ApproxDPTradeoff(0.5, 0.0), 2500),
        (randomised_response, ApproxDPTradeoff(0.5, 0.0), 3000),
        (plane, GaussianTradeoff(0.5), 2500),
        (lambda rng, n: (np.zeros(n), np.ones(n)), ApproxDPTradeoff(2.0, 1e-5), 400),
        (lambda rng, n: (rng.standard_cauchy(n), 3 + rng.standard_cauchy(n)),
         ApproxDPTradeoff(0.3, 0.0), 2500),
    ],
)  # fmt: skip
def test_half_the_privacy_is_refuted(sampler, claim, most: int) -> None:
    rng = np.random.default_rng(3)
    test = SequentialTradeoffTest(claim)
    while test.log_e < math.log(1000):
        test.update(*sampler(rng, 50))
        assert test.samples <= most


def test_a_difference_of_scale_alone_is_found_by_neighbours() -> None:
    rng = np.random.default_rng(4)
    test = SequentialTradeoffTest(ApproxDPTradeoff(0.5, 0.0))
    while test.log_e < math.log(1000):
        test.update(rng.normal(0, 1, (100, 3)), rng.normal(0, 4, (100, 3)))
        assert test.samples <= 3000


def test_bound_approaches_the_true_epsilon_from_below() -> None:
    rng = np.random.default_rng(5)
    test = SequentialTradeoffTest(ApproxDPTradeoff(1.0, 0.0), delta=0.0)
    bounds = []
    for _ in range(20):
        test.update(*laplace(rng, 1000))
        bounds.append(test.epsilon_lower(0.05))
    assert bounds == sorted(bounds)
    assert 0.8 < bounds[-1] <= 1.0
    assert bounds[-1] in EPSILONS


def test_arrays_of_any_shape_are_outputs() -> None:
    rng = np.random.default_rng(6)
    test = SequentialTradeoffTest(GaussianTradeoff(1.0))
    for _ in range(3):
        test.update(rng.normal(size=(20, 10, 7)), rng.normal(size=(20, 10, 7)))
    p, q = test.outputs()
    assert p.shape == q.shape == (60, 70)


def updated(*outputs) -> SequentialTradeoffTest:
    test = SequentialTradeoffTest(GaussianTradeoff(1.0))
    for p, q in zip(outputs[::2], outputs[1::2], strict=True):
        test.update(p, q)
    return test


test_arguments_out_of_range_are_refused = refusals(
    (
        lambda: SequentialTradeoffTest(SubsampledGaussianTradeoff(1.0, 0.1, "remove")),
        "direction 'remove' only, must be of both",
    ),
    (lambda: SequentialTradeoffTest(GaussianTradeoff(1), delta=1.0), r"delta=1\.0 must be"),
    (lambda: updated([1.0, 2.0], [1.0]), "holds 2 outputs and samples_q 1, must be equally many"),
    (lambda: updated([[1.0, 2.0]], [[1.0, 2.0]], [1.0], [1.0]), "must have 2 as before"),
    (lambda: updated([np.nan], [1.0]), r"samples_p\[0\] is not finite"),
    (lambda: updated([0.0], [1.0]).epsilon_lower(0.0), r"significance=0\.0 must be"),
)
