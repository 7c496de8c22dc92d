from __future__ import annotations

import pytest

from lightning_audit.many.training_audit import posteriors_of
from lightning_audit.stats._arguments import ConfusionCounts


@pytest.fixture(scope="module")
def counts() -> ConfusionCounts:
    return ConfusionCounts(fn=35, tp=65, fp=25, tn=75)


def test_intervals_of_the_published_example(counts: ConfusionCounts) -> None:
    found = posteriors_of(counts, 0.05, 0.95)
    assert found.epsilon == pytest.approx((0.52179, 1.26665), abs=1e-5)  # 000: 0.522, 1.268
    assert (found.level, found.delta) == (0.95, 0.05)
    assert found.mu[0] < found.mu[1]


def test_an_attack_that_may_be_weak_leaves_a_larger_epsilon_possible(
    counts: ConfusionCounts,
) -> None:
    found = posteriors_of(counts, 1e-5)
    assert found.epsilon_of_strength is not None
    assert found.strength is not None
    assert found.epsilon_of_strength[1] > found.epsilon[1]
    assert 0 < found.strength[0] < found.strength[1] <= 1


def test_without_scores_of_a_data_set_the_strength_is_unknown() -> None:
    found = posteriors_of(ConfusionCounts(fn=0, tp=9, fp=0, tn=0), 1e-5)
    assert found.epsilon_of_strength is None
    assert found.strength is None


def test_an_attack_without_errors_has_intervals() -> None:
    found = posteriors_of(ConfusionCounts(fn=0, tp=50, fp=0, tn=50), 1e-5)
    assert found.epsilon[0] > 2
    assert found.epsilon_of_strength is not None
    assert found.epsilon_of_strength[0] > 1


def test_a_level_that_is_no_probability_is_refused(counts: ConfusionCounts) -> None:
    with pytest.raises(ValueError, match=r"level=1\.0"):
        posteriors_of(counts, 0.0, 1.0)
