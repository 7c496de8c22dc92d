from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats
from shadow_models import shadow_models

from lightning_audit.attacks import attack_performance, lira


def twin(scores, membership, targets, online: bool, pooled: bool) -> np.ndarray:
    """Algorithm 1 of arXiv:2112.03570, record by record."""
    models, records = scores.shape
    fits = {}
    for side in (True, False):
        groups = [
            [scores[m, r] for m in range(models) if membership[m, r] == side]
            for r in range(records)
        ]
        if side and not online:
            continue
        squares = [sum((s - np.mean(g)) ** 2 for s in g) for g in groups]
        degrees = [len(g) - 1 for g in groups]
        common = sum(squares) / sum(degrees)
        fits[side] = [
            (np.mean(g), np.sqrt(common if pooled else s / d))
            for g, s, d in zip(groups, squares, degrees, strict=True)
        ]
    result = np.empty(targets.shape)
    for (t, r), score in np.ndenumerate(targets):
        if online:
            result[t, r] = np.log(
                stats.norm.pdf(score, *fits[True][r]) / stats.norm.pdf(score, *fits[False][r])
            )
        else:
            result[t, r] = stats.norm.cdf(score, *fits[False][r])
    return result


@pytest.mark.parametrize("variance", ["pooled", "own"])
@pytest.mark.parametrize("seed", [0, 1])
def test_online_is_the_ratio_of_the_published_densities(variance, seed) -> None:
    scores, membership, targets, _ = shadow_models(seed=seed)
    found = lira(scores, membership, targets, variance=variance)
    expected = twin(scores, membership, targets, True, variance == "pooled")
    assert found == pytest.approx(expected, abs=1e-9, rel=1e-9)


@pytest.mark.parametrize("variance", ["pooled", "own"])
def test_offline_has_the_published_distribution_function(variance) -> None:
    scores, membership, targets, _ = shadow_models(seed=2)
    found = lira(scores, membership, targets, online=False, variance=variance)
    expected = twin(scores, membership, targets, False, variance == "pooled")
    assert special.ndtr(found) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("variance", ["pooled", "own"])
@pytest.mark.parametrize("online", [True, False])
def test_order_of_models_and_records_and_the_unit_do_not_matter(variance, online) -> None:
    scores, membership, targets, _ = shadow_models(seed=3)
    found = lira(scores, membership, targets, online=online, variance=variance)
    rng = np.random.default_rng(0)
    models, records = rng.permutation(len(scores)), rng.permutation(scores.shape[1])
    moved = (a[models][:, records] for a in (scores, membership))
    again = lira(*moved, targets[:, records], online=online, variance=variance)
    assert again == pytest.approx(found[:, records], rel=1e-9)
    scaled = lira(5 + 3 * scores, membership, 5 + 3 * targets, online=online, variance=variance)
    assert scaled == pytest.approx(found, abs=1e-9)


def test_equal_distributions_of_both_sides_give_a_constant() -> None:
    scores, membership = np.tile([[0.0], [1.0]], (8, 3)), np.repeat([[True], [False]], 8, axis=0)
    membership = np.tile(membership, (1, 3))
    for variance in ("pooled", "own"):
        found = lira(scores, membership, [[-4.0, 0.5, 9.0]], variance=variance)
        assert found == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("online", [True, False])
def test_the_area_is_that_of_two_normal_distributions(online) -> None:
    known = shadow_models(400, 200, 100, leakage=1.5, spread=0.0)
    found = attack_performance(lira(*known[:3], online=online), known[3])
    assert found.auc == pytest.approx(special.ndtr(1.5 / np.sqrt(2)), abs=0.008)
    assert found.tpr[0.01] == pytest.approx(special.ndtr(1.5 + special.ndtri(0.01)), abs=0.03)


@pytest.mark.parametrize("variance", ["pooled", "own"])
@pytest.mark.parametrize("online", [True, False])
def test_without_leakage_the_area_is_a_half(variance, online) -> None:
    known = shadow_models(60, 200, 100, leakage=0.0)
    found = attack_performance(lira(*known[:3], online=online, variance=variance), known[3])
    # Four standard deviations of the area of 10,000 and 10,000 scores.
    assert found.auc == pytest.approx(0.5, abs=4 * np.sqrt(2 / 12 / 1e4))


def test_offline_needs_no_model_with_the_record() -> None:
    scores, membership, targets, _ = shadow_models()
    rest = np.zeros_like(membership)
    found = lira(scores, rest, targets, online=False, variance="own")
    expected = (targets - scores.mean(axis=0)) / scores.std(axis=0, ddof=1)
    assert found == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"record 0 in 0 models, must have .* at least 2"):
        lira(scores, rest, targets)


def test_far_scores_keep_their_order() -> None:
    scores, membership, targets, _ = shadow_models()
    far = np.stack([targets[0] + 1e3, targets[0] + 2e3])
    low, high = lira(scores, membership, far, online=False)
    assert np.all(high > low)


def test_an_unknown_variance_is_refused() -> None:
    with pytest.raises(ValueError, match=r"variance='global' must be one of \['own', 'pooled'\]"):
        lira(*shadow_models()[:3], variance="global")  # type: ignore[arg-type]
