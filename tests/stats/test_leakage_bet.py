"""Bets on the score of guesses: what is proved of steps that leak unlike parts of their claims."""

from __future__ import annotations

import numpy as np
import pytest
from admitted_course import AdmittedCourse
from stages import most_failures, staged

from lightning_audit.stats.canary_bets import Claim, LeakageBet, StakePlan, score_mu
from lightning_audit.stats.divergences import sharpest_score, sign_score

LEVEL = 0.05


def run(
    claims: list[Claim],
    noise: np.ndarray,
    runs: int,
    *,
    k: int = 8,
    p: float = 0.5,
    planned: int | None = None,
    seed: int = 0,
) -> LeakageBet:
    """Gaussian readings of this noise, under these claims."""
    rng, bet, t = np.random.default_rng(seed), LeakageBet((runs, k), p, planned), 0
    for sigma, rate, steps in claims:
        for _ in range(steps):
            coins = (rng.random((runs, k)) < p).astype(float)
            bet.update(coins, coins + noise[t] * rng.standard_normal((runs, k)), sigma, rate)
            t += 1
    return bet


def ratio_of(bet: LeakageBet, claims: list[Claim]) -> np.ndarray:
    (found,) = bet.ratios(LEVEL, [(sum(n for *_, n in claims), bet.growth)], claims)
    return found


@pytest.mark.parametrize("p", [0.5, 0.2])
def test_growth_is_the_product_of_single_bets(p: float) -> None:
    rng, bet = np.random.default_rng(0), LeakageBet((3,), p, 20)
    fair = 2 * min(p, 1 - p)
    plan, centre, naive = StakePlan(20, 3, fair), np.zeros(3), np.zeros(8)
    for t in range(20):
        sigma, rate = (1.0, 0.1) if t < 12 else (0.6, 0.2)
        b, z = (rng.random(3) < p).astype(float), rng.normal(size=3) * 2
        bet.update(b, z, sigma, rate)
        now = plan.next(sigma, rate)
        for bet_number, (stake, sharp) in enumerate(zip(now.stakes, plan.sharp, strict=True)):
            score = (sharpest_score if sharp else sign_score)(score_mu(sigma))
            total = 0.0
            for i in range(3):
                weight = min(p, 1 - p) / (p if b[i] else 1 - p)
                x = (z[i] - centre[i] / (t + 10) - 0.5) / sigma
                total += weight * float(score.score(np.array(x), b[i]))
                total -= score.mean * (weight - fair)
            naive[bet_number] += np.log1p(stake * total / 3)
        centre += z - b
    assert bet.growth == pytest.approx(naive)


def test_no_reading_takes_all_of_the_wealth() -> None:
    for p in (0.5, 0.05, 0.9):
        for sigma in (0.01, 0.3, 1.0, 30.0):
            bet = LeakageBet((4,), p, 10)
            for _ in range(30):
                bet.update(np.array([1.0, 0.0, 1.0, 0.0]), np.array([-1e9, 1e9, -1e9, 1e9]), sigma)
                bet.update(np.zeros(4), np.full(4, 1e9), sigma)
            assert np.isfinite(bet.growth).all()


def test_stakes_follow_the_cost_of_a_step() -> None:
    plan = StakePlan(1000, 8)
    cheap, dear = plan.next(2.0, 0.01), plan.next(1.0, 0.01)
    assert dear.stakes[0] > cheap.stakes[0]
    assert StakePlan(1000, 8).next(2.0, 0.5).stakes == pytest.approx(
        StakePlan(1000, 8).next(2.0, 0.05).stakes, rel=0.11
    )
    assert plan.next(1.0, 0.01) is dear  # of equal claims the same


@pytest.mark.parametrize("planned", [300, None])
def test_most_of_the_leakage_of_a_correct_run_is_proved_and_no_more(planned: int | None) -> None:
    claims = [(1.0, 1 / 28, 300)]
    found = ratio_of(run(claims, np.ones(300), 200, planned=planned), claims)
    assert np.median(found) > (0.86 if planned else 0.82)
    assert (found > 1).mean() <= LEVEL


def test_looks_are_those_of_a_bet_that_ended_there() -> None:
    claims: list[Claim] = [(1.0, 0.1, 30), (0.7, 0.1, 20), (1.0, 0.1, 25)]
    noise, looks = np.ones(75), []
    rng, bet, t = np.random.default_rng(4), LeakageBet((8,)), 0
    for sigma, rate, steps in claims:
        for _ in range(steps):
            b = rng.integers(0, 2, 8).astype(float)
            bet.update(b, b + 0.5 * noise[t] * rng.standard_normal(8), sigma, rate)
            t += 1
            looks.append((t, bet.growth))
    together = bet.ratios(LEVEL, looks, claims)
    assert len(together) == 75
    assert max(together) > 1.0
    cut: list[Claim] = [(1.0, 0.1, 30), (0.7, 0.1, 7)]
    (alone,) = bet.ratios(LEVEL, [looks[36]], cut)
    assert alone == pytest.approx(together[36])
    for proof in bet.proved(LEVEL, bet.growth, claims):
        assert proof.steps.sum() == 75


#: Stated claims, and the true noise of each step.
CHANGES: dict[str, tuple[list[Claim], np.ndarray]] = {
    "constant": ([(1.0, 0.05, 400)], np.ones(400)),
    "stated 5, then 1; 2 throughout": ([(5.0, 0.01, 600), (1.0, 0.01, 60)], np.full(660, 2.0)),
    "stated 1; falls": ([(1.0, 0.05, 400)], np.repeat([2.0, 0.7], 200)),
    "rate falls": ([(1.0, 0.1, 100), (1.0, 0.001, 500)], np.repeat([2.0, 1.0], [100, 500])),
    "batch grows": ([(1.0, 0.004, 300), (1.0, 0.064, 100)], np.repeat([1.0, 1.6], [300, 100])),
}
RUNS = 2000


@pytest.mark.parametrize("runs", staged(quick=[200], nightly=[RUNS]))
@pytest.mark.parametrize("name", list(CHANGES))
@pytest.mark.parametrize("p", [0.5, 0.2])
def test_the_true_course_is_admitted_at_all_looks(name: str, p: float, runs: int) -> None:
    claims, noise = CHANGES[name]
    rng, course, t = np.random.default_rng(5), AdmittedCourse((runs, 8), p, len(noise)), 0
    missed = np.zeros(runs, dtype=bool)
    for sigma, rate, steps in claims:
        for _ in range(steps):
            coins = (rng.random((runs, 8)) < p).astype(float)
            readings = coins + noise[t] * rng.standard_normal((runs, 8))
            course.update(coins, readings, sigma, rate, mu=1.0 / noise[t])
            missed |= course.refused(LEVEL)
            t += 1
    print(f"\n{name}, p={p}: {missed.mean():.4f}")
    assert missed.sum() <= most_failures(runs, LEVEL, RUNS)
