"""Rows laid out before the backward pass give the gradients that appended rows give, to the bit."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module import create_or_accumulate_grad_sample
from opacus.grad_sample.utils import wrap_model
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizer
from small_nets import Factor, Tied
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from lightning_audit.canaries import Dirac, Random, Spread
from lightning_audit.canaries.gradient import place
from lightning_audit.dpsgd import opacus
from lightning_audit.dpsgd.opacus import (
    BUFFER,
    OpacusStep,
    RowBuffer,
    draw_places,
    opacus_adds,
    rows_of_records,
    swap_rows,
)
from lightning_audit.dpsgd.protocol import Backward
from lightning_audit.layout import Direction

pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing when gradients are computed:UserWarning"
)

NORM = 700.0
B = 5


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = DPMultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.embed(x))
        return self.head(self.attention(h, h, h)[0].mean(1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(torch.tanh(self.layer(x))))


def frozen() -> nn.Module:
    net = cnn()
    net[0].weight.requires_grad_(False)
    net[4].bias.requires_grad_(False)
    return net


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], *, packed: bool = False) -> None:
        super().__init__()
        self.layer, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 2)
        self.packed = packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.packed:
            return self.head(self.layer(x)[0][:, -1])
        lengths = torch.tensor([3, 3, 2, 1, 1])
        _, last = self.layer(pack_padded_sequence(x, lengths, batch_first=True))
        return self.head((last[0] if isinstance(last, tuple) else last)[-1])


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class Halves(nn.Module):
    """A layer that sees both halves of the input as one batch of twice the size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(2, 4), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.layer(torch.cat([x[:, :2], x[:, 2:]]))
        return self.head(torch.cat(both.chunk(2), dim=1))


class Bag(nn.Module):
    """The batch's size is that of the last input, not of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(11, 4, mode="sum")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bag(x.flatten(), torch.arange(0, x.numel(), x.shape[1]))


class LowInside(nn.Module):
    """The user's own autocast, of which the Trainer's precision tells nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def words(rows: int = B) -> torch.Tensor:
    return torch.randint(0, 11, (rows, 3), generator=torch.Generator().manual_seed(1))


# ------------------------------------------------------------------ one training, twice


@dataclass
class Setting:
    model: nn.Module
    optimizer: DPOptimizer
    step: OpacusStep
    directions: list[Direction]

    def backward(self, batch: torch.Tensor) -> None:
        loss(self.model, batch).backward()

    def held(self) -> list[Any]:
        return [p.grad_sample for p in self.step.params]

    def copy(self) -> None:
        self.step.copy_in(self.directions, NORM)

    def lay_out(self, batch: torch.Tensor) -> None:
        """The backward pass with rows laid out for it, and concealed behind it."""
        value = loss(self.model, batch)
        assert self.prepare() == ""
        value.backward()
        self.step.conceal()

    def prepare(self) -> str:
        """Why not; empty if the rows are laid out."""
        if obstacle := self.step.obstacle(Backward(None)):
            return obstacle
        self.step.lay_out(self.directions, NORM)
        return ""


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().pow(2).sum()


def setting(
    net: Callable[[], nn.Module],
    *,
    mode: str = "hooks",
    wrap: bool = True,
    batch_first: bool = True,
    reduction: str = "mean",
    noise: float = 0.0,
) -> Setting:
    torch.manual_seed(3)
    model = net()
    made = wrap_model(
        model, mode, wrap_model=wrap, batch_first=batch_first, loss_reduction=reduction
    )
    model = made if wrap else model
    optimizer = DPOptimizer(
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        noise_multiplier=noise,
        max_grad_norm=0.7,
        expected_batch_size=8,
        loss_reduction=reduction,
    )
    step = OpacusStep(optimizer, {}, model.modules())
    rng = np.random.default_rng(0)
    directions = place([Dirac(), Spread(), Random()], step.layout, rng).draw(rng)
    return Setting(model, optimizer, step, directions)


def assert_same(ours: Setting, theirs: Setting) -> None:
    """Equal per-sample gradients, row by row, and equal gradients after clipping."""
    for mine, other in zip(ours.held(), theirs.held(), strict=True):
        pairs = zip(_list(mine), _list(other), strict=True)
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    for made in (ours, theirs):
        assert made.optimizer.pre_step()
    for p, q in zip(ours.step.params, theirs.step.params, strict=True):
        assert torch.equal(p.grad, q.grad)
        assert p.grad.abs().sum() > 0


def _list(held: Any) -> list[torch.Tensor]:
    return held if isinstance(held, list) else [held]


