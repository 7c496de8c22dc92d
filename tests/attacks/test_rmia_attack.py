from __future__ import annotations

import numpy as np
import pytest
from shadow_models import shadow_models

from lightning_audit.attacks import attack_performance, log_probability, rmia


def twin(scores, membership, targets, gamma=1.0, a=None, population=None) -> np.ndarray:
    """The definition in arXiv:2312.03262, with probabilities and loops."""

    def probability(margin: float) -> float:
        return 1 / (1 + np.exp(-margin))

    def mean_of(column, inside) -> float:
        p_in = [probability(s) for s, i in zip(column, inside, strict=True) if i]
        p_out = [probability(s) for s, i in zip(column, inside, strict=True) if not i]
        if a is not None:
            return 0.5 * ((1 + a) * np.mean(p_out) + (1 - a))
        return 0.5 * (np.mean(p_in) + np.mean(p_out)) if p_in else float(np.mean(p_out))

    result = np.empty(targets.shape)
    for (t, x), target in np.ndenumerate(targets):
        ratio = probability(target) / mean_of(scores[:, x], membership[:, x])
        if population is None:
            pairs = [
                (targets[t, z], mean_of(scores[:, z], membership[:, z]))
                for z in range(targets.shape[1])
                if z != x
            ]
        else:
            shadow, attacked = population
            pairs = [
                (attacked[t, z], mean_of(shadow[:, z], [False] * len(shadow)))
                for z in range(shadow.shape[1])
            ]
        result[t, x] = np.mean([ratio / (probability(s) / p) >= gamma for s, p in pairs])
    return result


@pytest.mark.parametrize("gamma", [0.8, 1.0, 1.3])
@pytest.mark.parametrize("a", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("known_population", [False, True])
def test_shares_are_those_of_the_definition(gamma, a, known_population) -> None:
    scores, membership, targets, _ = shadow_models(records=9, seed=4)
    population = None
    if known_population:
        others = shadow_models(records=6, seed=5, leakage=0.0)
        population = others[0], others[2]
    found = rmia(scores, membership, targets, gamma=gamma, offline_a=a, population=population)
    expected = twin(scores, membership, targets, gamma, a, population)
    assert found == pytest.approx(expected, abs=1e-9)
    assert 0 < found.mean() < 1


def test_log_probabilities_are_another_scale_of_the_same() -> None:
    scores, membership, targets, _ = shadow_models(seed=6)
    logs = log_probability(scores), membership, log_probability(targets)
    found = rmia(*logs, scale="log_probability")
    assert np.array_equal(found, rmia(scores, membership, targets))


def test_order_of_models_and_records_does_not_matter() -> None:
    scores, membership, targets, _ = shadow_models(seed=7)
    rng = np.random.default_rng(0)
    models, records = rng.permutation(len(scores)), rng.permutation(scores.shape[1])
    found = rmia(scores[models][:, records], membership[models][:, records], targets[:, records])
    assert np.array_equal(found, rmia(scores, membership, targets)[:, records])


@pytest.mark.parametrize("a", [None, 0.3])
def test_a_larger_target_score_never_has_a_smaller_share(a) -> None:
    scores, membership, targets, _ = shadow_models(seed=8)
    before = rmia(scores, membership, targets, offline_a=a)
    raised = targets.copy()
    raised[:, 2] += 0.7
    after = rmia(scores, membership, raised, offline_a=a)
    assert np.all(after[:, 2] >= before[:, 2])
    assert np.all(np.delete(after, 2, axis=1) <= np.delete(before, 2, axis=1))


def test_probabilities_too_small_for_a_float_are_compared() -> None:
    scores, membership, targets, _ = shadow_models(seed=9)
    found = rmia(scores - 2000, membership, targets - 2000)
    # log p is the margin there: the online ratio is the margin less a mean of the record's.
    assert np.isfinite(found).all()
    assert found.std() > 0.1


@pytest.mark.parametrize("a", [None, 0.5])
def test_without_leakage_the_area_is_a_half(a) -> None:
    known = shadow_models(40, 200, 100, leakage=0.0)
    found = attack_performance(rmia(*known[:3], offline_a=a), known[3])
    assert found.auc == pytest.approx(0.5, abs=4 * np.sqrt(2 / 12 / 1e4))


def test_members_are_separated_better_than_by_their_own_scores() -> None:
    known = shadow_models(40, 200, 20, leakage=1.5)
    found = attack_performance(rmia(*known[:3]), known[3]).auc
    assert found > attack_performance(known[2], known[3]).auc + 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, "gamma=0.0 must be a finite number > 0"),
        ({"offline_a": 1.5}, r"offline_a=1.5 must be in \[0, 1\]"),
        ({"offline_a": -1.0}, "offline_a=-1.0 must be a finite number >= 0"),
        ({"scale": "loss"}, "scale='loss' must be one of"),
        ({"scale": "log_probability"}, "scores holds .* must be at most 0"),
        ({"population": np.zeros(3)}, "must be two arrays"),
        (
            {"population": (np.zeros((24, 2)), np.zeros((3, 4)))},
            r"must have \[24, p\] and \[3, p\]",
        ),
        (
            {"population": (np.full((24, 2), np.nan), np.zeros((3, 2)))},
            r"population\[0\] holds nan",
        ),
    ],
)
def test_bad_options_are_named(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        rmia(*shadow_models()[:3], **options)


def test_one_record_has_no_others() -> None:
    scores, membership, targets, _ = shadow_models(records=1)
    with pytest.raises(ValueError, match="scores has 1 record, must have at least 2"):
        rmia(scores, membership, targets)
    population = shadow_models(records=4, seed=1)
    rmia(scores, membership, targets, population=(population[0], population[2]))
