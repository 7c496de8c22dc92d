from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bare_session import BareByHand, BareSession
from torch import nn

from lightning_audit.checks.probes import Witnesses
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.hooks.gradient_tap import GradientTap, Reading
from lightning_audit.record.store import DROPPED, INJECTED
from lightning_audit.session import reading as noise_watch
from lightning_audit.session.reading import (
    HandWrittenReading,
    NoiseWatch,
    PrivateReading,
    ReleaseWatch,
    divisors_of,
)
from lightning_audit.session.step import PlannedStep

CLAIM = StepClaim(noise_multiplier=1.0, max_grad_norm=2.0, scale=8.0)


def step() -> Any:
    """What is left of a step of five rows when its noise is in."""
    param = nn.Parameter(torch.zeros(4))
    param.grad = torch.tensor([1.0, 2.0, 3.0, 4.0])
    param.summed_grad = torch.tensor([0.0, 6.0, 0.0, 8.0])
    return SimpleNamespace(params=[param], batch_size=lambda: 5)


#: Coordinates that are read.
AT = {0: np.array([1, 3])}


def watch(
    number: int = 0, *, alone: bool = True, parts: int = 1, divisor: float | None = None
) -> NoiseWatch:
    """A watch that has read a step of six rows in its last part."""
    made, read = NoiseWatch(Witnesses(AT), alone=alone), step()
    for _ in range(parts - 1):
        made.skip(read)
    tap = GradientTap(torch.optim.SGD(read.params), read.params, AT)
    made.read(read, number, 6, tap.grads(), divisor, tap)
    return made


def read_at(factor: float | None) -> Reading:
    return Reading(np.zeros(2), factor=factor)


def test_the_release_stands_beside_its_sum_in_units_of_the_clipping_norm():
    made = watch()
    unit, seen = made.seen(CLAIM, 1, 8.0, read_at(1.0))
    assert (unit, seen.released.tolist()) == (4.0, [8.0, 16.0])
    assert (seen.sums.tolist(), seen.sum_norm) == ([3.0, 4.0], pytest.approx(5.0))
    assert (seen.terms, seen.split) == (6, False)
    assert made.seen(CLAIM, 1, 8.0, read_at(1.0))[1] is None  # once


@pytest.mark.parametrize(
    ("factor", "unit"), [(8 / 6, 16 / 3), (8 / 5, 6.4), (8 / 7, 4.0), (None, 4.0)]
)
def test_a_number_of_samples_counts_as_divisor(factor, unit):
    """Six rows, one of them a canary's; a factor that is neither says nothing of the sum."""
    assert watch().seen(CLAIM, 1, 8.0, read_at(factor))[0] == pytest.approx(unit)


@pytest.mark.parametrize(
    ("rows", "scale", "ratios"),
    [((8, 16), 16.0, (0.5, 1.0)), ((8,), 1.0, ()), ((0, 3), 16.0, ()), ((), 16.0, ())],
)
def test_divisors_are_those_that_something_could_be_divided_by(rows, scale, ratios):
    assert divisors_of(rows, scale) == ratios


def test_several_processes_know_neither_sum_nor_number_of_samples():
    unit, seen = watch(alone=False).seen(CLAIM, 1, 8.0, read_at(8 / 6))
    assert unit == 4.0
    assert seen.sums is None


def test_whole_tensors_are_read_in_units_of_the_claimed_noise():
    claim = StepClaim(noise_multiplier=0.5, max_grad_norm=2.0, scale=8.0)
    seen = watch(divisor=8.0).seen(claim, 1, 8.0, read_at(1.0))[1]
    # The gradient times its divisor is 8, 16, 24, 32; the noise has a standard deviation of one.
    assert seen.whole.entries.tolist() == [4.0]
    assert seen.whole.released.tolist() == [64.0 + 256.0 + 576.0 + 1024.0]
    assert seen.whole.noise.tolist() == [64.0 + 100.0 + 576.0 + 576.0]
    assert seen.whole.block.tolist() == [8.0, 10.0, 24.0, 24.0]


def test_whole_tensors_that_were_read_by_another_divisor_say_nothing():
    assert watch(divisor=8.0).seen(CLAIM, 1, 8.0, read_at(8 / 6))[1].whole is None
    assert watch().seen(CLAIM, 1, 8.0, read_at(1.0))[1].whole is None
    assert watch(divisor=8.0, alone=False).seen(CLAIM, 1, 8.0, read_at(1.0))[1].whole is None


def test_whole_tensors_and_blocks_of_entries_are_read_at_first_and_now_and_then():
    seen = {
        n: watch(n, divisor=8.0).seen(CLAIM, 0, 8.0, read_at(None))[1]
        for n in (0, 5, 6, 19, 20, 24, 99, 128)
    }
    whole = {n: one.whole for n, one in seen.items() if one.whole is not None}
    assert list(whole) == [0, 5, 6, 19, 24, 128]
    assert [n for n, one in whole.items() if one.block is not None] == [0, 5, 128]


def test_parts_of_a_split_batch_are_counted_together():
    seen = watch(parts=3).seen(CLAIM, 0, 8.0, read_at(None))[1]
    assert (seen.terms, seen.split) == (16, True)


def test_later_steps_are_read_now_and_then_and_claims_without_noise_never():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise_watch, "COMPARED", 0)  # the first steps of a process are all read
        seen = {n: watch(n).seen(CLAIM, 0, 8.0, read_at(None))[1] for n in range(98, 115)}
    assert [n for n, one in seen.items() if one is not None] == [98, 99, 112, 113]
    silent = StepClaim(0.0, 2.0, 8.0)
    assert watch().seen(silent, 0, 8.0, read_at(None)) == (4.0, None)


