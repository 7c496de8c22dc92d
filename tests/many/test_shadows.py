"""Groups of shadow models share no model, and no pair is divided."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_shadows import simulated

from lightning_audit._validate import BadArgument
from lightning_audit.many import Shadows

MADE = simulated(16, 5, 0.0, np.random.default_rng(0), pairs=True, failed=[3])


def test_groups_are_whole_pairs_and_share_no_model():
    groups = MADE.split(3, 3, 2)
    assert [len(group) for group in groups] == [6, 6, 4]
    assert np.array_equal(np.concatenate([group.seeds for group in groups]), MADE.seeds)
    for group in groups:
        assert (group.membership[::2] == ~group.membership[1::2]).all()


def test_failed_models_are_left_out_of_what_is_fitted_only():
    assert MADE.failed.tolist() == [False, False, False, True, *[False] * 12]
    assert len(MADE.finished()) == 15
    assert not MADE.finished().pairs
    firsts = MADE.firsts()
    assert len(firsts) == 8
    assert np.array_equal(firsts.seeds, MADE.seeds[::2])
    joined = firsts.joined(MADE.finished())
    assert len(joined) == 23


@pytest.mark.parametrize("shares", [(1, 0), (1, -2), (1, 100)])
def test_a_group_without_models_is_refused(shares):
    with pytest.raises(ValueError, match="shares"):
        MADE.split(*shares)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"membership": MADE.membership[:, :4]}, "must be .models, records. twice"),
        ({"membership": MADE.membership.astype(int)}, "must hold True or False"),
        ({"scores": np.where(np.arange(5) == 2, np.nan, MADE.scores)}, "scores must be finite"),
        ({"scores": MADE.scores * np.inf}, "scores must be finite"),
    ],
)
def test_other_arrays_are_refused(change, match):
    given = {"scores": MADE.scores, "membership": MADE.membership, "seeds": MADE.seeds, **change}
    with pytest.raises(BadArgument, match=match), np.errstate(invalid="ignore"):
        Shadows(**given)


def test_models_of_other_records_and_odd_pairs_are_refused():
    with pytest.raises(BadArgument, match="join models of one data set"):
        MADE.joined(simulated(4, 6, 0.0, np.random.default_rng(0)))
    with pytest.raises(BadArgument, match="no complementary pairs"):
        MADE.chosen(np.arange(3))