def assert_nothing_waits(made: Setting) -> None:
    assert not any(hasattr(p, "_current_grad_sample") for p in made.step.params)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, dict[str, Any]]] = {
    "mlp": (mlp, numbers(B, 4), {}),
    "mlp, sum": (mlp, numbers(B, 4), {"reduction": "sum"}),
    "low precision inside": (LowInside, numbers(B, 4), {}),
    "mlp, functorch": (mlp, numbers(B, 4), {"mode": "functorch"}),
    "mlp, not wrapped": (mlp, numbers(B, 4), {"wrap": False}),
    "mlp of sequences": (mlp, numbers(B, 2, 4), {}),
    "mlp, one": (mlp, numbers(1, 4), {}),
    "mlp, double": (lambda: mlp().double(), numbers(B, 4).double(), {}),
    "mlp, bfloat16": (lambda: mlp().bfloat16(), numbers(B, 4).bfloat16(), {}),
    "cnn": (cnn, numbers(B, 2, 3, 3), {}),
    "cnn, nobody": (cnn, numbers(0, 2, 3, 3), {}),
    "frozen": (frozen, numbers(B, 2, 3, 3), {}),
    "attention": (Attention, words(), {}),
    "tied": (Tied, numbers(B, 4), {}),
    "twice": (Twice, numbers(B, 4), {}),
    "no dimension": (lambda: nn.Sequential(nn.Linear(4, 3), Factor()), numbers(B, 4), {}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_laid_out_give_what_appended_rows_give_to_the_bit(name):
    net, batch, how = NETWORKS[name]
    laid, copied = setting(net, **how), setting(net, **how)
    for made in (laid, copied):  # a second step meets what the first left behind
        made.optimizer.zero_grad()
    for _ in range(2):
        loss_laid, loss_copied = loss(laid.model, batch), loss(copied.model, batch)
        assert laid.prepare() == ""
        waiting = [p._current_grad_sample for p in laid.step.params]
        loss_laid.backward()
        loss_copied.backward()
        buffers = [stand_in.whole for stand_in in waiting]
        # No torch.cat: Opacus' own gradients are the tensors that hold the canaries.
        assert all(mine is other for mine, other in zip(laid.held(), buffers, strict=True))
        laid.step.conceal()
        assert all(map(torch.equal, laid.held(), copied.held()))
        assert laid.step.batch_size() == len(batch)
        assert laid.step.put_in()
        copied.copy()
        assert all(mine is other for mine, other in zip(laid.held(), buffers, strict=True))
        assert laid.step.batch_size() == len(batch) + len(laid.directions)
        assert_same(laid, copied)
        assert_nothing_waits(laid)
        for made in (laid, copied):
            made.optimizer.original_optimizer.step()
            made.optimizer.zero_grad()
    for p, q in zip(laid.step.params, copied.step.params, strict=True):
        assert torch.equal(p, q)


GUARDED: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, dict[str, Any], str]] = {
    "lstm": (lambda: Recurrent(DPLSTM), numbers(B, 3, 4), {}, "recurrent"),
    "packed gru": (lambda: Recurrent(DPGRU, packed=True), numbers(B, 3, 4), {}, "recurrent"),
    "batch second": (mlp, numbers(3, B, 4), {"batch_first": False}, "not the first dimension"),
    "expanded weights": (mlp, numbers(B, 4), {"mode": "ew"}, "no module computes"),
    "bag": (Bag, words(), {}, "several sizes"),
}


@pytest.mark.parametrize("name", GUARDED)
def test_what_cannot_be_laid_out_is_said_and_copied(name):
    net, batch, how, reason = GUARDED[name]
    guarded, plain = setting(net, **how), setting(net, **how)
    values = [loss(made.model, batch) for made in (guarded, plain)]
    assert reason in guarded.prepare()
    assert_nothing_waits(guarded)
    for value in values:
        value.backward()
    guarded.step.conceal()
    assert not guarded.step.put_in()
    assert all(map(torch.equal, guarded.held(), plain.held()))
    for made in (guarded, plain):
        made.copy()
    assert_same(guarded, plain)


@pytest.mark.parametrize(
    ("net", "told", "error", "words"),
    [
        (Unused, "not every trained parameter", ValueError, "sample gradient is not initialized"),
        (Halves, "several sizes", RuntimeError, "stack expects each tensor to be equal size"),
    ],
)
def test_layers_without_their_batch_are_said_and_fail_as_without_an_audit(net, told, error, words):
    made = setting(net)
    value = loss(made.model, numbers(B, 4))
    assert told in made.prepare()
    assert_nothing_waits(made)
    value.backward()
    assert not made.step.put_in()
    assert {len(held) for held in made.held() if held is not None} <= {B, 2 * B}
    with pytest.raises(error, match=words):
        made.optimizer.pre_step()


