from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from shadow_models import shadow_models

from lightning_audit.attacks import (
    attack_performance,
    lira,
    log_probability,
    normal_ratio,
    out_quantile,
    score_difference,
    score_threshold,
)


def sides(scores, membership, record: int) -> tuple[list[float], list[float]]:
    """Scores of the models without a record, and with it."""
    pairs = list(zip(scores[:, record], membership[:, record], strict=True))
    return [s for s, i in pairs if not i], [s for s, i in pairs if i]


def test_the_threshold_attack_is_that_of_the_loss() -> None:
    scores, membership, targets, inside = shadow_models(targets=40)
    found = score_threshold(scores, membership, targets)
    assert np.array_equal(found, targets)
    losses = -log_probability(targets)
    assert np.array_equal(np.argsort(found, axis=None), np.argsort(-losses, axis=None))
    assert attack_performance(found, inside).auc == attack_performance(-losses, inside).auc


def test_log_probability_is_that_of_the_margin() -> None:
    for p in (1e-12, 0.2, 0.5, 0.99):
        assert log_probability(math.log(p / (1 - p))) == pytest.approx(math.log(p), rel=1e-9)
    assert log_probability(-1e4) == -1e4


def test_differences_are_from_the_mean_without_the_record() -> None:
    scores, membership, targets, _ = shadow_models(seed=1)
    found = score_difference(scores, membership, targets)
    for (t, r), score in np.ndenumerate(targets):
        out, _ = sides(scores, membership, r)
        assert found[t, r] == pytest.approx(score - sum(out) / len(out), abs=1e-9)


@pytest.mark.parametrize("level", [0.3, 0.5, 0.9])
def test_quantiles_are_those_of_the_scores_without_the_record(level) -> None:
    scores, membership, targets, _ = shadow_models(models=60, seed=2)
    found = out_quantile(scores, membership, targets, level=level)
    for (t, r), score in np.ndenumerate(targets):
        out = sorted(sides(scores, membership, r)[0])
        place = level * (len(out) - 1)
        below, share = int(place), place - int(place)
        quantile = out[below] * (1 - share) + out[min(below + 1, len(out) - 1)] * share
        assert found[t, r] == pytest.approx(score - quantile, abs=1e-9)


def test_one_record_in_ten_that_is_no_member_passes_its_quantile() -> None:
    scores, membership, targets, inside = shadow_models(300, 200, 100, seed=3)
    passed = out_quantile(scores, membership, targets, level=0.9)[~inside] > 0
    # Interpolation at level (n - 1) of n scores passes 1 - (1 + level (n - 1)) / (n + 1).
    assert passed.mean() == pytest.approx(0.105, abs=0.012)


def test_a_monotone_transform_does_not_change_who_passes() -> None:
    scores, membership, targets, _ = shadow_models(models=31, seed=4)
    membership[:] = np.arange(31)[:, None] >= 21
    # Of 21 scores the quantile at level .9 is one of them, which no interpolation changes.
    plain = out_quantile(scores, membership, targets, level=0.9) > 0
    again = out_quantile(np.exp(scores), membership, np.exp(targets), level=0.9) > 0
    assert np.array_equal(plain, again)
    assert 0 < plain.mean() < 1


def test_the_normal_ratio_decides_as_algorithm_3() -> None:
    scores, membership, targets, _ = shadow_models(records=30, seed=5, leakage=2.0)
    found = normal_ratio(scores, membership, targets)
    for alpha in (0.02, 0.1, 0.5, 0.9):
        for (t, r), score in np.ndenumerate(targets):
            out, inside = (np.array(side) for side in sides(scores, membership, r))
            m0, v0, m1, v1 = out.mean(), out.var(ddof=1), inside.mean(), inside.var(ddof=1)
            # Appendix D: the published R has the opposite sign.
            big_r = (m0 / v0 - m1 / v1) / (1 / v1 - 1 / v0)
            shape = ((m0 + big_r) / np.sqrt(v0)) ** 2
            square = (score + big_r) ** 2 / v0
            if v0 > v1:
                decision = square <= stats.ncx2.ppf(alpha, 1, shape)
            else:
                decision = square >= stats.ncx2.isf(alpha, 1, shape)
            assert (found[t, r] >= -alpha) == decision


def test_the_normal_ratio_orders_a_record_as_lira_with_own_variances() -> None:
    scores, membership, targets, _ = shadow_models(targets=25, seed=6)
    p_values = normal_ratio(scores, membership, targets)
    ratios = lira(scores, membership, targets, variance="own")
    for r in range(scores.shape[1]):
        assert np.array_equal(np.argsort(p_values[:, r]), np.argsort(ratios[:, r]))
    losses = normal_ratio(-scores, membership, -targets)
    assert losses == pytest.approx(p_values, abs=1e-12)


@pytest.mark.parametrize(
    "attack", [score_difference, normal_ratio, lambda *a: out_quantile(*a, level=0.8)]
)
def test_without_leakage_the_area_is_a_half(attack) -> None:
    scores, membership, targets, inside = shadow_models(60, 200, 100, leakage=0.0, seed=7)
    found = attack_performance(attack(scores, membership, targets), inside)
    assert found.auc == pytest.approx(0.5, abs=4 * np.sqrt(2 / 12 / 1e4))


@pytest.mark.parametrize(
    ("level", "message"),
    [
        (1.0, r"level=1.0 must be in \(0, 1\)"),
        (
            0.99,
            r"membership has record \d out of \d+ models, must have each record out of at least "
            "100",
        ),
        (0.02, "must have each record out of at least 50"),
    ],
)
def test_a_level_needs_models(level, message) -> None:
    with pytest.raises(ValueError, match=message):
        out_quantile(*shadow_models()[:3], level=level)


def test_a_level_of_a_tenth_needs_ten_models_and_no_more() -> None:
    scores, targets = np.arange(10.0)[:, None], np.ones((1, 1))
    out_quantile(scores, np.zeros((10, 1), dtype=bool), targets, level=0.9)
    with pytest.raises(ValueError, match="at least 10"):
        out_quantile(scores[:9], np.zeros((9, 1), dtype=bool), targets, level=0.9)
