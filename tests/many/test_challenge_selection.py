"""Selection finds the records that models give away, by models that did not fit the attack."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_shadows import simulated

from lightning_audit._validate import BadArgument
from lightning_audit.many import Shadows, challenge_points

SHIFT = np.where(np.isin(np.arange(40), [3, 17, 29]), [[4.0]], 0.0)[0]


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


def test_what_cannot_be_selected_is_refused():
    made = simulated(8, 5, 0.0, np.random.default_rng(0), pairs=True)
    with pytest.raises(BadArgument, match="count=6 is larger than the number of records"):
        challenge_points(made, 6)
    with pytest.raises(ValueError, match="by="):
        challenge_points(made, 1, "luck")
    broken = simulated(8, 5, 0.0, np.random.default_rng(0), failed=range(7))
    with pytest.raises(BadArgument, match="1 models that did not fail"):
        challenge_points(broken, 1)
