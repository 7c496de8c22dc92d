from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from refused_calls import refused_changes

from lightning_audit.stats.gaussian import mu_white_box_from_scores
from lightning_audit.stats.named_bounds import BOUND_NAMES, NamedBound
from lightning_audit.stats.one_run import (
    default_guesses,
    epsilon_one_run_fdp_from_scores,
    epsilon_one_run_from_scores,
    mu_one_run_from_scores,
)
from lightning_audit.stats.one_run_bounds import (
    ONE_RUN_METHODS,
    ONE_RUN_NAMES,
    epsilon_gaussian_pair_from_scores,
    named_one_run_bound,
)
from lightning_audit.stats.tradeoff import gaussian_epsilon

DELTA, LEVEL = 1e-4, 0.03
RNG = np.random.default_rng(5)
SCORES = 1.3 + RNG.standard_normal(400), RNG.standard_normal(350)
GUESSING = [name for name, method in ONE_RUN_METHODS.items() if method.from_guesses]


def direct(name: str, guesses: list[int] | None = None) -> tuple[float, float | None]:
    """Epsilon, and mu where the method bounds it."""
    match name:
        case "one_run":
            found = epsilon_one_run_from_scores(*SCORES, DELTA, LEVEL, guesses=guesses)
            return found.value, None
        case "one_run_fdp":
            found = epsilon_one_run_fdp_from_scores(*SCORES, DELTA, LEVEL, guesses=guesses)
            return found.value, None
        case "one_run_mu":
            mu = mu_one_run_from_scores(*SCORES, LEVEL, guesses=guesses).value
        case "gaussian_pair":
            return epsilon_gaussian_pair_from_scores(*SCORES, DELTA, LEVEL), None
        case _:
            mu = mu_white_box_from_scores(*SCORES, LEVEL)
    return float(gaussian_epsilon(mu, DELTA)), mu


def alike(default: NamedBound, given: NamedBound) -> bool:
    """Whether two bounds differ only in what they say of the choice of their guesses."""
    return default == dataclasses.replace(given, rule=default.rule, assumptions=default.assumptions)


def test_no_name_is_also_that_of_a_bound_with_a_threshold() -> None:
    assert not set(ONE_RUN_NAMES) & set(BOUND_NAMES)
    assert all(ONE_RUN_METHODS[name].name == name for name in ONE_RUN_NAMES)


@pytest.mark.parametrize("name", ONE_RUN_NAMES)
def test_a_named_bound_is_what_the_function_gives(name: str) -> None:
    bound = named_one_run_bound(name, *SCORES, DELTA, LEVEL)
    assert (bound.epsilon_lower, bound.mu_lower) == direct(name)
    assert bound.epsilon_lower > 0.3
    assert (bound.method, bound.delta, bound.significance, bound.valid) == (
        name,
        DELTA,
        LEVEL,
        name != "gaussian_pair",
    )
    assert bound.threshold is bound.threshold_value is None
    assert bound.assumptions == ONE_RUN_METHODS[name].assumptions
    assert bound.assumptions[0].startswith("every canary in by its own fair coin")


@pytest.mark.parametrize("name", GUESSING)
def test_one_number_of_guesses_is_not_paid_for_and_several_are(name: str) -> None:
    bound = named_one_run_bound(name, *SCORES, DELTA, LEVEL, [60])
    assert bound.epsilon_lower == direct(name, [60])[0]
    assert (bound.guesses, bound.rule) == (60, "60 guesses, half in and half out")
    order = np.sort(np.concatenate(SCORES))
    right = int((SCORES[0] >= order[-30]).sum() + (SCORES[1] <= order[29]).sum())
    assert bound.correct == right
    paid = named_one_run_bound(name, *SCORES, DELTA, LEVEL, [60, 700])
    assert paid.epsilon_lower < bound.epsilon_lower
    assert paid.rule == (
        "the best of 700 and 60 guesses, half in and half out, each at its share of the "
        "significance"
    )


@pytest.mark.parametrize("name", GUESSING)
def test_guesses_that_are_not_given_are_the_default_ones(name: str) -> None:
    bound = named_one_run_bound(name, *SCORES, DELTA, LEVEL)
    given = named_one_run_bound(name, *SCORES, DELTA, LEVEL, default_guesses(750))
    assert alike(bound, given)
    assert bound.guesses in default_guesses(750)
    assert bound.rule is not None
    assert "half in and half out, set by the number of canaries, each" in bound.rule


@pytest.mark.parametrize("name", GUESSING)
def test_numbers_that_are_given_are_assumed_to_be_chosen_before_the_scores_were_seen(
    name: str,
) -> None:
    chosen = "the numbers of guesses were chosen before the scores were seen, which cannot be "
    given = named_one_run_bound(name, *SCORES, DELTA, LEVEL, [60])
    default = named_one_run_bound(name, *SCORES, DELTA, LEVEL)
    assert [text for text in given.assumptions if text.startswith(chosen)]
    assert given.assumptions[:-1] == default.assumptions == ONE_RUN_METHODS[name].assumptions
    assert given.rule is not None
    assert "canaries" not in given.rule


