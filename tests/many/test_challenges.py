"""Targets are scored by what is fitted on other models; bounds hold apart or paid, not without."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_shadows import simulated
from stages import most_failures, staged

from lightning_audit._validate import BadArgument
from lightning_audit.many import (
    Challenges,
    Shadows,
    challenge_audit,
    challenge_points,
    challenges_of,
)
from lightning_audit.stats._arguments import ConfusionCounts
from lightning_audit.stats.tradeoff import GaussianTradeoff

MADE = simulated(48, 6, 3.0, np.random.default_rng(0), failed=[41])
FITTED, TARGETS = MADE.split(2, 1)


def middle(scores, membership, targets):
    """Guess by the middle between the means of the two groups of each record."""
    inside = np.where(membership, scores, 0).sum(0) / membership.sum(0)
    outside = np.where(~membership, scores, 0).sum(0) / (~membership).sum(0)
    return targets - 0.5 * (inside + outside)


def test_guesses_are_counted_and_those_of_a_failed_model_are_wrong():
    challenges = challenges_of(TARGETS, [1, 4], FITTED, middle)
    assert challenges.scores.shape == (16, 2)
    assert np.isnan(challenges.scores[9]).all()
    guessed = challenges.scores > 0
    inside = challenges.membership
    right = (guessed == inside) & ~TARGETS.failed[:, None]
    assert challenges.counts() == ConfusionCounts(
        np.sum(inside & ~right),
        np.sum(inside & right),
        np.sum(~inside & ~right),
        np.sum(~inside & right),
    )
    each = challenges.counts(by_point=True)
    assert (each.fn + each.fp).tolist() == (~right).sum(0).tolist()
    assert right.mean() > 0.8


@pytest.mark.parametrize("pairs", [True, False])
def test_a_model_has_one_challenge_and_a_pair_too(pairs):
    made = simulated(400, 3, 0.0, np.random.default_rng(0), pairs=pairs)
    every = Challenges(made.scores, made.membership, pairs)
    one = every.one_a_model(seed=1)
    assert one.scores.shape == (200 if pairs else 400, 1)
    assert not one.pairs
    of_models = made.scores[:: 2 if pairs else 1]
    places = np.argmax(of_models == one.scores, axis=1)
    assert (of_models[np.arange(len(places)), places] == one.scores[:, 0]).all()
    assert min(np.bincount(places)) > len(places) / 5


@pytest.mark.parametrize("fitted", [None, FITTED])
def test_a_target_is_scored_by_what_is_before_it(fitted):
    points = [0, 5]
    targets = simulated(40, 6, 3.0, np.random.default_rng(5))
    first = challenges_of(targets, points, fitted, middle, refit_every=4)
    left_out = 40 - len(first.scores)
    assert np.array_equal(first.membership, targets.membership[left_out:, points])
    changed = targets.scores.copy()
    changed[30:] += 100.0
    later = Shadows(changed, targets.membership, targets.seeds)
    again = challenges_of(later, points, fitted, middle, refit_every=4)
    until = 30 - left_out
    assert np.array_equal(first.scores[:until], again.scores[:until])
    assert not np.allclose(first.scores[-4:], again.scores[-4:] - 100.0)  # fitted on changed ones
    if fitted is None:
        inside = targets.membership[:left_out].sum(0)
        assert np.minimum(inside, left_out - inside).min() >= 2  # each record in and out of two
        inside = targets.membership[: left_out - 4].sum(0)
        assert np.minimum(inside, left_out - 4 - inside).min() < 2
    else:
        assert left_out == 0
        once = challenges_of(targets, points, fitted, middle)
        assert np.array_equal(first.scores[:4], once.scores[:4])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"points": [6]}, r"points has 6 to 6, must be in \[0, 6\)"),
        ({"points": []}, "points must be indices"),
        ({"points": [0.5]}, "points must be indices"),
        ({"fitted": MADE}, "targets and fitted share models"),
        ({"fitted": None}, "fitted=None needs refit_every"),
        ({"refit_every": 0}, "refit_every=0"),
        ({"fitted": None, "refit_every": 16}, "no target has two earlier models"),
        ({"attack": lambda scores, membership, targets: targets[:1]}, "attack returns the shape"),
        ({"attack": lambda scores, membership, targets: targets * np.nan}, "not finite"),
    ],
)
def test_what_would_be_no_attack_is_refused(given, match):
    settings = {"targets": TARGETS, "points": [0], "fitted": FITTED, "attack": middle, **given}
    with pytest.raises(ValueError, match=match):
        challenges_of(**settings)


def test_complementary_pairs_are_not_audited_as_independent_models():
    made = simulated(8, 2, 0.0, np.random.default_rng(0), pairs=True)
    with pytest.raises(BadArgument, match=r"targets.firsts\(\)"):
        challenge_audit(Challenges(made.scores, made.membership, True), (1.0, 1e-5))
    with pytest.raises(ValueError, match="choose="):
        challenge_audit(Challenges(made.scores, made.membership), (1.0, 1e-5), choose="best")


def test_paying_divides_the_significance_and_returns_the_worst_point():
    made = simulated(60, 3, np.array([0.0, 6.0, 0.0]), np.random.default_rng(3))
    challenges = challenges_of(made, [0, 1, 2], None, middle, refit_every=10)
    paid = challenge_audit(challenges, GaussianTradeoff(1.0), choose="paid", significance=0.01)
    alone = challenge_audit(
        Challenges(challenges.scores[:, [1]], challenges.membership[:, [1]]),
        GaussianTradeoff(1.0),
        significance=0.01 / 3,
        bound_significance=0.05 / 3,
    )
    assert (paid.errors, paid.guesses) == (alone.errors, alone.guesses)
    assert paid.epsilon_lower == alone.epsilon_lower
    assert paid.verdict.outcome == "VIOLATION"
    together = challenge_audit(challenges, GaussianTradeoff(1.0))
    assert together.seen.canaries == 3


#: The truth of the simulation, and the numbers of points and of models.
MU, POINTS, TRAININGS, LEVEL = 1.0, 20, 40, 0.05


def false_bounds(choose, runs):
    """Count audits whose bound on epsilon is above the truth, which each point attains."""
    rng = np.random.default_rng(7)
    truth = GaussianTradeoff(MU)
    wrong = 0
    for _ in range(runs):
        made = simulated(TRAININGS, POINTS, MU, rng)
        every = Challenges(made.scores, made.membership)
        # Bounds at 20 times the level, divided by 20 points, are those of points without paying.
        settings = {"choose": "paid", "bound_significance": LEVEL}
        if choose == "neither":
            settings["bound_significance"] = min(0.999, LEVEL * POINTS)
        if choose == "apart":
            other = simulated(TRAININGS, POINTS, MU, rng)
            points = challenge_points(other, 1, attack=middle)
            every = Challenges(made.scores[:, points], made.membership[:, points])
        audit = challenge_audit(every, truth, **settings)
        wrong += audit.epsilon_lower_at_end > truth.epsilon_at(1e-5)
    return wrong


@pytest.mark.parametrize(
    ("choose", "runs"),
    staged(
        heavy=[("paid", 20), ("apart", 40), ("neither", 10)],
        nightly=[("paid", 200), ("apart", 200), ("neither", 50)],
    ),
)
def test_bounds_of_the_worst_point_hold_if_it_is_selected_apart_or_paid(choose, runs):
    wrong = false_bounds(choose, runs)
    if choose == "neither":
        assert wrong > 0.2 * runs  # .64 = 1 - .95^20 if each bound were exact
    else:
        assert wrong <= most_failures(runs, 0.05, 1000)
