import dataclasses
import math

import numpy as np
import pytest
from gaussian_pairs import gaussian_pair_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_calls import refusals, refused_changes
from scipy import optimize, stats
from stages import staged

from lightning_audit.stats.gaussian import mu_white_box_from_scores
from lightning_audit.stats.named_bounds import BOUND_NAMES, NamedBound
from lightning_audit.stats.one_run import OneRunScores, default_guesses
from lightning_audit.stats.one_run_bounds import (
    ONE_RUN_METHODS,
    ONE_RUN_NAMES,
    epsilon_gaussian_pair,
    epsilon_gaussian_pair_from_scores,
    named_one_run_bound,
)
from lightning_audit.stats.tradeoff import gaussian_epsilon

DELTA = 1e-5


of_statistics, of_scores = epsilon_gaussian_pair, epsilon_gaussian_pair_from_scores


STATED, LEVEL = 1e-4, 0.03


ONE_RUN = {"method": "one_run", "delta": STATED}


RNG = np.random.default_rng(5)


SCORES = 1.3 + RNG.standard_normal(400), RNG.standard_normal(350)


GUESSING = [name for name, method in ONE_RUN_METHODS.items() if method.from_guesses]


def naive(inside: np.ndarray, outside: np.ndarray, delta: float, significance: float) -> float:
    """Least epsilon of the region, on a grid of ratios and next to its best; tests written out."""
    level = 1 - math.sqrt(1 - significance)
    n1, n0 = len(inside), len(outside)
    nu = n1 + n0 - 2
    seen = np.var(inside, ddof=1) / np.var(outside, ddof=1)
    low, high = (seen / stats.f.ppf(p, n1 - 1, n0 - 1) for p in (1 - level / 2, level / 2))

    def epsilon_at(log_r: float) -> float:
        # The group that was in, rescaled, has the variance of the other.
        r = math.exp(log_r)
        squares = np.sum((inside - inside.mean()) ** 2) / r**2
        squares += np.sum((outside - outside.mean()) ** 2)
        error = math.sqrt(r**2 / n1 + 1 / n0)
        t = (inside.mean() - outside.mean()) / math.sqrt(squares / nu) / error
        d = 0.0
        if stats.t.sf(t, nu) < level:
            above = optimize.brentq(lambda x: stats.nct.sf(t, nu, x) - level, 0.0, t, xtol=1e-10)
            d = error * above
        return gaussian_pair_epsilon(d, r, 0.0, 1.0, delta)

    grid = np.linspace(math.log(low), math.log(high), 101) / 2
    values = [epsilon_at(x) for x in grid]
    best = int(np.argmin(values))
    around = grid[max(best - 1, 0)], grid[min(best + 1, 100)]
    near = optimize.minimize_scalar(
        epsilon_at, bounds=around, method="bounded", options={"xatol": 1e-7}
    )
    return min(near.fun, *values)


@pytest.mark.parametrize(
    ("n_in", "n_out", "mu", "r", "delta", "significance"),
    [
        (30, 20, 1.5, 1.0, 1e-5, 0.05),
        (40, 60, 1.5, 1.4, 1e-5, 0.05),
        (60, 40, 2.0, 0.6, 1e-3, 0.1),
        (5, 5, 4.0, 1.0, 0.1, 0.1),
        (50, 50, 0.0, 3.0, 1e-5, 0.01),
        (50, 50, 0.0, 0.2, 0.3, 0.05),
    ],
)
def test_bound_is_the_least_epsilon_of_the_region(n_in, n_out, mu, r, delta, significance):
    rng = np.random.default_rng(7)
    inside, outside = mu + r * rng.standard_normal(n_in), rng.standard_normal(n_out)
    bound = epsilon_gaussian_pair_from_scores(inside, outside, delta, significance)
    least = naive(inside, outside, delta, significance)
    assert least > 0.05
    assert 0.9998 * least - 1e-5 <= bound <= least * (1 + 1e-9)


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.floats(-1e3, 1e3), st.floats(-100, 100).map(lambda p: 10.0**p))
def test_the_unit_of_the_scores_does_not_matter(seed, offset, scale):
    rng = np.random.default_rng(seed)
    inside, outside = 2.0 + 1.5 * rng.standard_normal(40), rng.standard_normal(50)
    bound = epsilon_gaussian_pair_from_scores(inside, outside, DELTA, 0.05)
    moved = ((offset + inside) * scale, (offset + outside) * scale)
    assert epsilon_gaussian_pair_from_scores(*moved, DELTA, 0.05) == pytest.approx(bound, rel=3e-4)


def test_bound_nears_epsilon_with_many_canaries():
    for r in (0.8, 1.0, 1.5):
        truth = gaussian_pair_epsilon(1.0, r, 0.0, 1.0, DELTA)
        for n, least in ((50, 0.1), (500, 0.5), (500_000, 0.98)):
            bound = epsilon_gaussian_pair(n, n, 1.0, r * r * (n - 1), n - 1.0, DELTA, 0.05)
            assert least * truth < bound < truth
    rng = np.random.default_rng(0)
    inside, outside = 1.0 + 1.1 * rng.standard_normal(10**6), rng.standard_normal(10**6)
    truth = gaussian_pair_epsilon(1.0, 1.1, 0.0, 1.0, DELTA)
    found = epsilon_gaussian_pair_from_scores(inside, outside, DELTA, 0.05)
    assert 0.98 * truth < found < truth


