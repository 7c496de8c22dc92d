from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bare_session import BareByHand, BareSession
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.checks.probes import Witnesses
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.hooks.gradient_tap import GradientTap
from lightning_audit.hooks.update_tap import UpdateTap
from lightning_audit.record.store import Observation
from lightning_audit.session import reading as noise_watch
from lightning_audit.session.reading import NoiseWatch, ReleaseWatch, divisors_of

CLAIM = StepClaim(noise_multiplier=1.0, max_grad_norm=2.0, scale=8.0)


def step() -> Any:
    """What is left of a step of five rows when its noise is in."""
    param = nn.Parameter(torch.zeros(4))
    param.grad = torch.tensor([1.0, 2.0, 3.0, 4.0])
    param.summed_grad = torch.tensor([0.0, 6.0, 0.0, 8.0])
    return SimpleNamespace(params=[param], batch_size=lambda: 5, sums_lack="")


#: Coordinates that are read.
AT = {0: np.array([1, 3])}


def watch(
    number: int = 0, *, alone: bool = True, parts: int = 1, divisor: float | None = None
) -> NoiseWatch:
    """A watch that has read a step of six rows in its last part."""
    made, read = NoiseWatch(Witnesses(AT), alone=alone), step()
    for _ in range(parts - 1):
        made.skip(5)
    tap = GradientTap(torch.optim.SGD(read.params), read.params, AT)
    made.read(read, number, 6, tap.grads(), divisor, tap)
    return made


def read_at(factor: float | None) -> Observation:
    return Observation(values=np.zeros(2), factor=factor)


def shown(
    made: NoiseWatch, canaries: int = 1, factor: float | None = 1.0, claim: StepClaim = CLAIM
) -> Observation:
    """The observation with the step's noise."""
    return made.completed(read_at(factor), claim, canaries, 8.0)[1]


def test_the_release_stands_beside_its_sum_in_units_of_the_clipping_norm():
    made = watch()
    unit, seen = made.completed(read_at(1.0), CLAIM, 1, 8.0)
    assert (unit, seen.released.tolist()) == (4.0, [8.0, 16.0])
    assert (seen.sums.tolist(), seen.sum_norm) == ([3.0, 4.0], pytest.approx(5.0))
    assert (seen.terms, seen.split) == (6, False)
    assert shown(made).released is None  # once


@pytest.mark.parametrize(
    ("factor", "unit"), [(8 / 6, 16 / 3), (8 / 5, 6.4), (8 / 7, 4.0), (None, 4.0)]
)
def test_a_number_of_samples_counts_as_divisor(factor, unit):
    """Six rows, one of them a canary's; a factor that is neither says nothing of the sum."""
    assert watch().completed(read_at(factor), CLAIM, 1, 8.0)[0] == pytest.approx(unit)


@pytest.mark.parametrize(
    ("rows", "scale", "ratios"),
    [((8, 16), 16.0, (0.5, 1.0)), ((8,), 1.0, ()), ((0, 3), 16.0, ()), ((), 16.0, ())],
)
def test_divisors_are_those_that_something_could_be_divided_by(rows, scale, ratios):
    assert divisors_of(rows, scale) == ratios


def test_several_processes_know_neither_sum_nor_number_of_samples():
    unit, seen = watch(alone=False).completed(read_at(8 / 6), CLAIM, 1, 8.0)
    assert unit == 4.0
    assert seen.sums is None


def test_whole_tensors_are_read_in_units_of_the_claimed_noise():
    claim = StepClaim(noise_multiplier=0.5, max_grad_norm=2.0, scale=8.0)
    seen = shown(watch(divisor=8.0), claim=claim)
    # The gradient times its divisor is 8, 16, 24, 32; the noise has a standard deviation of one.
    assert seen.entries.tolist() == [4.0]
    assert seen.squares.tolist() == [64.0 + 256.0 + 576.0 + 1024.0]
    assert seen.noise_squares.tolist() == [64.0 + 100.0 + 576.0 + 576.0]
    assert seen.block.tolist() == [8.0, 10.0, 24.0, 24.0]