def read_banded(made: NoiseWatch, noise: float) -> Any:
    """What is seen of the next step, of a sum of (3, 4) and one noise in all entries."""
    param = nn.Parameter(torch.zeros(4))
    param.summed_grad = torch.tensor([0.0, 6.0, 0.0, 8.0])
    param.grad = (param.summed_grad + 2.0 * noise) / 8.0
    tap = GradientTap(torch.optim.SGD([param]), [param], AT)
    made.read(
        SimpleNamespace(params=[param], batch_size=lambda: 5), 300, 6, [param.grad], None, tap
    )
    return made.seen(CLAIM, 1, 8.0, read_at(1.0))[1]


def banded() -> NoiseWatch:
    return NoiseWatch(Witnesses(AT), alone=True, coefficients=(1.0, -0.5))


def test_of_correlated_noise_each_steps_own_draw_stands_beside_the_sum():
    made = banded()
    for noise, draw in ((1.0, 1.0), (-0.5, 0.0), (2.0, 2.0)):  # the second is of the first alone
        seen = read_banded(made, noise)
        assert seen.released - seen.sums == pytest.approx([draw, draw], abs=1e-5)


def test_the_noise_alone_is_not_shown_while_earlier_draws_are_left_in_it():
    made, kept = banded(), banded()
    read_banded(made, 1.0)
    made.drawn(np.array([1.0, 2.0, 3.0]), 1.0, None)
    kept.load(made.state())
    assert read_banded(made, 1.0).sums is not None
    after = [read_banded(kept, 1.0) for _ in range(10)]
    assert after[0].sums is None
    assert after[0].lack.startswith("noise draws of earlier steps are unknown")
    assert after[-1].sums is not None
    # What is read of all entries goes on where it was.
    read = np.array([0.5, 1.0, 1.5])
    assert kept.drawn(read, 1.0, None).tolist() == made.drawn(read, 1.0, None).tolist() == [1, 2, 3]


def test_no_checkpoint_holds_noise_alone():
    made = banded()
    read_banded(made, 1.0)
    made.drawn(np.zeros(3), 1.0, None)
    assert len(made.state()["draws"]) == 2


def test_releases_that_were_read_late_or_raw_are_counted_and_come_back():
    made, again, values = ReleaseWatch(), ReleaseWatch(), np.ones(3)
    for reading in (
        Reading(values, at_cut=True, raw=True),
        Reading(values),
        Reading(values, raw=True),
    ):
        made.update(reading, values, 1.0)
    again.load(made.state())
    assert (again.late, again.raw, again.weights_move) == (2, 2, False)


OWN_CLAIM = StepClaim(1.0, 2.0, 4.0)
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
    return HandWrittenReading(ManualStep(kind(net.parameters()), {}, OWN_CLAIM), COORDINATES)


def plan(status: int, coins: list[float]) -> PlannedStep:
    return PlannedStep(OWN_CLAIM, np.array(coins), (), status)


def test_a_private_optimizers_reading_counts_and_an_unclear_one_stands_in_the_way():
    way = PrivateReading(BareSession().session.step, COORDINATES)
    assert way.is_sure
    assert not way.is_shown  # it is the optimizer that shows it
    for unclear in (False, True):
        reading = Reading(VALUES, unclear=unclear)
        judged, lack = way.judged(reading, asked=False)
        assert judged is reading
        assert lack.startswith("the inner optimizer changes p.grad" if unclear else "")
        assert bool(lack) == unclear


def test_nothing_counts_of_an_unclear_reading_by_hand():
    judged, lack = by_hand().judged(Reading(VALUES, unclear=True), asked=True)
    assert np.isnan(judged.values).all()
    assert not judged.unclear
    assert lack.startswith("the optimizer clips or adds noise inside its own step")


def test_where_the_update_is_hidden_a_reading_counts_that_was_asked_for_or_shown():
    way = by_hand(HiddenUpdate)
    way.tap.opaque = True
    for asked, at_cut, counts in ((False, False, False), (True, False, True), (False, True, True)):
        judged, lack = way.judged(Reading(VALUES, at_cut=at_cut), asked=asked)
        assert np.isfinite(judged.values).all() == counts
        assert bool(lack) != counts
    assert not way.is_sure


def test_who_showed_a_release_once_is_told_to_show_it_in_every_step():
    way = by_hand()
    way.tap.cut_known = True
    assert way.is_shown
    _, lack = way.judged(Reading(VALUES, unclear=True), asked=True)
    assert lack.startswith("in some steps lightning_audit.released was not called")


def test_a_new_optimizer_over_the_same_parameters_is_read_at_the_same_place():
    bare = BareByHand()
    way: Any = bare.session.way
    way.tap.cut_known, before = True, way.tap
    way.follow(ManualStep(torch.optim.Adam(bare.net.parameters()), {}, OWN_CLAIM))
    assert way.tap is not before
    assert way.is_shown


def test_samples_are_those_that_were_handed_over_and_the_canaries_that_joined():
    bare = BareByHand()
    way: Any = bare.session.way
    assert way.samples(None) is None
    bare.session.step.hold(bare.sample_gradients())  # type: ignore[attr-defined]  # by hand
    assert way.samples(None) == 5
    assert way.samples(plan(INJECTED, [1.0, 1.0, 0.0])) == 7
    assert way.samples(plan(DROPPED, [1.0, 1.0, 0.0])) == 5
    way.end_step()
    assert way.samples(None) is None


def test_rows_of_a_private_step_are_counted_where_they_wait():
    bare = BareSession()
    bare.backward(announced=False)
    assert bare.session.way.samples(None) == 5
    bare.session.inject()
    entered = bare.session.planner.plan
    assert bare.session.way.samples(entered) == 5 + entered.coins.sum()


def test_released_gradients_are_put_in_the_order_of_the_parameters():
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