def test_the_best_number_of_guesses_chosen_afterwards_is_no_bound() -> None:
    # Why it is stated: at an epsilon of 0 the best of all numbers exceeds it far too often.
    rng = np.random.default_rng(3)
    above = {"given": 0, "chosen": 0}
    for _ in range(300):
        scores = rng.standard_normal(200)
        coins = rng.random(200) < 0.5
        sides = scores[coins], scores[~coins]
        found = [
            epsilon_one_run_from_scores(*sides, DELTA, 0.05, guesses=[n]).value
            for n in range(10, 200, 10)
        ]
        above["given"] += found[9] > 0
        above["chosen"] += max(found) > 0
    # Three standard errors above .05 are 26 of 300.
    assert above["given"] <= 26 < above["chosen"]


@pytest.mark.parametrize("name", GUESSING)
@pytest.mark.parametrize(("canaries", "words"), [(0, "no guesses"), (2, "1 guess")])
def test_few_canaries_prove_nothing_and_say_how_many_were_guessed(
    name: str, canaries: int, words: str
) -> None:
    scores = [1.0] * (canaries // 2), [0.0] * (canaries // 2)
    bound = named_one_run_bound(name, *scores, DELTA, LEVEL)
    assert bound.epsilon_lower == 0.0
    assert bound.rule == words


@pytest.mark.parametrize("name", GUESSING)
def test_canaries_without_a_score_count_as_coins_and_as_wrong_guesses(name: str) -> None:
    whole = named_one_run_bound(name, *SCORES, DELTA, LEVEL, [60])
    more = named_one_run_bound(name, *SCORES, DELTA, LEVEL, [60], unscored=10**5)
    assert more.epsilon_lower < whole.epsilon_lower
    assert (more.guesses, more.correct) == (whole.guesses, whole.correct)
    # Nobody guessed them, and still so many guesses were announced.
    few = named_one_run_bound(name, [1.0] * 15, [0.0] * 15, DELTA, LEVEL, [40], unscored=10)
    crossed = [1.0] * 15 + [0.0] * 5, [0.0] * 15 + [1.0] * 5
    wrong = named_one_run_bound(name, *crossed, DELTA, LEVEL, [40])
    assert 0 < few.epsilon_lower == wrong.epsilon_lower
    default = named_one_run_bound(name, *SCORES, DELTA, LEVEL, unscored=250)
    given = named_one_run_bound(name, *SCORES, DELTA, LEVEL, default_guesses(1000), unscored=250)
    assert alike(default, given)


@pytest.mark.parametrize("name", GUESSING)
def test_the_largest_alone_are_guessed_where_that_is_asked_for(name: str) -> None:
    bound = named_one_run_bound(name, *SCORES, DELTA, LEVEL, [60], sides="in")
    assert bound.rule == "60 guesses, all in"
    assert bound.correct == int((SCORES[0] >= np.sort(np.concatenate(SCORES))[-60]).sum())
    assert bound.epsilon_lower != direct(name, [60])[0]
    default = named_one_run_bound(name, *SCORES, DELTA, LEVEL, sides="in")
    numbers = default_guesses(750, "in")
    given = named_one_run_bound(name, *SCORES, DELTA, LEVEL, numbers, sides="in")
    assert alike(default, given)


@pytest.mark.parametrize("name", ["one_run", "one_run_fdp"])
def test_bounds_on_epsilon_itself_have_delta_0_too(name: str) -> None:
    bound = named_one_run_bound(name, *SCORES, 0.0, LEVEL)
    assert bound.delta == 0.0
    assert 0 < bound.epsilon_lower < np.inf


test_an_error_names_the_argument_and_what_is_allowed = refused_changes(
    named_one_run_bound,
    {
        "method": "one_run",
        "scores_in": SCORES[0],
        "scores_out": SCORES[1],
        "delta": DELTA,
        "significance": LEVEL,
    },
    (
        {"method": "fdp_cp"},
        r"method='fdp_cp' must be one of \['gaussian_pair', 'one_run',",
    ),
    ({"method": "one_run_mu", "delta": 0.0}, r"delta=0.0 must be in \(0, 1\).*take one_run"),
    ({"method": "gaussian_pair", "delta": 0}, r"delta=0 must be in \(0, 1\).*take one_run"),
    ({"method": "gaussian_pair", "unscored": 2}, "unscored=2 must be 0 for method='gauss"),
    ({"method": "gaussian_pair", "guesses": [10]}, r"guesses=\[10\] is not for method='gauss"),
    ({"method": "white_box", "delta": 0}, r"delta=0 must be in \(0, 1\).*take one_run"),
    ({"delta": 1.0}, r"delta=1.0"),
    ({"significance": 0.0}, r"significance=0.0"),
    ({"guesses": [751]}, r"guesses=751 must be at most the number of canaries, 750"),
    ({"unscored": -1}, r"unscored=-1 must be a whole number >= 1; or 0"),
    ({"method": "white_box", "unscored": 2}, r"unscored=2 must be 0 for method='white_box'"),
    ({"sides": "out"}, r"sides='out' must be one of \['both', 'in'\]"),
    ({"method": "white_box", "sides": "in"}, r"sides='in' is not for method='white_box'"),
    ({"method": "white_box", "guesses": [10]}, r"guesses=\[10\] is not for method='white_box'"),
)