class AddsByItself(GradSampleModule):
    """Fills the buffers with code of its own, which looks at what is there."""

    def capture_backprops_hook(self, module: Any, *args: Any, **kwargs: Any) -> None:
        for p in module.parameters():
            assert getattr(p, "_current_grad_sample", torch.zeros(1)).shape
        super().capture_backprops_hook(module, *args, **kwargs)


def test_a_hook_of_the_users_own_meets_no_buffer_of_the_audit():
    model = AddsByItself(mlp())
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=0.7,
        expected_batch_size=8,
    )
    made = Setting(model, optimizer, OpacusStep(optimizer, {}, model.modules()), [])
    value = loss(model, numbers(B, 4))
    assert "no module computes" in made.prepare()
    value.backward()
    assert all(len(held) == B for held in made.held())


def test_gradients_that_wait_already_are_said_and_the_last_of_them_grows():
    laid, copied = setting(mlp), setting(mlp)
    for made in (laid, copied):
        made.backward(numbers(3, 4))
    values = [loss(made.model, numbers(B, 4)) for made in (laid, copied)]
    assert "summed up" in laid.prepare()
    for value in values:
        value.backward()
    assert not laid.step.put_in()
    for made in (laid, copied):
        made.copy()
    assert [len(rows) for rows in laid.held()[0]] == [3, B + len(laid.directions)]
    assert_same(laid, copied)


def test_no_canary_among_the_chosen_adds_no_row_and_without_modules_none_is_laid_out():
    laid, plain = setting(mlp), setting(mlp)
    step = OpacusStep(plain.optimizer, {})
    laid.directions.clear()
    laid.lay_out(numbers(B, 4))
    value = loss(plain.model, numbers(B, 4))
    assert "no module computes" in step.obstacle(Backward(None))
    assert "did not see the backward pass begin" in step.obstacle(Backward(None, announced=False))
    value.backward()
    assert laid.step.put_in()
    assert not step.put_in()
    assert laid.step.batch_size() == B
    assert_same(laid, plain)


def test_a_second_backward_pass_in_the_step_is_no_obstacle():
    laid, plain = setting(mlp), setting(mlp)
    laid.lay_out(numbers(B, 4))
    laid.backward(numbers(3, 4))
    for size in (B, 3):
        plain.backward(numbers(size, 4))
    for mine, other in zip(laid.held(), plain.held(), strict=True):
        assert all(map(torch.equal, mine, other))
    assert laid.step.put_in()
    assert laid.optimizer.accumulated_iterations == 2
    assert laid.step.batch_size() == B + 3 + len(laid.directions)
    laid.step.take_out()
    assert_same(laid, plain)


def test_two_forward_passes_and_their_two_backward_passes_fill_one_buffer():
    laid, copied = setting(mlp), setting(mlp)
    batches = numbers(B, 4), numbers(B, 4).flip(0)
    values = [[loss(made.model, batch) for batch in batches] for made in (laid, copied)]
    assert laid.prepare() == ""
    for mine, other in zip(*values, strict=True):
        mine.backward()
        laid.step.conceal()
        other.backward()
    assert laid.step.put_in()
    copied.copy()
    assert_same(laid, copied)


def test_two_forward_passes_and_one_backward_pass_leave_opacus_as_it_would_be():
    """Opacus waits for the other backward pass; what the first gave stays where it was."""
    laid, plain = setting(mlp), setting(mlp)
    values = []
    for made in (laid, plain):
        made.model(numbers(B, 4))
        values.append(loss(made.model, numbers(B, 4)))
    assert laid.prepare() == ""
    for value in values:
        value.backward()
    assert not laid.step.put_in()
    for p, q in zip(laid.step.params, plain.step.params, strict=True):
        assert p.grad_sample is q.grad_sample is None
        assert torch.equal(p._current_grad_sample, q._current_grad_sample)
    assert "not finished" in laid.prepare()
    for made in (laid, plain):
        with pytest.raises(ValueError, match="Per sample gradient is not initialized"):
            made.optimizer.pre_step()


def test_a_backward_pass_that_reaches_one_layer_leaves_no_buffer_on_the_others():
    made = setting(mlp)
    hidden: Any = made.model(numbers(B, 4))
    assert hidden.shape == (B, 3)
    assert made.prepare() == ""
    torch.autograd.grad(hidden.sum(), [made.model._module[2].weight])
    made.step.conceal()
    assert not made.step.put_in()
    assert not any(hasattr(p, "_current_grad_sample") for p in made.step.params)
    for held in made.held():
        assert held is None or len(held) == B


