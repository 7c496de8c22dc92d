from __future__ import annotations

import numpy as np
import pytest
from shadow_models import shadow_models

from lightning_audit import attacks
from lightning_audit.attacks import AttackPerformance, attack_performance


def test_figures_are_those_of_all_pairs() -> None:
    _, _, targets, inside = shadow_models(records=40, targets=5, seed=1)
    found = attack_performance(targets, inside, fpr=(0.1, 0.02))
    members, others = targets[inside], targets[~inside]
    pairs = [(x > y) + 0.5 * (x == y) for x in members for y in others]
    assert found.auc == pytest.approx(np.mean(pairs), abs=1e-12)
    for rate in (0.1, 0.02):
        passing = [t for t in others if np.mean(others > t) <= rate]
        assert found.tpr[rate] == max(np.mean(members > t) for t in passing)
    assert (found.members, found.non_members) == (members.size, others.size)


def test_a_monotone_transform_does_not_matter() -> None:
    _, _, targets, inside = shadow_models(records=40, targets=5, seed=2)
    assert attack_performance(np.exp(targets), inside) == attack_performance(targets, inside)


@pytest.mark.parametrize(
    ("membership", "message"),
    [
        ([[True, True]], "membership has 2 members and 0 others, must have some of both"),
        ([[False, False]], "membership has 0 members and 2 others"),
        ([[True]], r"membership has shape \(1, 1\), must be that of attacked, \(1, 2\)"),
        ([[1, 0]], "membership has dtype int64, must be bool"),
    ],
)
def test_bad_membership_is_named(membership, message) -> None:
    with pytest.raises(ValueError, match=message):
        attack_performance([[0.1, 0.2]], membership)


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="attacked holds nan"):
        attack_performance([[0.1, np.nan]], [[True, False]])


def test_the_room_gives_its_names() -> None:
    assert attacks.AttackPerformance is AttackPerformance
    for name in attacks.__all__:
        assert callable(getattr(attacks, name))
    with pytest.raises(AttributeError, match=r"'lightning_audit.attacks' has no attribute 'none'"):
        _ = attacks.none