def test_whole_tensors_that_were_read_by_another_divisor_say_nothing():
    assert shown(watch(divisor=8.0), factor=8 / 6).entries is None
    assert shown(watch()).entries is None
    assert shown(watch(divisor=8.0, alone=False)).entries is None


def test_whole_tensors_and_blocks_of_entries_are_read_at_first_and_now_and_then():
    seen = {n: shown(watch(n, divisor=8.0), 0, None) for n in (0, 5, 6, 19, 20, 24, 99, 128)}
    whole = {n: one for n, one in seen.items() if one.entries is not None}
    assert list(whole) == [0, 5, 6, 19, 24, 128]
    assert [n for n, one in whole.items() if one.block is not None] == [0, 5, 128]


def test_parts_of_a_split_batch_are_counted_together():
    seen = shown(watch(parts=3), 0, None)
    assert (seen.terms, seen.split) == (16, True)


def test_later_steps_are_read_now_and_then_and_claims_without_noise_never():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise_watch, "COMPARED", 0)  # the first steps of a process are all read
        seen = {n: shown(watch(n), 0, None) for n in range(98, 115)}
    assert [n for n, one in seen.items() if one.released is not None] == [98, 99, 112, 113]
    assert shown(watch(), 0, None, StepClaim(0.0, 2.0, 8.0)).released is None


def read_banded(made: NoiseWatch, noise: float) -> Any:
    """What is seen of the next step, of a sum of (3, 4) and one noise in all entries."""
    param = nn.Parameter(torch.zeros(4))
    param.summed_grad = torch.tensor([0.0, 6.0, 0.0, 8.0])
    param.grad = (param.summed_grad + 2.0 * noise) / 8.0
    tap = GradientTap(torch.optim.SGD([param]), [param], AT)
    made.read(
        SimpleNamespace(params=[param], batch_size=lambda: 5, sums_lack=""),
        300,
        6,
        [param.grad],
        None,
        tap,
    )
    return shown(made)


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
        Observation(values=values, at_cut=True, raw=True),
        Observation(values=values),
        Observation(values=values, raw=True),
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


def by_hand(kind: Any = torch.optim.SGD) -> UpdateTap:
    params = list(nn.Linear(4, 3).parameters())
    return UpdateTap(kind(params), params, COORDINATES)


def test_a_private_optimizers_reading_counts_and_an_unclear_one_stands_in_the_way():
    tap = BareSession().session.tap
    assert tap.is_sure
    assert not tap.is_shown  # it is the optimizer that shows it
    for unclear in (False, True):
        seen = Observation(values=VALUES, unclear=unclear)
        judged, lack = tap.judged(seen, asked=False)
        assert judged is seen
        assert lack.startswith("the inner optimizer changes p.grad" if unclear else "")
        assert bool(lack) == unclear


def test_nothing_counts_of_an_unclear_reading_by_hand():
    judged, lack = by_hand().judged(Observation(values=VALUES, unclear=True), asked=True)
    assert np.isnan(judged.values).all()
    assert not judged.unclear
    assert lack.startswith("the optimizer clips or adds noise inside its own step")


def test_where_the_update_is_hidden_a_reading_counts_that_was_asked_for_or_shown():
    tap = by_hand(HiddenUpdate)
    tap.opaque = True
    for asked, at_cut, counts in ((False, False, False), (True, False, True), (False, True, True)):
        judged, lack = tap.judged(Observation(values=VALUES, at_cut=at_cut), asked=asked)
        assert np.isfinite(judged.values).all() == counts
        assert bool(lack) != counts
    assert not tap.is_sure


def test_who_showed_a_release_once_is_told_to_show_it_in_every_step():
    tap = by_hand()
    tap.cut_known = True
    assert tap.is_shown
    _, lack = tap.judged(Observation(values=VALUES, unclear=True), asked=True)
    assert lack.startswith("in some steps lightning_audit.released was not called")


def test_a_new_optimizer_over_the_same_parameters_is_read_at_the_same_place():
    bare = BareByHand()
    before: Any = bare.session.tap
    before.cut_known = True
    assert bare.session.follow(ManualStep(torch.optim.Adam(bare.net.parameters()), {}, OWN_CLAIM))
    assert bare.session.tap is not before
    assert bare.session.tap.is_shown


