"""Which canaries are guessed, and which way."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from lightning_audit.stats.one_run import (
    best_of_ranks,
    epsilon_one_run,
    epsilon_one_run_fdp,
    epsilon_one_run_fdp_from_scores,
    epsilon_one_run_from_scores,
    mu_one_run,
    mu_one_run_from_scores,
    one_run_fdp_p_value,
    one_run_p_value,
)
from lightning_audit.stats.tradeoff import ApproxDPTradeoff, gaussian_epsilon

# From scores, numbers of guesses and keywords to a bound, of each kind.
BOUNDS = {
    "steinke": lambda *s, **k: epsilon_one_run_from_scores(*s, 1e-3, 0.05, **k),
    "any": lambda *s, **k: epsilon_one_run_fdp_from_scores(*s, 1e-3, 0.05, **k),
    "mu": lambda *s, **k: mu_one_run_from_scores(*s, 0.05, **k),
}
every_bound = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)


def naive_guesses(
    inside: list[float], outside: list[float], r: int, sides: str
) -> tuple[list[bool], list[bool]]:
    """Coins of the canaries that are guessed in, and of those guessed out, one at a time.

    A canary is guessed if there is room for it and all that score as it or beyond it.
    """
    canaries = [(s, True) for s in inside] + [(s, False) for s in outside]
    room = min(r, len(canaries))
    top, bottom = (room, 0) if sides == "in" else (math.ceil(room / 2), math.floor(room / 2))
    said_in = [i for i, (s, _) in enumerate(canaries) if sum(t >= s for t, _ in canaries) <= top]
    said_out = [
        i for i, (s, _) in enumerate(canaries) if sum(t <= s for t, _ in canaries) <= bottom
    ]
    assert not set(said_in) & set(said_out)
    return [canaries[i][1] for i in said_in], [canaries[i][1] for i in said_out]


few_values = st.lists(st.integers(0, 6).map(float), max_size=12)


@given(
    few_values, few_values, st.integers(0, 8), st.integers(1, 40), st.sampled_from(["both", "in"])
)
def test_guesses_are_those_that_a_count_by_hand_finds(
    inside: list[float], outside: list[float], unscored: int, r: int, sides: str
) -> None:
    m = len(inside) + len(outside) + unscored
    if r > m:
        return
    said_in, said_out = naive_guesses(inside, outside, r, sides)
    correct = sum(said_in) + sum(not coin for coin in said_out)
    found = epsilon_one_run_from_scores(
        inside, outside, 1e-3, 0.5, guesses=[r], unscored=unscored, sides=sides
    )
    assert (found.guesses, found.correct) == (len(said_in) + len(said_out), correct)
    assert found.value == epsilon_one_run(correct, r, m, 1e-3, 0.5)


distinct = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=40, unique=True)


@every_bound
@given(distinct, st.randoms(use_true_random=False), st.integers(0, 20))
def test_who_turns_coins_and_scores_round_proves_the_same(bound, scores, random, unscored) -> None:
    coins = [random.random() < 1 / (1 + math.exp(-s / 10)) for s in scores]
    inside = np.array([s for s, coin in zip(scores, coins, strict=True) if coin])
    outside = np.array([s for s, coin in zip(scores, coins, strict=True) if not coin])
    even = [r for r in (2, 8, 20) if r <= len(scores)]
    ways = {"guesses": even, "unscored": unscored}
    assert bound(inside, outside, **ways) == bound(-outside, -inside, **ways)


@every_bound
def test_only_the_order_of_the_scores_counts(bound) -> None:
    rng = np.random.default_rng(1)
    inside, outside = 2 + rng.standard_normal(60), rng.standard_normal(70)
    for sides in ("both", "in"):
        found = bound(inside, outside, guesses=[40, 10], sides=sides)
        assert bound(np.exp(inside), np.exp(outside), guesses=[40, 10], sides=sides) == found


@every_bound
def test_of_an_odd_number_of_guesses_one_more_is_in(bound) -> None:
    scores = [4.0, 3.0], [2.0, 1.0, 0.0]
    assert bound(*scores, guesses=[3]).correct == 3  # 4 and 3 in, 0 out
    assert bound(*scores, guesses=[5]).correct == 4  # 2 is guessed in as well
    assert bound(*scores, guesses=[3], sides="in").correct == 2
    assert bound([1.0], [], guesses=[1]).correct == 1


@every_bound
def test_a_tie_across_either_boundary_is_guessed_by_nobody_and_counts_as_wrong(bound) -> None:
    inside, outside = [3.0] * 30 + [1.0] * 10, [1.0] * 10 + [0.0] * 30
    found = bound(inside, outside, guesses=[70])
    assert (found.guesses, found.correct) == (60, 60)
    # Ten whose guess is wrong cost as much.
    wrong = [3.0] * 30 + [-1.0] * 5, [4.0] * 5 + [0.0] * 30
    assert found.value == bound(*wrong, guesses=[70], unscored=10).value > 0
    # Where all are guessed, the two boundaries meet, and a tie across them is still no guess.
    assert bound(inside, outside, guesses=[80]).guesses == 60
    assert bound([1.0] * 50, [1.0] * 50, guesses=[100]).value == 0.0


@every_bound
def test_canaries_without_a_score_are_never_guessed_and_none_is_guessed_both_ways(bound) -> None:
    scores = [1.0 + k for k in range(20)], [-1.0 - k for k in range(20)]
    found = bound(*scores, guesses=[60], unscored=30)
    assert (found.guesses, found.correct) == (40, 40)
    # The 20 that nobody guessed count as made and wrong.
    wrong = (
        [1.0 + k for k in range(20)] + [-100.0] * 10,
        [-1.0 - k for k in range(20)] + [100.0] * 10,
    )
    assert found.value == bound(*wrong, guesses=[60], unscored=10).value > 0
    assert bound([], [], guesses=[5], unscored=5).value == 0.0


@every_bound
def test_both_ends_prove_more_where_scores_tell_both_ways(bound) -> None:
    rng = np.random.default_rng(3)
    values = {"both": [], "in": []}
    for _ in range(15):
        coins = rng.random(400) < 0.5
        scores = 1.5 * coins + rng.standard_normal(400)
        for sides, found in values.items():
            groups = scores[coins], scores[~coins]
            found.append(bound(*groups, guesses=[100], sides=sides).value)
    assert np.median(values["both"]) > 1.05 * np.median(values["in"]) > 0


@every_bound
def test_the_largest_alone_prove_more_where_scores_tell_members_only(bound) -> None:
    rng = np.random.default_rng(4)
    coins = rng.random(400) < 0.5
    scores = rng.standard_normal(400)
    scores[np.flatnonzero(coins)[:50]] += 10  # the others look as if they were out
    groups = scores[coins], scores[~coins]
    assert bound(*groups, guesses=[50], sides="in").value > 2 * bound(*groups, guesses=[50]).value


@pytest.mark.parametrize("sides", ["both", "in"])
def test_no_count_is_likelier_than_the_p_value_by_exact_enumeration(sides: str) -> None:
    """Randomized response of six coins, each outcome weighted with its probability."""
    m = 6
    place = 0.1 * np.array([3, 0, 5, 1, 4, 2])  # breaks ties; seen beforehand, tells nothing
    worlds = [np.array(bits) for bits in itertools.product([0, 1], repeat=m)]
    for r in (1, 2, 3, 6):
        cases = np.zeros((m + 1, m + 1))  # by correct guesses and truthful answers
        for coins, answers in itertools.product(worlds, worlds):
            scores = answers + place
            groups = scores[coins == 1], scores[coins == 0]
            found = best_of_ranks(*groups, lambda *_: 0.0, 0.05, [r], 0, sides)
            cases[found.correct, np.sum(coins == answers)] += 1
        for epsilon in (0.0, 1.0, 2.5):
            truth = float(special.expit(epsilon))
            law = cases @ (
                0.5**m * stats.binom.pmf(range(m + 1), m, truth) / special.comb(m, range(m + 1))
            )
            assert law.sum() == pytest.approx(1)
            for v in range(r + 1):
                seen = law[v:].sum()
                assert seen <= one_run_p_value(v, r, m, epsilon, 0.0) + 1e-12
                claim = ApproxDPTradeoff(epsilon, 0.0)
                assert seen <= one_run_fdp_p_value(v, r, m, claim) + 1e-9


OF_COUNTS = {
    "steinke": lambda *vrm, level: epsilon_one_run(*vrm, 1e-3, level),
    "any": lambda *vrm, level: epsilon_one_run_fdp(*vrm, 1e-3, level),
    "mu": lambda *vrm, level: mu_one_run(*vrm, level),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_best_of_several_numbers_of_guesses_shares_the_significance(name: str) -> None:
    rng = np.random.default_rng(0)
    inside, outside = 2 + rng.standard_normal(60), rng.standard_normal(70)
    order = np.argsort(np.concatenate([inside, outside]))[::-1]
    tops = {r: int(np.sum(order[:r] < 60)) for r in (10, 40)}
    values = {r: OF_COUNTS[name](v, r, 130, level=0.025) for r, v in tops.items()}
    found = BOUNDS[name](inside, outside, guesses=[40, 10], sides="in")
    best = max(values, key=lambda r: values[r])
    assert (found.value, found.guesses, found.correct) == (values[best], best, tops[best])


@every_bound
@pytest.mark.parametrize(
    ("scores", "ways", "message"),
    [
        (([1.0], [0.0]), {"sides": "out"}, r"sides='out' must be one of \['both', 'in'\]"),
        (([1.0], [0.0]), {"guesses": [3]}, "guesses=3 must be at most the number of canaries, 2"),
        (([1.0], [0.0]), {"guesses": [0]}, "guesses=0"),
        (([math.nan], [0.0]), {}, "scores_in holds nan"),
        (([[1.0]], [0.0]), {}, "scores_in has shape"),
    ],
)
def test_scores_and_guesses_that_are_none_are_refused(bound, scores, ways, message) -> None:
    with pytest.raises(ValueError, match=message):
        bound(*scores, **ways)


@every_bound
@pytest.mark.parametrize(("mu", "epsilon"), [(0.0, 0.0), (1.0, float(gaussian_epsilon(1.0, 1e-3)))])
def test_a_few_hundred_runs_exceed_the_truth_no_more_often_than_said(bound, mu, epsilon) -> None:
    rng = np.random.default_rng(7)
    truth = mu if bound is BOUNDS["mu"] else epsilon
    missed = 0
    for _ in range(300):
        coins = rng.random(100) < 0.5
        scores = mu * coins + rng.standard_normal(100)
        missed += bound(scores[coins], scores[~coins]).value > truth + 1e-9
    assert missed <= stats.binom.isf(1e-4, 300, 0.05)