def test_few_canaries_and_a_delta_that_is_enough_for_the_whole_region_prove_nothing():
    assert epsilon_gaussian_pair(1, 9, 5.0, 0.0, 1.0, DELTA, 0.05) == 0.0
    for inside in ([], [3.0], [2.9, 3.0]):
        assert epsilon_gaussian_pair_from_scores(inside, [1.0, 2.0], DELTA, 0.05) == 0.0
    assert epsilon_gaussian_pair(80, 171, -0.8, 4.4 * 79, 170.0, 0.5, 1e-3) == 0.0
    assert epsilon_gaussian_pair(2, 2, 0.5, 1.0, 1.0, 0.999, 0.05) == 0.0


test_arguments_out_of_range_are_refused = refusals(
    (lambda: of_statistics(-1, 5, 1.0, 1.0, 1.0, DELTA, 0.05), "n_in=-1 must be a whole number"),
    (lambda: of_statistics(5, 5, math.inf, 1.0, 1.0, DELTA, 0.05), "difference=inf must be finite"),
    (lambda: of_statistics(5, 5, 1.0, 0.0, 1.0, DELTA, 0.05), r"squares_in=0\.0 must be a finite"),
    (lambda: of_statistics(5, 5, 1.0, 1.0, 1.0, 0.0, 0.05), r"delta=0\.0 must be in \(0, 1\)"),
    (lambda: of_scores([1.0, math.inf], [0.0], DELTA, 0.05), "scores_in holds infinity"),
    (lambda: of_scores([1.0, 2.0], [0.1, 0.1, 0.1], DELTA, 0.05), r"scores_out holds 0\.1 only"),
)


def missed(n: int, mu: float, r: float, repetitions: int) -> float:
    """Share of runs in which the bound exceeds the exactly known epsilon."""
    rng = np.random.default_rng([n, round(10 * mu), round(10 * r)])
    truth = gaussian_pair_epsilon(mu, r, 0.0, 1.0, DELTA)
    count = 0
    for _ in range(repetitions):
        inside, outside = mu + r * rng.standard_normal(n), rng.standard_normal(n)
        count += epsilon_gaussian_pair_from_scores(inside, outside, DELTA, 0.05) > truth
    return count / repetitions


@pytest.mark.parametrize(("n", "mu", "r"), [(30, 0.0, 1.0), (300, 1.0, 1.0), (30, 0.0, 2.0)])
def test_bound_seldom_exceeds_a_known_epsilon(n, mu, r):
    assert missed(n, mu, r, 60) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60)


@pytest.mark.parametrize(
    ("n", "mu", "r", "runs"),
    staged(
        quick=[(30, 0.0, 1.0, 60), (300, 1.0, 1.0, 60), (30, 0.0, 2.0, 60)],
        nightly=[
            (n, *at, 250) for n in (4, 30, 300) for at in ((0.0, 1.0), (1.0, 1.0), (1.0, 0.7))
        ],
    ),
)
def test_bound_fails_no_more_often_than_it_says(n, mu, r, runs):
    assert missed(n, mu, r, runs) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_data_along_few_directions_deceive_this_bound_and_not_the_white_box():
    """Without leakage, three of 300 data terms are far out."""
    rng, data, found = np.random.default_rng(0), np.where(np.arange(300) < 3, 1e4, 0.0), np.zeros(2)
    for _ in range(40):
        coins = rng.random(len(data)) < 0.5
        z = data + rng.standard_normal(len(data))
        found[0] += epsilon_gaussian_pair_from_scores(z[coins], z[~coins], DELTA, 0.05) > 0
        found[1] += mu_white_box_from_scores(z[coins], z[~coins], 0.05) > 0
    assert found[0] > 0.2 * 40
    assert found[1] < 0.1 * 40


def bound_of(name: str, guesses: object = None, **options: int) -> NamedBound:
    return named_one_run_bound(name, *SCORES, STATED, LEVEL, guesses, **options)


def direct(name: str, guesses: list[int] | None = None) -> tuple[float, float | None]:
    """Epsilon, and mu where the method bounds it."""
    if name in ("one_run_mu", "white_box"):
        one_run = OneRunScores(*SCORES, guesses).mu(LEVEL).value
        mu = one_run if name == "one_run_mu" else mu_white_box_from_scores(*SCORES, LEVEL)
        return float(gaussian_epsilon(mu, STATED)), mu
    if name == "gaussian_pair":
        return epsilon_gaussian_pair_from_scores(*SCORES, STATED, LEVEL), None
    run = OneRunScores(*SCORES, guesses)
    found = run.epsilon(STATED, LEVEL) if name == "one_run" else run.epsilon_fdp(STATED, LEVEL)
    return found.value, None


