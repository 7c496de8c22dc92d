from __future__ import annotations

import numpy as np
import pytest
from shadow_models import shadow_models

from lightning_audit.attacks import lira, normal_ratio, rmia, score_difference, score_threshold

ATTACKS = [lira, normal_ratio, rmia, score_difference, score_threshold]


def changed(case: str):
    """Arguments of an attack, one of them bad."""
    scores, membership, targets, _ = shadow_models()
    if case == "nan":
        scores[3, 2] = np.nan
    elif case == "infinite target":
        targets[1, 0] = np.inf
    elif case == "vector":
        scores = scores[:, 0]
    elif case == "shape":
        membership = membership[:-1]
    elif case == "integers":
        membership = membership.astype(int)
    elif case == "records":
        targets = targets[:, :-1]
    return scores, membership, targets


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("nan", r"scores holds nan or infinity.*1 of 168, the first at index \(3, 2\)"),
        ("infinite target", r"targets holds nan or infinity.*first at index \(1, 0\)"),
        ("vector", r"scores has shape \(24,\), must be \[models, records\]"),
        ("shape", r"membership has shape \(23, 7\), must be that of scores, \(24, 7\)"),
        ("integers", "membership has dtype int64, must be bool"),
        ("records", r"targets has shape \(3, 6\), must be .* for 7 records"),
    ],
)
def test_bad_arguments_are_named(attack, case, message) -> None:
    with pytest.raises(ValueError, match=message):
        attack(*changed(case))


@pytest.mark.parametrize(
    ("attack", "side", "least"),
    [
        (lira, "in", 2),
        (lira, "out", 2),
        (normal_ratio, "in", 2),
        (normal_ratio, "out", 2),
        (rmia, "in", 1),
        (rmia, "out", 1),
        (score_difference, "out", 1),
    ],
)
def test_a_record_on_one_side_of_too_few_models_is_named(attack, side, least) -> None:
    scores, membership, targets, _ = shadow_models()
    membership[:, 4] = side == "out"
    membership[: least - 1, 4] = side == "in"
    among = {"in": "in", "out": "out of"}[side]
    message = rf"record 4 {among} {least - 1} models, must have .* least {least} \(fewer: 1 of 7"
    with pytest.raises(ValueError, match=message):
        attack(scores, membership, targets)
    membership[: least + 1, 4] = side == "in"
    attack(scores, membership, targets)


@pytest.mark.parametrize("side", ["in", "out"])
def test_equal_scores_of_a_record_have_no_spread_of_their_own(side) -> None:
    scores, membership, targets, _ = shadow_models()
    scores[membership[:, 5] == (side == "in"), 5] = 0.1
    message = f"scores of record 5 by the models that it is {side}.* are equal .* pooled variance"
    for attack in (normal_ratio, lambda *a: lira(*a, variance="own")):
        with pytest.raises(ValueError, match=message):
            attack(scores, membership, targets)
    assert np.isfinite(lira(scores, membership, targets)).all()
    with pytest.raises(ValueError, match="random seeds of their own"):
        lira(np.full_like(scores, 0.1), membership, targets)


def test_arguments_are_not_changed() -> None:
    known = shadow_models()
    before = [a.copy() for a in known]
    for attack in ATTACKS:
        attack(*known[:3])[:] = 0.0
    assert all(np.array_equal(a, b) for a, b in zip(known, before, strict=True))
