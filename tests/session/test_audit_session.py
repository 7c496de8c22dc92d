"""A session reads its canaries, leaves none, and goes on with another optimizer or after a stop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bare_session import BareSession

from lightning_audit.canaries import Dirac
from lightning_audit.dpsgd.opacus import OpacusStep

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


@pytest.mark.parametrize("announced", [True, False])
def test_what_is_read_is_the_coin_and_the_update_has_nothing_of_it(announced: bool) -> None:
    bare = BareSession()
    before = [p.detach().clone() for p in bare.net.parameters()]
    bare.train(20, announced=announced)
    coins = bare.column("coins")
    assert 0.2 < coins.mean() < 0.8
    np.testing.assert_allclose(bare.column("readings"), coins, atol=1e-6)
    for old, new in zip(before, bare.net.parameters(), strict=True):
        torch.testing.assert_close(old, new.detach(), rtol=0, atol=1e-6)


def test_a_session_that_goes_on_has_the_coins_and_remarks_of_one_without_a_stop() -> None:
    whole, first, second = BareSession(), BareSession(), BareSession()
    whole.train(12, announced=False)
    first.train(7, announced=False)
    second.session.load(first.session.state())
    torch.manual_seed(1)  # or its noise would start again
    second.train(5, announced=False)
    parts = np.concatenate([first.column("coins"), second.column("coins")])
    np.testing.assert_array_equal(parts, whole.column("coins"))
    assert second.session.recorder.steps == 12
    assert second.session.planner.notes == whole.session.planner.notes
    assert second.session.releases.late == whole.session.releases.late == 12


def test_a_state_is_left_alone_by_the_steps_that_follow() -> None:
    bare = BareSession()
    state = bare.session.state()
    bare.session.planner.pass_blockers.append("something")
    bare.train(2)
    assert state["planner"]["pass_blockers"] == []
    assert state["releases"]["late"] == 0


def test_another_runs_canaries_are_refused() -> None:
    state = BareSession().session.state()
    with pytest.raises(ValueError, match="resume with the same canaries, num_canaries and preci"):
        BareSession(canaries=(Dirac(),)).session.load(state)


def test_a_new_optimizer_is_followed_over_the_same_parameters_only() -> None:
    bare, other = BareSession(), BareSession()
    bare.train(3)
    bare.optimizer = bare.new_optimizer()
    assert not bare.session.follow(OpacusStep(other.optimizer, {}))
    assert bare.session.follow(OpacusStep(bare.optimizer, {}, bare.net.modules()))
    bare.train(3)
    assert bare.session.recorder.steps == 6
    bare.session.detach()
    bare.train(3)
    assert bare.session.recorder.steps == 6