def alike(default: NamedBound, given: NamedBound) -> bool:
    """Whether two bounds differ only in what they say of the choice of their guesses."""
    return default == dataclasses.replace(given, rule=default.rule, assumptions=default.assumptions)


def test_no_name_is_also_that_of_a_bound_with_a_threshold():
    assert not set(ONE_RUN_NAMES) & set(BOUND_NAMES)
    assert all(ONE_RUN_METHODS[name].name == name for name in ONE_RUN_NAMES)


@pytest.mark.parametrize("name", ONE_RUN_NAMES)
def test_a_named_bound_is_what_the_function_gives(name):
    bound = bound_of(name)
    assert (bound.epsilon_lower, bound.mu_lower) == direct(name)
    assert bound.epsilon_lower > 0.3
    assert (bound.method, bound.delta, bound.significance) == (name, STATED, LEVEL)
    assert bound.valid is (name != "gaussian_pair")
    assert bound.threshold is bound.threshold_value is None
    assert bound.assumptions == ONE_RUN_METHODS[name].assumptions
    assert bound.assumptions[0].startswith("every canary in by its own fair coin")


@pytest.mark.parametrize("name", GUESSING)
def test_one_number_of_guesses_is_not_paid_for_and_several_are(name):
    bound = bound_of(name, [60])
    assert bound.epsilon_lower == direct(name, [60])[0]
    assert (bound.guesses, bound.rule) == (60, "60 guesses, half in and half out")
    order = np.sort(np.concatenate(SCORES))
    assert bound.correct == int((SCORES[0] >= order[-30]).sum() + (SCORES[1] <= order[29]).sum())
    paid = bound_of(name, [60, 700])
    assert paid.epsilon_lower < bound.epsilon_lower
    assert paid.rule == (
        "the best of 700 and 60 guesses, half in and half out, each at its share of the "
        "significance"
    )


@pytest.mark.parametrize("name", GUESSING)
def test_guesses_that_are_not_given_are_the_default_ones_and_others_chosen_before(name):
    default, named = bound_of(name), bound_of(name, default_guesses(750))
    assert alike(default, named)
    assert default.guesses in default_guesses(750)
    assert "half in and half out, set by the number of canaries, each" in default.rule
    chosen = "the numbers of guesses were chosen before the scores were seen, which cannot be "
    given = bound_of(name, [60])
    assert [text for text in given.assumptions if text.startswith(chosen)]
    assert given.assumptions[:-1] == default.assumptions == ONE_RUN_METHODS[name].assumptions
    assert "canaries" not in given.rule


@pytest.mark.parametrize("name", GUESSING)
@pytest.mark.parametrize(("canaries", "words"), [(0, "no guesses"), (2, "1 guess")])
def test_few_canaries_prove_nothing_and_say_how_many_were_guessed(name, canaries, words):
    scores = [1.0] * (canaries // 2), [0.0] * (canaries // 2)
    bound = named_one_run_bound(name, *scores, STATED, LEVEL)
    assert (bound.epsilon_lower, bound.rule) == (0.0, words)


@pytest.mark.parametrize("name", GUESSING)
def test_the_largest_alone_are_guessed_where_that_is_asked_for(name):
    bound = bound_of(name, [60], sides="in")
    assert bound.rule == "60 guesses, all in"
    assert bound.correct == int((SCORES[0] >= np.sort(np.concatenate(SCORES))[-60]).sum())
    assert bound.epsilon_lower != direct(name, [60])[0]
    default = bound_of(name, sides="in")
    numbers = default_guesses(750, "in")
    given = bound_of(name, numbers, sides="in")
    assert alike(default, given)


@pytest.mark.parametrize("name", ["one_run", "one_run_fdp"])
def test_bounds_on_epsilon_itself_have_delta_0_too(name):
    bound = named_one_run_bound(name, *SCORES, 0.0, LEVEL)
    assert bound.delta == 0.0
    assert 0 < bound.epsilon_lower < np.inf


test_an_error_names_the_argument_and_what_is_allowed = refused_changes(
    named_one_run_bound,
    {"scores_in": SCORES[0], "scores_out": SCORES[1], "significance": LEVEL, **ONE_RUN},
    ({"method": "fdp_cp"}, r"method='fdp_cp' must be one of \['gaussian_pair', 'one_run',"),
    ({"method": "one_run_mu", "delta": 0.0}, r"delta=0.0 must be in \(0, 1\).*take one_run"),
    ({"unscored": -1}, r"unscored=-1 must be a whole number >= 1; or 0"),
    ({"method": "white_box", "unscored": 2}, r"unscored=2 must be 0 for method='white_box'"),
    ({"sides": "out"}, r"sides='out' must be one of \['both', 'in'\]"),
    ({"method": "white_box", "sides": "in"}, r"sides='in' is not for method='white_box'"),
    ({"method": "white_box", "guesses": [10]}, r"guesses=\[10\] is not for method='white_box'"),
)
