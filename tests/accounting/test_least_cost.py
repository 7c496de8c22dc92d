"""The least that steps cost, given what bets prove of all of them together."""

from __future__ import annotations

import numpy as np
import pytest
from stages import most_failures, staged

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.accounting.spending import cheapest
from lightning_audit.stats.canary_bets import Claim, LeakageBet, LeastLogs, score_mu
from lightning_audit.stats.divergences import order_two_divergence

DELTA = 1e-5


def proof(needed: float, *groups: tuple[float, float, float, float]) -> LeastLogs:
    """Of groups of score's mu, sample rate, stake and steps."""
    mus, rates, stakes, steps = np.array(groups).T
    return LeastLogs(1.0, True, mus, rates, stakes, steps, needed)


def test_steps_of_one_claim_all_leak_what_is_needed_of_each() -> None:
    one = proof(0.0, (1.0, 0.01, 0.5, 400.0))
    needed = 400 * float(one.logs(np.array([[0.8]]))[0, 0])
    (found,) = cheapest([proof(needed, (1.0, 0.01, 0.5, 400.0))], [Phase(1.0, 0.01, 400)])
    assert found.noise_multiplier == pytest.approx(1.25, rel=1e-9)
    assert (found.sample_rate, found.steps) == (0.01, 400)


@pytest.mark.parametrize("rates", [(0.01, 0.01), (0.1, 0.001), (1.0, 1.0)])
@pytest.mark.parametrize("stakes", [(0.3, 0.3), (0.05, 0.8)])
def test_no_other_course_of_two_groups_costs_less(
    rates: tuple[float, float], stakes: tuple[float, float]
) -> None:
    second_mu = score_mu(2.0)
    groups = [(1.0, rates[0], stakes[0], 300.0), (second_mu, rates[1], stakes[1], 200.0)]
    free = proof(0.0, *groups)
    needed = float(free.steps @ free.logs(np.array([[0.7], [0.6]]))[:, 0])
    taken = [Phase(1.0, rates[0], 300), Phase(2.0, rates[1], 200)]
    found = cheapest([proof(needed, *groups)], taken)
    cost = sum(
        phase.steps * float(order_two_divergence(1 / phase.noise_multiplier, phase.known_rate))
        for phase in found
    )
    mu = np.geomspace(1e-6, 6.0, 8000)
    logs = free.logs(np.broadcast_to(mu, (2, len(mu))))
    others = (needed - 300 * logs[0]) / 200  # what the second group must add
    second = np.interp(others, logs[1], mu, left=0.0, right=np.inf)
    brute = 300 * order_two_divergence(mu, rates[0])
    brute = brute + 200 * order_two_divergence(np.minimum(second, 1e3), rates[1])
    assert cost == pytest.approx(brute.min(), rel=2e-3)


def test_steps_without_canaries_count_and_claims_without_any_are_left_out() -> None:
    one = proof(3.0, (1.0, 0.01, 0.5, 100.0))
    taken = [Phase(1.0, 0.01, 1000), Phase(3.0, 0.01, 50), Phase(0.0, 0.01, 7)]
    (found,) = cheapest([one], taken)
    assert found.steps == 1000
    (alone,) = cheapest([one], [Phase(1.0, 0.01, 100)])
    assert found.noise_multiplier == pytest.approx(alone.noise_multiplier)


def test_the_dearest_of_several_bets_counts_and_nothing_where_none_proves() -> None:
    taken = [Phase(1.0, 0.01, 100)]
    weak, strong = (proof(n, (1.0, 0.01, 0.5, 100.0)) for n in (1.0, 2.0))
    assert cheapest([weak, strong], taken) == cheapest([strong], taken)
    assert cheapest([proof(-1.0, (1.0, 0.01, 0.5, 100.0))], taken) == []


def of_run(claims: list[Claim], noise: np.ndarray, seed: int) -> float:
    rng, bet, t = np.random.default_rng(seed), LeakageBet((8,), planned_steps=len(noise)), 0
    for sigma, rate, steps in claims:
        for _ in range(steps):
            b = rng.integers(0, 2, 8).astype(float)
            bet.update(b, b + noise[t] * rng.standard_normal(8), sigma, rate)
            t += 1
    taken = [Phase(*claim) for claim in claims]
    return epsilon_of_history(cheapest(bet.proved(0.05, bet.growth, claims), taken), DELTA)


#: A mean of ratios, composed as if it were the ratio of every step, is above what these cost.
FALSE_OF_A_MEAN: dict[str, tuple[list[Claim], np.ndarray]] = {
    "noise stated and not applied": ([(5.0, 0.01, 1500), (1.0, 0.01, 200)], np.full(1700, 2.0)),
    "rate falls": ([(1.0, 0.1, 500), (1.0, 0.001, 1500)], np.repeat([2.0, 1.0], [500, 1500])),
    "batch grows": ([(1.0, 0.004, 1500), (1.0, 0.064, 300)], np.repeat([1.0, 1.6], [1500, 300])),
    "full batches": ([(10.0, 1.0, 1500), (1.0, 1.0, 200)], np.full(1700, 2.0)),
    "exponential schedule": (
        [(sigma, 0.02, 25) for sigma in np.geomspace(4.0, 0.8, 40).tolist()],
        np.full(1000, 1.5),
    ),
}


@pytest.mark.parametrize("runs", staged(quick=[3], nightly=[60]))
@pytest.mark.parametrize("name", list(FALSE_OF_A_MEAN))
def test_what_is_proved_is_below_what_unlike_steps_cost(name: str, runs: int) -> None:
    claims, noise = FALSE_OF_A_MEAN[name]
    rates = np.repeat([rate for _, rate, _ in claims], [steps for *_, steps in claims])
    true = epsilon_of_history(
        [Phase(float(s), float(q), 1) for s, q in zip(noise, rates, strict=True)], DELTA
    )
    found = np.array([of_run(claims, noise, seed) for seed in range(runs)])
    print(f"\n{name}: median {np.median(found)}, largest {found.max()} of {true}")
    assert 0.1 * true < np.median(found)
    assert np.sum(found > true) <= (0 if runs < 10 else most_failures(runs, 0.05, 60))