@pytest.mark.parametrize("coins", [None, [1.0, 1.0], [0.0, 0.0]])
def test_samples_are_those_that_were_handed_over_and_the_canaries_that_joined(monkeypatch, coins):
    bare, read = BareByHand(), []
    monkeypatch.setattr(bare.session.noise, "read", lambda *given: read.append(given[2]))
    monkeypatch.setattr(bare.session.planner, "_toss", lambda _: np.array(coins, dtype=np.float64))
    grads, step = bare.sample_gradients(), bare.session.step
    bare.session.start_batch()
    step.hold(grads)  # type: ignore[attr-defined]  # by hand
    if coins is not None and bare.session.ask():
        grads = step.append(grads, {"weight": 0, "bias": 1})  # type: ignore[attr-defined]
        bare.session.handed()
    bare.update(bare.clipped_mean(grads))
    assert read == [5 + sum(coins or [])]
    bare.update(bare.clipped_mean(bare.sample_gradients()))
    assert read[1] is None  # nothing was handed over for it


def test_rows_of_a_private_step_are_counted_where_they_wait(monkeypatch):
    bare, read = BareSession(), []
    monkeypatch.setattr(bare.session.noise, "read", lambda *given: read.append(given[2]))
    bare.train(1, announced=False)
    coins = bare.column("coins")[0]
    assert read == [5 + coins.sum()]


def test_released_gradients_are_put_in_the_order_of_the_parameters():
    bare = BareByHand()
    step: Any = bare.session.step
    gradient = dict(reversed(bare.clipped_mean(bare.sample_gradients()).items()))
    tensors = step.released(gradient, bare.net, bare.net)
    assert [t is gradient[n] for t, n in zip(tensors, ("weight", "bias"), strict=True)] == [
        True,
        True,
    ]
    with pytest.raises(ValueError, match="expected"):
        step.released({**gradient, "bias": torch.zeros(7)}, bare.net, bare.net)


# --- The gradient beside its clipped sum, of real steps of Opacus' optimizers.

READ = {0: np.array([0, 5, 11]), 1: np.array([1])}


def grads_of(params: Any) -> list[torch.Tensor | None]:
    return [p.grad for p in params]


def stepped(sigma: float = 0.0, mode: str = "hooks", **settings: Any) -> Any:
    """A private optimizer as it is when its inner step starts; it takes none."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    more = {"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}
    made = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.zeros(8, 4)), 8),
        noise_multiplier=sigma,
        max_grad_norm=0.7,
        poisson_sampling=False,
        grad_sample_mode=mode,
        **more,
        **settings,
    )
    private, optimizer = made[0], made[1]
    criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
    criterion(private(torch.randn(8, 4)), torch.arange(8) % 3).backward()
    optimizer.pre_step()
    return optimizer


def noise_of(params: Any, number: int = 0, **options: bool) -> Observation:
    """What is seen of a step of a mean over 8 records, in units of the gradient's sum."""
    made = NoiseWatch(Witnesses(READ), **{"alone": True, **options})
    tap = GradientTap(torch.optim.SGD(params), params, READ)
    made.read(SimpleNamespace(params=params, sums_lack=""), number, 8, grads_of(params), 8.0, tap)
    claim = StepClaim(noise_multiplier=1.0, max_grad_norm=1.0, scale=8.0)
    return made.completed(Observation(), claim, 0, 8.0)[1]


def noise_reading(optimizer: Any, **options: Any) -> Observation:
    found = noise_of(optimizer.params, **options)
    assert found.released is not None
    return found


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_without_noise_the_gradient_is_the_sum_over_the_batch_size(mode):
    optimizer = stepped(mode=mode)
    found = noise_reading(optimizer)
    assert found.sums is not None
    np.testing.assert_allclose(found.released, found.sums, rtol=1e-5)
    assert np.abs(found.sums).max() > 0.01
    whole = torch.cat([p.summed_grad.flatten() for p in optimizer.params])
    assert found.sum_norm == pytest.approx(float(whole.norm()), rel=1e-6)
    assert found.sum_norm <= 8 * 0.7


