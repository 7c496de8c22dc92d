import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine, optimizers
from opacus.grad_sample.utils import wrap_model
from opacus.optimizers import DPOptimizer
from pytorch_lightning.core.optimizer import LightningOptimizer
from small_nets import Tied
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.canaries import BlockPair, Dirac, Random, Spread
from lightning_audit.canaries.gradient import place
from lightning_audit.dpsgd import opacus
from lightning_audit.dpsgd.protocol import CannotEnter, StepClaim, UnsupportedOptimizer
from lightning_audit.layout import Direction

pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing when gradients are computed:UserWarning"
)


def hand_made() -> DPOptimizer:
    plain = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    return DPOptimizer(plain, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=8)


def engine_optimizer(accountant: str) -> tuple[PrivacyEngine, DPOptimizer]:
    engine = PrivacyEngine(accountant=accountant)
    data = TensorDataset(torch.zeros(40, 4), torch.zeros(40))
    model = nn.Linear(4, 2)
    _, optimizer, _ = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return engine, optimizer


class HookObject:
    def __call__(self, optimizer: DPOptimizer) -> None:
        raise AssertionError("reading a hook must not call it")


def foreign_hooks() -> Iterator[Callable[..., None] | None]:
    sample_rate = 0.25
    yield None
    yield lambda optimizer: None
    yield lambda optimizer: print(sample_rate)
    yield functools.partial(print, sample_rate)
    yield HookObject()
    yield HookObject().__call__


@pytest.mark.parametrize("hook", list(foreign_hooks()), ids=range(6))
def test_a_foreign_hook_has_no_accountant(hook):
    optimizer = hand_made()
    if hook is not None:
        optimizer.attach_step_hook(hook)
    assert opacus.accountant_link(optimizer) is None


