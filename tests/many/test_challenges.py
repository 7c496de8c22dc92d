"""Targets are scored by what is fitted on other models; bounds hold apart or paid, not without."""

from functools import partial

import numpy as np
import pytest
import torch
from driven_trainings import digits, linear, sgd
from refused_calls import refusals, refused_changes
from scipy import stats
from simulated_shadows import simulated
from stages import most_failures, staged

from lightning_audit.many import (
    Challenges,
    DPSGDMany,
    LogitMargin,
    Mislabeled,
    Shadows,
    challenge_audit,
    challenge_points,
    challenges_of,
    folds_p_value,
    opacus_training,
    worst_case_start,
    worst_of,
)
from lightning_audit.many.challenges import paid_significance, trainings_for_worst_of
from lightning_audit.many.verdict import promise_of
from lightning_audit.many.worlds import worlds_of
from lightning_audit.stats._arguments import ConfusionCounts
from lightning_audit.stats.tradeoff import GaussianTradeoff, gaussian_mu

# --- Selection finds the records that models give away, by models that did not fit the attack.
SHIFT = np.where(np.isin(np.arange(40), [3, 17, 29]), [[4.0]], 0.0)[0]
MADE = simulated(48, 6, 3.0, np.random.default_rng(0), failed=[41])
FITTED, TARGETS = MADE.split(2, 1)
#: The truth of the simulation, and the numbers of points and of models.
MU, POINTS, TRAININGS, LEVEL = 1.0, 20, 40, 0.05
INPUTS, CLASSES = digits(160)
FULL_BATCHES = {"max_grad_norm": 1.0, "sample_rate": 1.0, "expected_batch_size": 60}


@pytest.mark.parametrize("by", ["separation", "accuracy"])
@pytest.mark.parametrize("failed", [(), (0, 7)])
def test_the_records_that_are_given_away_are_found(by, failed):
    made = simulated(32, 40, SHIFT, np.random.default_rng(1), pairs=True, failed=failed)
    assert set(challenge_points(made, 3, by).tolist()) == {3, 17, 29}


def raw(scores, membership, targets):
    return targets


def test_separation_decides_between_equal_accuracies_then_the_index():
    membership = np.tile([[True], [False]], (4, 5))
    size = np.array([0.5, 2.0, 1.0, 2.0, 0.1])
    spread = np.tile([0.9, 0.9, 1.1, 1.1], 2)[:, None]  # scores differ a little in each group
    scores = np.where(membership, size, -size) + 0.01 * spread
    scores[:, 4] *= -1  # wrong in each model
    made = Shadows(scores, membership, np.arange(8), pairs=True)
    assert challenge_points(made, 5, "accuracy", raw).tolist() == [1, 3, 2, 0, 4]


def test_an_attack_scores_only_models_that_it_was_not_fitted_on():
    made = simulated(16, 6, 1.0, np.random.default_rng(2))
    seen = []

    def attack(scores, membership, targets):
        seen.append((scores, targets))
        assert not np.isin(targets, scores).any()
        return targets

    challenge_points(made, 2, "separation", attack)
    assert len(seen) == 2
    assert np.array_equal(np.concatenate([targets for _, targets in seen[::-1]]), made.scores)


PAIRED = simulated(8, 5, 0.0, np.random.default_rng(0), pairs=True)
BROKEN = simulated(8, 5, 0.0, np.random.default_rng(0), failed=range(7))
test_what_cannot_be_selected_or_audited_is_refused = refusals(
    (lambda: challenge_points(PAIRED, 6), "count=6 is larger than the number of records"),
    (lambda: challenge_points(PAIRED, 1, "luck"), "by="),
    (lambda: challenge_points(BROKEN, 1), "1 models that did not fail"),
    (
        lambda: challenge_audit(Challenges(PAIRED.scores, PAIRED.membership, True), (1.0, 1e-5)),
        r"targets.firsts\(\)",
    ),
    (
        lambda: challenge_audit(
            Challenges(PAIRED.scores, PAIRED.membership), (1.0, 1e-5), choose="best"
        ),
        "choose=",
    ),
)


def middle(scores, membership, targets):
    """Guess by the middle between the means of the two groups of each record."""
    inside = np.where(membership, scores, 0).sum(0) / membership.sum(0)
    outside = np.where(~membership, scores, 0).sum(0) / (~membership).sum(0)
    return targets - 0.5 * (inside + outside)


