"""The literature's bounds of a run: their labels, their level, and what they do at the edges."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lightning_audit.accounting.spending import epsilon_at_ratio
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.record.store import INJECTED, NOT_PLANNED, RecordHeader
from lightning_audit.results.audit_report import EpsilonBound
from lightning_audit.run.epsilons import betting_bound, literature_bounds
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_clopper_pearson,
    mu_clopper_pearson,
)
from lightning_audit.stats.named_bounds import BOUND_NAMES, METHODS
from lightning_audit.stats.tradeoff import SubsampledGaussianTradeoff, gaussian_epsilon

K = 8
DELTA = 1e-5
HEADER = RecordHeader(tuple(f"canary {i}" for i in range(K)), ("weight",), (4,), 2)
MU_METHODS = [name for name in BOUND_NAMES if METHODS[name].quantity == "mu"]


class OfBounds(AuditMonitor):
    """Takes in what the bounds are made of, and leaves the tests aside."""

    def update(self, entry: Any) -> None:
        self.student.update(entry)
        self.guesses.update(entry)


def monitor(
    steps: int = 40,
    *,
    sigma: Any = 1.0,
    noise: float = 1.0,
    rate: float = 0.1,
    status: int = INJECTED,
    seed: int = 0,
    header: RecordHeader = HEADER,
    kind: type[AuditMonitor] = AuditMonitor,
) -> AuditMonitor:
    """The checks after a run whose true noise is ``noise`` times the claimed one."""
    rng = np.random.default_rng(seed)
    made = kind(header, 1e-3)
    claims = np.broadcast_to(sigma, (steps,))
    entries = np.zeros(steps, dtype=HEADER.dtype)
    p = header.coin_probability
    coins = rng.integers(0, 2, (steps, K)) if p == 0.5 else rng.random((steps, K)) < p
    readings = coins + noise * claims[:, None] * rng.standard_normal((steps, K))
    fields = {
        "step": np.arange(steps),
        "canaries": status,
        "noise_multiplier": claims,
        "max_grad_norm": 1.0,
        "scale": 16.0,
        "sample_rate": rate,
        "coins": coins,
        "readings": readings,
        "tensor_squares": rng.chisquare(4, (steps, 1)),
    }
    for name, values in fields.items():
        entries[name] = values
    for entry in entries:
        made.update(entry)
    return made


def by_name(made: AuditMonitor, significance: float = 0.05) -> dict[str, EpsilonBound]:
    return {bound.name: bound for bound in literature_bounds(made, DELTA, significance)}


def counts_of(made: AuditMonitor) -> ConfusionCounts:
    return made.guesses.middle


def test_every_bound_comes_with_its_labels() -> None:
    found = literature_bounds(monitor(), DELTA, 0.01)
    assert tuple(bound.name for bound in found) == BOUND_NAMES
    for bound in found:
        method = METHODS[bound.name]
        assert bound.significance == 0.01
        assert bound.interpretation == method.interpretation
        assert (bound.threshold, bound.looks) == ("fixed", "single")
        assert set(method.assumptions) < set(bound.assumptions)
        assert {"canaries of a step independent", "steps independent"} < set(bound.assumptions)
        said = " ".join(bound.assumptions)
        assert ("first noise multiplier only" in said) == (bound.name == "fdp_t")
        assert ("threshold half way" in said) == (bound.name != "fdp_t")
        assert ("the step is a Gaussian mechanism" in said) == (
            method.quantity == "epsilon" and bound.name != "katz"
        )
        assert ("epsilon of the run from mu" in said) == (bound.name != "katz")


def test_bounds_of_a_step_are_the_methods_own_and_are_composed_over_the_run() -> None:
    made = monitor(200, seed=2)
    found, counts = by_name(made), counts_of(made)
    mu = float(mu_clopper_pearson(counts, 0.05))
    assert mu > 0
    assert found["fdp_cp"].mu_lower == mu
    assert found["fdp_cp"].epsilon_step_lower == float(gaussian_epsilon(mu, DELTA))
    # At noise multiplier 1 the ratio of leakage to claim is mu.
    assert found["fdp_cp"].epsilon_lower == epsilon_at_ratio(made.history, mu, DELTA)
    step = float(epsilon_clopper_pearson(counts, DELTA, 0.05))
    assert step > 0
    assert found["eps_cp"].epsilon_step_lower == step
    assert float(gaussian_epsilon(found["eps_cp"].mu_lower, DELTA)) == pytest.approx(step, rel=1e-6)
    assert found["fdp_t"].mu_lower == made.student.mu_lower(0.05)[0]


def test_katz_bounds_a_steps_epsilon_at_delta_zero_and_composes_nothing() -> None:
    katz = by_name(monitor(500))["katz"]
    assert katz.epsilon_lower is katz.mu_lower is None
    assert katz.delta == 0.0
    assert katz.epsilon_step_lower is not None
    assert katz.epsilon_step_lower > 0


@pytest.mark.parametrize("status", [NOT_PLANNED, INJECTED])
def test_without_a_canary_there_is_no_bound(status: int) -> None:
    steps = 0 if status == INJECTED else 30
    assert literature_bounds(monitor(steps, status=status), DELTA, 0.05) == ()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_few_steps_prove_little_and_are_no_error(steps: int) -> None:
    for bound in literature_bounds(monitor(steps), DELTA, 0.05):
        assert bound.epsilon_step_lower is not None
        assert 0 <= bound.epsilon_step_lower < 10
        assert bound.mu_lower is None or bound.mu_lower >= 0


def test_no_noise_at_all_is_no_error_and_the_scores_bound_is_infinite() -> None:
    found = by_name(monitor(300, noise=0.0))
    assert found["fdp_t"].mu_lower == math.inf
    assert found["fdp_t"].epsilon_lower == math.inf
    assert found["fdp_t"].epsilon_step_lower == math.inf
    for name in set(BOUND_NAMES) - {"fdp_t", "katz"}:
        epsilon, mu = found[name].epsilon_lower, found[name].mu_lower
        assert epsilon is not None
        assert mu is not None
        assert epsilon > 3
        assert mu > 1.0


def test_an_unknown_sample_rate_leaves_the_steps_bounds() -> None:
    for noise in (1.0, 0.0):
        for bound in literature_bounds(monitor(300, rate=math.nan, noise=noise), DELTA, 0.05):
            assert bound.epsilon_lower is None
            assert bound.epsilon_step_lower is not None
            # Katz' limit needs errors of each kind: without noise there are none.
            assert bound.epsilon_step_lower > 0 or (bound.name == "katz" and noise == 0.0)


def test_a_schedule_is_bounded_by_its_least_noise() -> None:
    sigma = np.repeat([2.0, 0.5, 1.0], 100)
    made = monitor(300, sigma=sigma)
    assert made.guesses.least_noise == 0.5
    found = by_name(made)
    mu = found["fdp_cp"].mu_lower
    assert mu == float(mu_clopper_pearson(counts_of(made), 0.05))
    # mu bounds the leakiest step, which claims 1 / 0.5.
    assert found["fdp_cp"].epsilon_lower == epsilon_at_ratio(made.history, 0.5 * mu, DELTA)
    mu_t, first = made.student.mu_lower(0.05)
    assert first == 2.0
    assert found["fdp_t"].epsilon_lower == epsilon_at_ratio(made.history, 2.0 * mu_t, DELTA)


def test_smaller_significance_proves_less() -> None:
    made = monitor(100)
    sharp, careful = by_name(made, 0.2), by_name(made, 1e-4)
    for name in BOUND_NAMES:
        assert careful[name].epsilon_step_lower < sharp[name].epsilon_step_lower


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_the_betting_bound_is_of_the_noise_at_the_look_that_proves_most(sigma: float) -> None:
    made = monitor(200, sigma=sigma)
    bound = betting_bound(made, DELTA, 0.05)
    assert (bound.name, bound.looks) == ("betting", "anytime")
    assert bound.mu_lower == made.leakage.ratio_lower(0.05) / sigma > 0
    assert bound.epsilon_step_lower == float(gaussian_epsilon(bound.mu_lower, DELTA))


def test_the_betting_bound_of_steps_without_noise_is_none() -> None:
    bound = betting_bound(monitor(20, sigma=0.0), DELTA, 0.05)
    assert (bound.mu_lower, bound.epsilon_lower, bound.epsilon_step_lower) == (0.0, 0.0, 0.0)


RARE = replace(HEADER, coin_probability=0.1)


def test_bounds_of_rare_coins_are_those_that_hold_for_them() -> None:
    made = monitor(300, header=RARE, seed=1)
    found = by_name(made)
    assert set(found) == set(BOUND_NAMES) - {"fdp_t"}
    assert found["fdp_cp"].mu_lower == float(mu_clopper_pearson(counts_of(made), 0.05)) > 0
    assert found["eps_cp"].epsilon_step_lower == float(
        epsilon_clopper_pearson(counts_of(made), DELTA, 0.05)
    )
    betting = betting_bound(made, DELTA, 0.05)
    assert betting.assumptions[0] == "private coins of probability 0.1"
    fair = betting_bound(monitor(20), DELTA, 0.05)
    assert fair.assumptions[0] == "fair private coins"


def test_in_the_subsampled_game_a_steps_epsilon_is_of_its_own_curve() -> None:
    game = replace(RARE, game="subsampled")
    # Nothing is composed over the run, which takes most of the time.
    made, known = (monitor(400, sigma=0.3, rate=math.nan, header=header) for header in (game, RARE))
    found, plain = by_name(made), by_name(known)
    assert set(found) == {"fdp_cp", "fdp_pooled_cp", "fdp_bayes", "eps_cp"}
    for name, bound in found.items():
        # What is proved of the mechanism, and so of the run, is the same.
        assert bound.mu_lower == plain[name].mu_lower > 0
        assert 0 < bound.epsilon_step_lower < plain[name].epsilon_step_lower
        assert any("joins it with probability 0.1" in said for said in bound.assumptions)
        assert not any("joins it" in said for said in plain[name].assumptions)
    cp = found["fdp_cp"]
    curve = SubsampledGaussianTradeoff(1 / cp.mu_lower, 0.1)
    assert cp.epsilon_step_lower == pytest.approx(curve.epsilon_at(DELTA))
    assert cp.epsilon_step_lower < SubsampledGaussianTradeoff(0.3, 0.1).epsilon_at(DELTA)
    betting = betting_bound(made, DELTA, 0.05)
    assert betting.mu_lower is not None
    assert 1.0 < betting.mu_lower < 1 / 0.3
    assert betting.epsilon_step_lower == pytest.approx(
        SubsampledGaussianTradeoff(1 / betting.mu_lower, 0.1).epsilon_at(DELTA)
    )


def misses(
    runs: int, steps: int, sigma: float, significance: float, header: RecordHeader = HEADER
) -> dict[str, int]:
    """How often each bound on mu exceeds the true one, 1 / sigma."""
    fair = header.coin_probability == 0.5
    found = {name: 0 for name in MU_METHODS if fair or name != "fdp_t"}
    for seed in range(runs):
        made = monitor(steps, sigma=sigma, seed=seed, header=header, kind=OfBounds)
        for name in found:
            method = METHODS[name]
            if method.from_counts is None:
                mu = made.student.mu_lower(significance)[0]
            else:
                mu = float(method.from_counts(counts_of(made), DELTA, significance))
            found[name] += mu > 1 / sigma
    return found


@pytest.mark.parametrize(
    ("runs", "steps", "sigma", "p"),
    [
        (100, 15, 1.0, 0.5),
        (100, 30, 0.7, 0.1),
        pytest.param(2000, 40, 1.0, 0.5, marks=pytest.mark.heavy),
        pytest.param(2000, 40, 3.0, 0.5, marks=pytest.mark.nightly),
        pytest.param(2000, 12, 0.5, 0.5, marks=pytest.mark.nightly),
        pytest.param(300, 40, 0.7, 0.1, marks=pytest.mark.heavy),
    ],
)
def test_bounds_on_mu_miss_no_oftener_than_their_significance(
    runs: int, steps: int, sigma: float, p: float
) -> None:
    significance = 0.1
    allowed = stats.binom.isf(1e-3, runs, significance)
    found = misses(runs, steps, sigma, significance, replace(HEADER, coin_probability=p))
    assert max(found.values()) <= allowed, found
    # Not because they are 0 everywhere: the sharpest of them misses at times.
    assert max(found.values()) > 0