class Holds:
    """Calls a hook that it holds."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self.hook = hook

    def __call__(self, optimizer: DPOptimizer) -> None:
        self.hook(optimizer)

    def tell(self, optimizer: DPOptimizer) -> None:
        self.hook(optimizer)


def deeper(hook: Callable[..., None]) -> Callable[..., None]:
    return lambda optimizer: hook(optimizer)


WRAPPED: dict[str, Callable[[Callable[..., None]], Callable[..., None]]] = {
    "itself": lambda hook: hook,
    "lambda": deeper,
    "lambda of a lambda": lambda hook: deeper(deeper(hook)),
    "partial": lambda hook: functools.partial(lambda own, optimizer: own(optimizer), hook),
    "object": Holds,
    "method": lambda hook: Holds(hook).tell,
    "default": lambda hook: lambda optimizer, own=hook: own(optimizer),
}


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
@pytest.mark.filterwarnings("ignore:GDP accounting is experimental:UserWarning")
@pytest.mark.parametrize(
    ("way", "accountant"),
    [*((way, "prv") for way in WRAPPED), ("itself", "rdp"), ("itself", "gdp")],
)
def test_the_accountant_and_its_rate_are_read_off_a_hook_that_may_be_wrapped(way, accountant):
    engine, optimizer = engine_optimizer(accountant)
    optimizer.attach_step_hook(WRAPPED[way](optimizer.step_hook))
    link = opacus.accountant_link(optimizer)
    assert link.accountant is engine.accountant
    assert link.sample_rate == pytest.approx(8 / 40)
    assert not opacus.hook_is_unread(optimizer)


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
def test_a_hook_of_ones_own_has_the_rate_that_it_tells():
    engine, optimizer = engine_optimizer("prv")
    accountant = engine.accountant
    optimizer.attach_step_hook(lambda _: accountant.step(noise_multiplier=1.0, sample_rate=0.125))
    link = opacus.accountant_link(optimizer)
    assert link.sample_rate is None
    optimizer.step_hook(optimizer)
    assert link.sample_rate == 0.125


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
def test_of_two_accountants_none_is_chosen():
    (_, one), (_, other) = engine_optimizer("prv"), engine_optimizer("prv")
    first, second = one.step_hook, other.step_hook
    one.attach_step_hook(lambda optimizer: (first(optimizer), second(optimizer)))
    assert opacus.accountant_link(one) is None
    assert opacus.hook_is_unread(one)
    assert not opacus.hook_is_unread(hand_made())


def rows(*lost: int, count: int = 3, value: float = torch.nan) -> torch.Tensor:
    made = torch.ones(count, 2, 2)
    made[list(lost), 1, 0] = value
    return made


def params(*held: object) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros(2, 2)) for _ in held]
    for param, samples in zip(made, held, strict=True):
        param.grad_sample = samples
    return made


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_sample_is_lost_whose_gradient_is_not_finite_in_any_tensor(value):
    found = opacus.not_finite([rows(0, value=value), rows(2, value=value), torch.ones(3)])
    assert found.tolist() == [True, False, True]
    assert opacus.not_finite([rows(), rows(count=4)]) is None
    assert opacus.not_finite([]) is None
    assert opacus.all_finite([None, torch.ones(2)])
    assert not opacus.all_finite([None, torch.tensor([1.0, value])])


def test_all_batches_that_wait_are_looked_at_without_the_audits_own_rows():
    last = rows(1, 2)
    held = params([rows(0), last], [rows(), rows()])
    found = opacus.waiting_not_finite(held, {})
    assert found.tolist() == [True, False, False, False, True, True]
    found = opacus.waiting_not_finite(held, {id(last): 1, id(held[1].grad_sample[1]): 1})
    assert found.tolist() == [True, False, False, False, True]


@pytest.mark.parametrize("held", [(rows(), None), (rows(), rows(count=4))])
def test_nothing_is_told_where_the_samples_of_a_step_are_not_known(held):
    assert opacus.waiting_not_finite(params(*held), {}) is None


MODES = ["hooks", "functorch"]
C = 0.7
SETTINGS: dict[str, Any] = {
    "noise_multiplier": 0.0,
    "max_grad_norm": C,
    "expected_batch_size": 8,
    "loss_reduction": "sum",
}


def conv_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3)
    )


def images(rows: int = 5) -> torch.Tensor:
    return torch.randn(rows, 2, 3, 3, generator=torch.Generator().manual_seed(rows))


def private(
    model: nn.Module, mode: str = "hooks", inner: str = "SGD", **changes: Any
) -> tuple[nn.Module, DPOptimizer]:
    wrapped = wrap_model(model, grad_sample_mode=mode, loss_reduction="sum")
    plain = getattr(torch.optim, inner)(wrapped.parameters(), lr=0.1)
    return wrapped, DPOptimizer(plain, **{**SETTINGS, **changes})


def backward(model: nn.Module, batch: torch.Tensor) -> None:
    model(batch).pow(2).sum().backward()


def adapter(model: nn.Module, optimizer: DPOptimizer) -> opacus.OpacusStep:
    return opacus.OpacusStep(optimizer, {id(p): name for name, p in model.named_parameters()})


def prepared(
    mode: str = "hooks", batches: int = 1, **changes: Any
) -> tuple[DPOptimizer, opacus.OpacusStep]:
    """A private optimizer over `conv_net` after backward passes, and its adapter."""
    model, optimizer = private(conv_net(), mode, **changes)
    for _ in range(batches):
        backward(model, images())
    return optimizer, adapter(model, optimizer)


def directions_over(step: opacus.OpacusStep, seed: int = 0) -> list[Direction]:
    rng = np.random.default_rng(seed)
    canaries = [Dirac(), Spread(), BlockPair(), Dirac(tensor="last_bias"), Random()]
    return place(canaries, step.layout, rng).draw(rng)


def as_tensors(direction: Direction, step: opacus.OpacusStep) -> list[torch.Tensor]:
    """The direction in the parameters' shapes, by plain loops over flat coordinates."""
    tensors = [torch.zeros(p.numel(), dtype=torch.float64) for p in step.params]
    for part in direction.parts:
        for index, value in zip(part.index.tolist(), part.value.tolist(), strict=True):
            tensors[part.tensor][index] += value
    return [t.reshape(p.shape) for t, p in zip(tensors, step.params, strict=True)]


def added_by(directions: list[Direction], step: opacus.OpacusStep) -> list[torch.Tensor]:
    return [sum(parts) for parts in zip(*(as_tensors(d, step) for d in directions), strict=True)]


def clipped_sums(optimizer: DPOptimizer) -> list[torch.Tensor]:
    optimizer.step()
    return [p.summed_grad.double() for p in optimizer.params]