def test_what_is_left_is_the_noise():
    generator = torch.Generator().manual_seed(7)
    noisy, plain = (
        noise_reading(stepped(2.0, noise_generator=generator)),
        noise_reading(stepped(0.0)),
    )
    again = torch.Generator().manual_seed(7)
    weight = torch.normal(0, 2.0 * 0.7, (3, 4), generator=again).flatten()[[0, 5, 11]]
    bias = torch.normal(0, 2.0 * 0.7, (3,), generator=again)[[1]]
    assert noisy.sums is not None
    assert plain.sums is not None
    np.testing.assert_allclose(noisy.sums, plain.sums, rtol=1e-6)
    noise = noisy.released - noisy.sums
    np.testing.assert_allclose(noise, torch.cat([weight, bias]).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strided", [(0,), (1,), (0, 1)])
def test_tensors_that_are_not_contiguous_are_read_as_well(strided):
    optimizer = stepped(1.0)
    expected = noise_reading(optimizer)
    for p in (optimizer.params[j] for j in strided):
        p.grad = torch.stack([p.grad, p.grad], dim=-1)[..., 0]
        p.summed_grad = torch.stack([p.summed_grad, p.summed_grad], dim=-1)[..., 0]
        assert not p.grad.is_contiguous()
    found = noise_reading(optimizer)
    np.testing.assert_array_equal(found.released, expected.released)
    assert found.sums is not None
    np.testing.assert_array_equal(found.sums, expected.sums)


def test_tensors_of_several_precisions_are_read_as_well():
    optimizer = stepped(1.0)
    expected = noise_reading(optimizer)
    optimizer.params[0].summed_grad = optimizer.params[0].summed_grad.double()
    assert noise_reading(optimizer).sum_norm == pytest.approx(expected.sum_norm, rel=1e-6)


def test_a_sum_that_became_the_gradient_in_place_is_no_sum():
    optimizer = stepped(1.0)
    for p in optimizer.params:
        p.grad = p.summed_grad.view_as(p)
    found = noise_reading(optimizer)
    assert found.sums is None
    assert found.sum_norm is None


def test_gradients_that_are_missing_or_coarse_give_no_reading():
    optimizer = stepped(1.0)
    optimizer.params[1].grad = None
    assert noise_of(optimizer.params).released is None
    net = nn.Linear(4, 3).to(torch.bfloat16)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    assert noise_of(list(net.parameters()), alone=False).released is None


# ------------------------------------------------------------------ whole tensors


@pytest.mark.parametrize("at_once", [5, 2**22])
def test_whole_tensors_are_read_with_sums(at_once, monkeypatch):
    monkeypatch.setattr(noise_watch, "_AT_ONCE", at_once)
    params = stepped(sigma=1.0).params
    read = noise_of(params)
    assert read.entries.tolist() == [12.0, 3.0]
    rest = [8.0 * p.grad.flatten() - p.summed_grad.flatten() for p in params]
    assert read.noise_squares == pytest.approx([float(r @ r) for r in rest], rel=1e-5)
    released = [float((8.0 * p.grad).square().sum()) for p in params]
    assert read.squares == pytest.approx(released, rel=1e-5)
    # Of three entries the first and the last.
    expected = torch.cat([rest[0], rest[1][[0, 2]]]).numpy()
    assert read.block == pytest.approx(expected, abs=1e-5)
    assert noise_of(params, number=8).block is None


def test_a_block_holds_both_ends_of_each_tensor(monkeypatch):
    monkeypatch.setattr(noise_watch, "BLOCK", 8)
    params = [nn.Parameter(torch.zeros(12)), nn.Parameter(torch.zeros(2, 2))]
    for p in params:
        p.summed_grad = torch.zeros_like(p)
        p.grad = torch.arange(float(p.numel())).view_as(p)
    assert noise_of(params).block.tolist() == [0.0, 8.0, 80.0, 88.0, 0.0, 8.0, 16.0, 24.0]


def test_whole_tensors_without_a_sum_or_of_low_precision_are_not_read():
    params = stepped(1.0).params
    params[1].summed_grad = None
    assert noise_of(params).entries is None
    params = stepped(1.0).params
    params[1].summed_grad = params[1].summed_grad.to(torch.bfloat16)
    assert noise_of(params).entries is None
