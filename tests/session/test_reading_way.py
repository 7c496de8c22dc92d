from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from bare_session import BareByHand, BareSession
from torch import nn

from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.hooks.gradient_tap import Reading
from lightning_audit.record.store import DROPPED, INJECTED
from lightning_audit.session.reading import HandWrittenReading, PrivateReading
from lightning_audit.session.step import PlannedStep

CLAIM = StepClaim(1.0, 2.0, 4.0)
COORDINATES = {0: np.array([0, 5]), 1: np.array([1])}
VALUES = np.array([0.5, -1.0, 2.0])


class HiddenUpdate(torch.optim.Optimizer):
    """Updates in a step of its own, which no hook sees the inside of."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p -= p.grad


def by_hand(kind: Any = torch.optim.SGD) -> HandWrittenReading:
    net = nn.Linear(4, 3)
    return HandWrittenReading(ManualStep(kind(net.parameters()), {}, CLAIM), COORDINATES)


def plan(status: int, coins: list[float]) -> PlannedStep:
    return PlannedStep(CLAIM, np.array(coins), (), status)


def test_a_private_optimizers_reading_counts_and_an_unclear_one_stands_in_the_way() -> None:
    way = PrivateReading(BareSession().session.step, COORDINATES)
    assert way.is_sure
    assert not way.is_shown  # it is the optimizer that shows it
    for unclear in (False, True):
        reading = Reading(VALUES, unclear=unclear)
        judged, lack = way.judged(reading, asked=False)
        assert judged is reading
        assert lack.startswith("the inner optimizer changes p.grad" if unclear else "")
        assert bool(lack) == unclear


def test_nothing_counts_of_an_unclear_reading_by_hand() -> None:
    judged, lack = by_hand().judged(Reading(VALUES, unclear=True), asked=True)
    assert np.isnan(judged.values).all()
    assert not judged.unclear
    assert lack.startswith("the optimizer clips or adds noise inside its own step")


def test_where_the_update_is_hidden_a_reading_counts_that_was_asked_for_or_shown() -> None:
    way = by_hand(HiddenUpdate)
    way.tap.opaque = True
    for asked, at_cut, counts in (
        (False, False, False),
        (True, False, True),
        (False, True, True),
    ):
        judged, lack = way.judged(Reading(VALUES, at_cut=at_cut), asked=asked)
        assert np.isfinite(judged.values).all() == counts
        assert bool(lack) != counts
    assert not way.is_sure


def test_who_showed_a_release_once_is_told_to_show_it_in_every_step() -> None:
    way = by_hand()
    way.tap.cut_known = True
    assert way.is_shown
    _, lack = way.judged(Reading(VALUES, unclear=True), asked=True)
    assert lack.startswith("in some steps lightning_audit.released was not called")


def test_a_new_optimizer_over_the_same_parameters_is_read_at_the_same_place() -> None:
    bare = BareByHand()
    way: Any = bare.session.way
    way.tap.cut_known, before = True, way.tap
    again = torch.optim.Adam(bare.net.parameters())
    way.follow(ManualStep(again, {}, CLAIM))
    assert way.tap is not before
    assert way.is_shown


def test_samples_are_those_that_were_handed_over_and_the_canaries_that_joined() -> None:
    bare = BareByHand()
    way: Any = bare.session.way
    assert way.samples(None) is None
    bare.session.step.hold(bare.sample_gradients())  # type: ignore[attr-defined]  # by hand
    assert way.samples(None) == 5
    assert way.samples(plan(INJECTED, [1.0, 1.0, 0.0])) == 7
    assert way.samples(plan(DROPPED, [1.0, 1.0, 0.0])) == 5
    way.end_step()
    assert way.samples(None) is None


def test_rows_of_a_private_step_are_counted_where_they_wait() -> None:
    bare = BareSession()
    bare.backward(announced=False)
    assert bare.session.way.samples(None) == 5
    bare.session.inject()
    entered = bare.session.planner.plan
    assert entered is not None
    assert bare.session.way.samples(entered) == 5 + entered.coins.sum()


def test_released_gradients_are_put_in_the_order_of_the_parameters() -> None:
    bare = BareByHand()
    way: Any = bare.session.way
    gradient = dict(reversed(bare.clipped_mean(bare.sample_gradients()).items()))
    tensors = way.released(gradient, bare.net, bare.net)
    assert [t is gradient[n] for t, n in zip(tensors, ("weight", "bias"), strict=True)] == [
        True,
        True,
    ]
    with pytest.raises(ValueError, match="expected"):
        way.released({**gradient, "bias": torch.zeros(7)}, bare.net, bare.net)