@pytest.mark.parametrize("mode", MODES)
def test_each_appended_row_is_its_direction_at_the_stated_norm_in_any_shape(mode):
    _, step = prepared(mode)
    assert {len(slot.shape) for slot in step.layout} == {1, 2, 4}
    before = [p.grad_sample.clone() for p in step.params]
    directions = directions_over(step)
    step.copy_in(directions, 1000 * C)
    for param, samples in zip(step.params, before, strict=True):
        assert param.grad_sample.shape == (5 + len(directions), *param.shape)
        assert torch.equal(param.grad_sample[:5], samples)
    for row, direction in enumerate(directions):
        rows = [p.grad_sample[5 + row].double() for p in step.params]
        for got, expected in zip(rows, as_tensors(direction, step), strict=True):
            torch.testing.assert_close(got, 1000 * C * expected, rtol=1e-6, atol=0)
        norm = sum(float(r.pow(2).sum()) for r in rows) ** 0.5
        assert norm == pytest.approx(1000 * C, rel=1e-6)


@pytest.mark.parametrize(
    ("net", "batch", "mode"),
    [*((conv_net, images(), mode) for mode in MODES), (Tied, torch.ones(6, 4).cumsum(0), "hooks")],
    ids=[*MODES, "tied"],
)
def test_each_oversized_canary_adds_exactly_the_clipping_norm_to_the_clipped_sum(net, batch, mode):
    sums = []
    for inject in (False, True):
        torch.manual_seed(2)
        model, optimizer = private(net(), mode)
        backward(model, batch)
        step = adapter(model, optimizer)
        directions = directions_over(step)
        if inject:
            step.copy_in(directions, 1000 * C)
            assert step.batch_size() == len(batch) + len(directions)
        sums.append(clipped_sums(optimizer))
    for without, with_canaries, added in zip(*sums, added_by(directions, step), strict=True):
        torch.testing.assert_close(with_canaries - without, C * added, rtol=0, atol=1e-5)


@pytest.mark.parametrize("part", [0, 1, -1])
def test_rows_join_the_accumulated_batch_that_is_asked_for(part):
    optimizer, step = prepared(batches=3)
    directions = directions_over(step)
    step.copy_in(directions, 1000 * C, part=part)
    assert step.batch_size() == 15 + len(directions)
    for param in step.params:
        sizes = [5, 5, 5]
        sizes[part] += len(directions)
        assert [len(rows) for rows in param.grad_sample] == sizes
    assert optimizer.accumulated_iterations == 3
    step.take_out()
    assert all(len(rows) == 5 for param in step.params for rows in param.grad_sample)


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("inject", [False, True])
def test_opacus_guard_against_stale_gradients_still_raises(batches, inject):
    optimizer, step = prepared(batches=batches)
    if inject:
        step.copy_in(directions_over(step), C)
    optimizer.step()  # and no zero_grad after it
    if batches == 2:  # the guard stops at the first; the last one must have it too
        for param in step.params:
            param.grad_sample = param.grad_sample[1:]
    if inject:
        with pytest.raises(CannotEnter, match="an earlier step were not cleared"):
            step.copy_in(directions_over(step), C)
    # On the per-sample gradients themselves: the sum is guarded a second time, after noise.
    with pytest.raises(ValueError, match="Gradients haven't been cleared"):
        optimizer.clip_and_accumulate()


@pytest.mark.parametrize("absent", ["deleted", "none", "empty list"])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_parameter_without_samples_is_a_clean_error(absent, batches):
    _, step = prepared(batches=batches)
    directions = directions_over(step)
    *others, last = step.params
    if absent == "deleted":
        del last.grad_sample
    else:
        last.grad_sample = None if absent == "none" else []

    def held(param: Any) -> list[torch.Tensor]:
        return param.grad_sample if isinstance(param.grad_sample, list) else [param.grad_sample]

    before = [list(held(p)) for p in others]
    with pytest.raises(ValueError, match=r"5\.bias holds no per-sample gradients"):
        step.copy_in(directions, C)
    for param, tensors in zip(others, before, strict=True):
        assert all(a is b for a, b in zip(held(param), tensors, strict=True))