def test_guesses_are_counted_and_those_of_a_failed_model_are_wrong():
    challenges = challenges_of(TARGETS, [1, 4], FITTED, middle)
    assert challenges.scores.shape == (16, 2)
    assert np.isnan(challenges.scores[9]).all()
    inside = challenges.membership
    right = ((challenges.scores > 0) == inside) & ~TARGETS.failed[:, None]
    sides = (inside & ~right, inside & right, ~inside & ~right, ~inside & right)
    assert challenges.counts() == ConfusionCounts(*map(np.sum, sides))
    each = challenges.counts(by_point=True)
    assert (each.fn + each.fp).tolist() == (~right).sum(0).tolist()
    assert right.mean() > 0.8


@pytest.mark.parametrize("pairs", [True, False])
def test_a_model_has_one_challenge_and_a_pair_too(pairs):
    made = simulated(400, 3, 0.0, np.random.default_rng(0), pairs=pairs)
    one = Challenges(made.scores, made.membership, pairs).one_a_model(seed=1)
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


test_what_would_be_no_attack_is_refused = refused_changes(
    challenges_of,
    {"targets": TARGETS, "points": [0], "fitted": FITTED, "attack": middle},
    ({"points": [6]}, r"points has 6 to 6, must be in \[0, 6\)"),
    ({"points": []}, "points must be indices"),
    ({"points": [0.5]}, "points must be indices"),
    ({"fitted": MADE}, "targets and fitted share models"),
    ({"fitted": None}, "fitted=None needs refit_every"),
    ({"refit_every": 0}, "refit_every=0"),
    ({"fitted": None, "refit_every": 16}, "no target has two earlier models"),
    ({"attack": lambda scores, membership, targets: targets[:1]}, "attack returns the shape"),
    ({"attack": lambda scores, membership, targets: targets * np.nan}, "not finite"),
)


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
    assert (paid.epsilon_lower, paid.verdict.outcome) == (alone.epsilon_lower, "VIOLATION")
    assert challenge_audit(challenges, GaussianTradeoff(1.0)).seen.canaries == 3


def false_bounds(choose, runs):
    """Count audits whose bound on epsilon is above the truth, which each point attains."""
    rng, truth, wrong = np.random.default_rng(7), GaussianTradeoff(MU), 0
    for _ in range(runs):
        made = simulated(TRAININGS, POINTS, MU, rng)
        every = Challenges(made.scores, made.membership)
        # Bounds at 20 times the level, divided by 20 points, are those of points without paying.
        settings = {"choose": "paid", "bound_significance": LEVEL}
        if choose == "neither":
            settings["bound_significance"] = min(0.999, LEVEL * POINTS)
        if choose == "apart":
            points = challenge_points(simulated(TRAININGS, POINTS, MU, rng), 1, attack=middle)
            every = Challenges(made.scores[:, points], made.membership[:, points])
        audit = challenge_audit(every, truth, **settings)
        wrong += audit.epsilon_lower_at_end > truth.epsilon_at(1e-5)
    return wrong


@pytest.mark.parametrize(
    ("choose", "runs"), staged(nightly=[("paid", 200), ("apart", 200), ("neither", 50)])
)
def test_bounds_of_the_worst_point_hold_if_it_is_selected_apart_or_paid(choose, runs):
    wrong = false_bounds(choose, runs)
    if choose == "neither":
        assert wrong > 0.2 * runs  # .64 = 1 - .95^20 if each bound were exact
    else:
        assert wrong <= most_failures(runs, 0.05, 1000)


# --- What the worst of several points costs, and p-values of several points and folds.
@pytest.mark.parametrize(
    ("epsilon", "significance", "trainings"),
    [(8.0, 0.05, [14, 24, 34, 44]), (8.0, 0.001, [31, 41, 51, 62]), (4.0, 0.05, [8, 14, 20, 26])],
)
def test_paying_costs_the_logarithm_of_the_number_of_points(epsilon, significance, trainings):
    error = promise_of(GaussianTradeoff(float(gaussian_mu(epsilon, 1e-5)))).least_error
    for points, count in zip((1, 10, 100, 1000), trainings, strict=True):
        assert trainings_for_worst_of(error, significance, points) == count
        # The exact binomial test of the worst point refutes after that many guesses, not one less.
        level = paid_significance(significance, points)
        assert (1 - error) ** count <= level < (1 - error) ** (count - 1)