# ------------------------------------------------------------------ dropped and taken back


def test_dropped_gradients_are_not_confirmed_and_nothing_is_left():
    made = setting(mlp)
    made.lay_out(numbers(B, 4))
    made.optimizer.zero_grad()
    assert not made.step.put_in()
    assert made.held() == [None] * 4
    assert_nothing_waits(made)


def test_one_parameter_without_its_rows_takes_them_from_all():
    made, plain = setting(mlp), setting(mlp)
    made.lay_out(numbers(B, 4))
    made.step.params[1].grad_sample = made.step.params[1].grad_sample.clone()
    assert not made.step.put_in()
    plain.backward(numbers(B, 4))
    assert_same(made, plain)


#: Of the gradients of each tensor.
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scaled": lambda grads: 0.5 * grads,
    "scaled in place": lambda grads: grads.mul_(0.5),
    "cut": lambda grads: grads[:2],
    "centred": lambda grads: grads - grads.mean(0),
}


def clip_at_the_median(made: Setting) -> None:
    norms = [p.grad_sample.flatten(1).norm(dim=1) for p in made.step.params]
    made.optimizer.max_grad_norm = float(torch.stack(norms).norm(dim=0).median())


@pytest.mark.parametrize("change", [*CHANGES, "clips at the median"])
def test_code_before_the_step_meets_no_canary(change):
    laid, copied = setting(mlp), setting(mlp)
    laid.lay_out(numbers(B, 4))
    copied.backward(numbers(B, 4))
    for made in (laid, copied):
        if change not in CHANGES:
            clip_at_the_median(made)
            continue
        for p in made.step.params:
            p.grad_sample = CHANGES[change](p.grad_sample)
    if not laid.step.put_in():
        laid.copy()
    copied.copy()
    assert laid.optimizer.max_grad_norm == copied.optimizer.max_grad_norm
    assert_same(laid, copied)


def _laid_out(made: Setting) -> Iterator[str]:
    value = loss(made.model, numbers(B, 4))
    assert made.prepare() == ""
    value.backward()
    yield "after the backward pass"
    made.step.conceal()
    yield "concealed"
    assert made.step.put_in()
    yield "confirmed"


def _copied(made: Setting) -> Iterator[str]:
    made.backward(numbers(B, 4))
    made.copy()
    yield "copied"


@pytest.mark.parametrize("stages", [1, 2, 3, "copied"])
@pytest.mark.parametrize("listed", [False, True])
def test_withdrawn_rows_leave_the_users_gradients_alone(stages, listed):
    made, plain = setting(mlp), setting(mlp)
    way = _copied(made) if stages == "copied" else _laid_out(made)
    for _ in range(1 if stages == "copied" else stages):
        next(way)
    plain.backward(numbers(B, 4))
    if listed:
        for each in (made, plain):
            each.backward(numbers(3, 4))
    assert made.step.batch_size() >= plain.step.batch_size()
    made.step.take_out()
    assert made.step.batch_size() == plain.step.batch_size() == B + 3 * listed
    assert made.optimizer.accumulated_iterations == 1 + listed
    assert_nothing_waits(made)
    assert_same(made, plain)


def test_withdrawing_before_the_backward_pass_leaves_no_trace():
    made, plain = setting(mlp), setting(mlp)
    values = [loss(each.model, numbers(B, 4)) for each in (made, plain)]
    assert made.prepare() == ""
    made.step.take_out()
    made.step.take_out()
    assert_nothing_waits(made)
    for value in values:
        value.backward()
    assert not made.step.put_in()
    assert_same(made, plain)


def test_the_step_frees_the_gradients_although_the_adapter_knows_them():
    made = setting(mlp)
    for _ in _laid_out(made):
        pass
    held = [weakref.ref(p.grad_sample) for p in made.step.params]
    assert all(ref() is not None for ref in held)
    made.optimizer.zero_grad()
    assert all(ref() is None for ref in held)


# --- What Opacus adds its per-sample gradients to, before there is a tensor.


def buffer_for(batch: int) -> tuple[torch.nn.Parameter, RowBuffer]:
    """A parameter of shape [2, 3], and what stands in its buffer's place with two spare rows."""
    param = torch.nn.Parameter(torch.zeros(2, 3))
    return param, RowBuffer(param, batch, spare=2)