@pytest.mark.parametrize(
    ("reduction", "batches", "scale"), [("mean", 1, 8.0), ("mean", 2, 16.0), ("sum", 2, 1.0)]
)
def test_the_claims_scale_is_of_the_reduction(reduction, batches, scale):
    model, optimizer = private(conv_net(), noise_multiplier=1.5, loss_reduction=reduction)
    for _ in range(batches):
        backward(model, images())
    step = adapter(model, optimizer)
    assert step.claim() == StepClaim(1.5, C, scale, batches)
    optimizer.noise_multiplier = 0.0
    optimizer.step()
    for param in optimizer.params:
        torch.testing.assert_close(param.grad * scale, param.summed_grad)
    optimizer.max_grad_norm, optimizer.noise_multiplier = torch.tensor(0.25), 3
    claim = step.claim(accumulated=1)
    assert (claim.noise_multiplier, claim.max_grad_norm) == (3.0, 0.25)
    assert all(type(v) is float for v in (claim.max_grad_norm, claim.noise_multiplier))


@pytest.mark.parametrize(("reduction", "scale"), [("mean", 2 * 3 * 4.0), ("sum", 1.0)])
@pytest.mark.usefixtures("process_group")
def test_the_scale_is_that_of_all_processes(reduction, scale):
    plain = torch.optim.SGD(wrap_model(conv_net(), grad_sample_mode="hooks").parameters(), lr=0.1)
    changes = {"loss_reduction": reduction, "expected_batch_size": 4.0}
    optimizer = optimizers.DistributedDPOptimizer(plain, **{**SETTINGS, **changes})
    optimizer.world_size = 3
    assert opacus.OpacusStep(optimizer, {}).claim(accumulated=2).scale == scale


@pytest.fixture
def process_group(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_sharded_parameters_are_refused_with_advice():
    model = wrap_model(nn.Linear(3, 2), grad_sample_mode="hooks")
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = optimizers.FSDPOptimizerFastGradientClipping(plain, **SETTINGS)
    told = r"FSDP\w+ cannot be audited.*DistributedDataParallel and grad_sample_mode='ghost'"
    for ask in (opacus.refuse_unsupported, lambda refused: opacus.OpacusStep(refused, {})):
        with pytest.raises(UnsupportedOptimizer, match=told):
            ask(optimizer)


def test_wrappers_of_opacus_and_lightning_are_followed_and_no_imitation_is_private():
    _, optimizer = private(nn.Linear(3, 2))
    plain = optimizer.original_optimizer
    for one, found in ((plain, None), (optimizer, optimizer)):
        for wrapped in (one, LightningOptimizer(one)):
            assert opacus.innermost(wrapped) is plain
            assert opacus.private_optimizer(wrapped) is found


@pytest.mark.parametrize("mode", MODES)
def test_canaries_among_the_rows_change_the_clipped_sum_by_rounding(mode):
    sums = []
    for seed in (None, 0):
        torch.manual_seed(2)
        model, optimizer = private(conv_net(), mode)
        backward(model, images())
        step = adapter(model, optimizer)
        rows = [p.grad_sample.clone() for p in step.params]
        directions = directions_over(step)
        places = None if seed is None else (seed,)
        step.copy_in(directions, 1000 * C, places)
        moved = [i for i in range(5) if not torch.equal(step.params[0].grad_sample[i], rows[0][i])]
        drawn = opacus.draw_places(places, 5, len(directions))
        assert sorted(moved) == sorted(drawn.tolist())
        assert step.lost_rows().tolist() == [False] * 5
        sums.append(clipped_sums(optimizer))
    for behind, among in zip(*sums, strict=True):
        torch.testing.assert_close(among, behind, rtol=0, atol=1e-5)


def test_rows_among_the_data_are_withdrawn_and_the_batch_is_what_it_was():
    _, step = prepared()
    step.params[0].grad_sample[3] = torch.nan
    before = [p.grad_sample.clone().nan_to_num() for p in step.params]
    step.copy_in(directions_over(step), 1000 * C, (4,))
    assert step.lost_rows().tolist() == [False, False, False, True, False]
    step.take_out()
    assert all(map(torch.equal, before, [p.grad_sample.nan_to_num() for p in step.params]))