def test_a_smaller_claim_is_refuted_sooner():
    errors = [promise_of(GaussianTradeoff(mu)).least_error for mu in (0.5, 1.0, 2.0)]
    needed = [trainings_for_worst_of(error, 0.05, 10) for error in errors]
    assert needed == sorted(needed)


def test_p_values_of_points_and_folds():
    assert worst_of([0.2, 0.001, 0.7]) == pytest.approx(0.003)
    assert worst_of([0.5, 0.9]) == 1.0
    assert (worst_of(0.01, points=30), folds_p_value([0.03])) == pytest.approx((0.3, 0.03))
    assert folds_p_value([0.4, 0.03]) == pytest.approx(0.06)
    assert folds_p_value([0.5, 0.01, 0.02]) == pytest.approx(0.03)


test_what_is_no_p_value_and_fewer_points_than_those_are_refused = refusals(
    *(
        (partial(combine, values), "p_values")
        for combine in (worst_of, folds_p_value)
        for values in ([], [0.2, 1.5], [-0.1], [float("nan")])
    ),
    (lambda: worst_of([0.1, 0.2], points=1), "points=1 is smaller"),
    (lambda: paid_significance(0.05, 0), "points=0"),
)


@pytest.mark.parametrize("combine", [worst_of, folds_p_value])
@pytest.mark.parametrize("correlation", [-0.2, 0.0, 0.9])
@pytest.mark.parametrize("runs", staged(quick=[1000], nightly=[100_000]))
def test_combined_p_values_hold_their_level_for_dependent_tests(combine, correlation, runs):
    rng = np.random.default_rng(0)
    cover = np.full((5, 5), correlation) + (1 - correlation) * np.eye(5)
    p_values = stats.norm.sf(rng.multivariate_normal(np.zeros(5), cover, runs))
    assert sum(combine(row) <= 0.05 for row in p_values) <= most_failures(runs, 0.05, 100_000)
    assert np.mean(p_values.min(axis=1) <= 0.05) > 0.05  # the smallest of five does not


# --- Trainings that start at a model fitted to other records give a canary away more.
DATA, OTHERS = (INPUTS[:60], CLASSES[:60]), (INPUTS[60:], CLASSES[60:])


def start(steps=100):
    return worst_case_start(linear, OTHERS, steps=steps, learning_rate=1.0, batch_size=50)


@pytest.mark.training
def test_it_is_fitted_to_the_other_records_and_depends_on_the_seed_alone():
    model = start()
    assert (model(OTHERS[0]).argmax(1) == OTHERS[1]).float().mean() > 0.9
    assert torch.equal(model.weight, start().weight)
    other = worst_case_start(linear, OTHERS, steps=100, learning_rate=1.0, seed=1)
    assert not torch.equal(model.weight, other.weight)


@pytest.mark.training
def test_trainings_of_opacus_start_there():
    model, settings = start(5), {**FULL_BATCHES, "max_grad_norm": 1e-6, "steps": 1}
    train = opacus_training(lambda: model, sgd, noise_multiplier=0.0, **settings)
    assert torch.allclose(train(DATA, 0).weight, model.weight, atol=1e-4)


test_arguments_out_of_range_are_refused = pytest.mark.training(
    refused_changes(
        worst_case_start,
        {"make_model": linear, "auxiliary": OTHERS, "steps": 1, "learning_rate": 1.0},
        ({"steps": 0}, "steps=0"),
        ({"learning_rate": 0.0}, "learning"),
        ({"batch_size": 0}, "batch"),
    )
)


@pytest.mark.training
@pytest.mark.nightly
def test_a_mislabeled_record_is_distinguished_better_from_the_worst_start():
    worlds = worlds_of(DATA, Mislabeled(), "add_remove")
    sets = [worlds.of((0,)), worlds.of((1,))]

    def separation(model):
        settings = {**FULL_BATCHES, "steps": 100, "learning_rate": 0.5}
        train = DPSGDMany(model, noise_multiplier=6.0, **settings)
        out, inside = (
            [LogitMargin()(made, worlds.records[0]) for made in train.many([data] * 150, seeds)]
            for data, seeds in zip(sets, (range(150), range(150, 300)), strict=True)
        )
        return (np.mean(inside) - np.mean(out)) / np.sqrt(0.5 * (np.var(inside) + np.var(out)))

    assert separation(start(1000)) > separation(linear) + 0.2  # standard error .11 each