def add(param: torch.nn.Parameter, gradients: torch.Tensor) -> None:
    create_or_accumulate_grad_sample(param=param, grad_sample=gradients, max_batch_len=7)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_gradients_are_summed_up_before_the_spare_rows(times):
    param, buffer = buffer_for(batch=4)
    gradients = torch.randn(times, 4, 2, 3)
    for part in gradients:
        add(param, part)
    whole: Any = getattr(param, BUFFER)
    assert whole is buffer.whole
    assert torch.equal(whole[:4], sum(gradients[1:], gradients[0].clone()))
    assert torch.equal(whole[4:], torch.zeros(2, 2, 3))


@pytest.fixture
def new_memory_is_nan():
    """torch fills memory that nobody has written to with NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.ones(1).new_empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("new_memory_is_nan")
def test_records_without_gradients_have_zeros():
    param, _ = buffer_for(batch=4)
    add(param, torch.ones(1, 2, 3))
    add(param, torch.ones(3, 2, 3))
    whole: Any = getattr(param, BUFFER)
    assert whole[:4].sum(dim=(1, 2)).tolist() == [12.0, 6.0, 6.0, 0.0]


def _by_position(*, param: Any, grad_sample: torch.Tensor, max_batch_len: int) -> None:
    raise IndexError(max_batch_len)


def _by_method(*, param: Any, grad_sample: torch.Tensor, max_batch_len: int) -> None:
    param._current_grad_sample[: len(grad_sample)].add_(grad_sample)


def _anew(*, param: Any, grad_sample: torch.Tensor, max_batch_len: int) -> None:
    param._current_grad_sample = torch.ones(3)


def _with_other_arguments(param: Any, gradients: torch.Tensor) -> None:
    raise AssertionError("never called with these")


@pytest.mark.parametrize("other", [_by_method, _anew, _by_position, _with_other_arguments])
def test_another_way_of_adding_is_seen_and_said(monkeypatch, other):
    made = setting(mlp)
    loss(made.model, numbers(B, 4))
    opacus_adds.cache_clear()
    try:
        assert opacus_adds()
        opacus_adds.cache_clear()
        monkeypatch.setattr(opacus, "create_or_accumulate_grad_sample", other)
        assert "this version of Opacus" in made.prepare()
        assert_nothing_waits(made)
    finally:
        opacus_adds.cache_clear()


def batch_with_canaries(batch: int, canaries: int) -> list[torch.Tensor]:
    """Rows that say their own number: of the data from 0, of the canaries from 100."""
    numbers = torch.cat([torch.arange(batch), 100 + torch.arange(canaries)]).float()
    return [numbers.clone(), numbers[:, None].repeat(1, 3), numbers[:, None, None].repeat(1, 2, 2)]


@pytest.mark.parametrize(("batch", "canaries"), [(5, 2), (3, 3), (2, 4), (0, 3), (4, 0)])
def test_rows_change_places_alike_and_none_is_lost(batch, canaries):
    assert len(draw_places(None, batch, canaries)) == 0
    places = draw_places((1,), batch, canaries)
    assert len(places) <= min(batch, canaries)
    assert len(set(places.tolist())) == len(places)
    tensors = batch_with_canaries(batch, canaries)
    before = [tensor.clone() for tensor in tensors]
    swap_rows(tensors, places, canaries)
    order = [int(number) for number in tensors[0]]
    assert [order[place] for place in places] == [100 + i for i in range(len(places))]
    assert order[batch : batch + len(places)] == places.tolist()
    assert sorted(order) == sorted(int(number) for number in before[0])
    for tensor in tensors:
        assert tensor.flatten(1).amax(1).tolist() == order if tensor.dim() > 1 else True
    assert rows_of_records(tensors[0], places, canaries).tolist() == list(range(batch))
    swap_rows(tensors, places, canaries)
    assert all(map(torch.equal, tensors, before))


@pytest.mark.parametrize(("batch", "canaries"), [(8, 3), (2, 5)])
def test_a_canary_stands_in_every_row_as_often_as_in_any_other(batch, canaries):
    counts, runs = np.zeros(batch), 4000
    behind = 0
    for seed in range(runs):
        places = draw_places((7, seed), batch, canaries)
        counts[places] += 1
        behind += canaries - len(places)
    # Each row is a canary's with probability m / (n + m): five standard deviations.
    part = canaries / (batch + canaries)
    allowed = 5.0 * np.sqrt(runs * part * (1.0 - part))
    assert np.abs(counts - runs * part).max() < allowed
    assert abs(behind - runs * canaries * part) < canaries * allowed
