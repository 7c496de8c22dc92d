import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tapped import Tapped, nothing
from torch import nn

from lightning_audit.hooks.gradient_tap import GradientReader, GradientTap, WeightWatch
from lightning_audit.hooks.update_tap import UpdateTap
from lightning_audit.layout import Direction, Part
from lightning_audit.record.store import Observation

pytestmark = pytest.mark.filterwarnings("default")

# --- What a reading says of a step that was left alone, and of one that was not.

COORDINATES = {0: np.array([0, 2, 3])}


class Doubles(torch.optim.SGD):
    """Changes the gradient inside of its step, in place, behind where it was read."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.grad *= 2.0
        super().step()


def reading(
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, zero: int | None = None
) -> Observation:
    """Of a step whose gradient is 1, 2, 3, 4 but for a zero."""
    param = nn.Parameter(torch.ones(4))
    optimizer = kind([param], lr=0.5)
    tapped = Tapped(optimizer, [param], COORDINATES)
    param.grad = torch.arange(1.0, 5.0)
    if zero is not None:
        param.grad[zero] = 0.0
    optimizer.step()
    (found,) = tapped.readings
    return found


def test_a_step_that_was_left_alone_is_its_values_its_moves_and_nothing_else():
    found = reading()
    assert (found.values.tolist(), found.moves.start.tolist()) == ([1.0, 3.0, 4.0], [1.0, 1.0, 1.0])
    assert found.moves.update.tolist() == [-0.5, -1.5, -2.0]
    assert found.moves.outside is None  # nothing was watched before
    assert (found.replaced, found.unclear, found.at_cut, found.raw) == (False, False, False, False)
    assert (found.factor, found.used, found.dead) == (None, None, None)
    assert reading(zero=2).dead.tolist() == [False, True, False]
    found = reading(Doubles)  # a class of one's own changes it in its step
    assert found.unclear
    assert (found.used.tolist(), found.values.tolist()) == ([2.0, 6.0, 8.0], [1.0, 3.0, 4.0])


SHAPES = [(4, 3), (5,), (2, 3, 2, 2)]


def parameters(seed: int = 0) -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=rng)) for shape in SHAPES]


def gradients(seed: int) -> list[torch.Tensor]:
    """Multiples of 1/16, so that adding and taking out a canary of such a size is exact."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(-32, 33, shape, generator=rng) / 16 for shape in SHAPES]


def every_coordinate() -> dict[int, np.ndarray]:
    return {j: np.arange(int(np.prod(shape))) for j, shape in enumerate(SHAPES)}


def canary() -> Direction:
    return Direction(
        (
            Part(0, np.array([7, 2]), np.array([0.5, -0.5])),
            Part(2, np.array([23]), np.array([0.25])),
        )
    )


def add(direction: Direction, amount: float, grads: Sequence[torch.Tensor]) -> None:
    """Add to the gradients what a canary leaves there, by plain loops."""
    for part in direction.parts:
        shape = grads[part.tensor].shape
        for index, value in zip(part.index.tolist(), part.value.tolist(), strict=True):
            grads[part.tensor][np.unravel_index(index, shape)] += amount * value


def of_canary(amount: float) -> np.ndarray:
    """What a canary leaves at `every_coordinate`."""
    grads = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    add(canary(), amount, grads)
    return flat(grads)


def tapped(
    optimizer: torch.optim.Optimizer,
    params: Sequence[nn.Parameter],
    before: Callable[[], np.ndarray | None] = nothing,
    coordinates: dict[int, np.ndarray] | None = None,
) -> tuple[Tapped, list[Observation]]:
    where = every_coordinate() if coordinates is None else coordinates
    made = Tapped(optimizer, params, where, before)
    return made, made.readings


def watched(
    kind: Callable[..., Any] = torch.optim.SGD,
    before: Callable[[], np.ndarray | None] = nothing,
    lr: float = 0.1,
) -> tuple[list[nn.Parameter], Any, list[Observation]]:
    """Parameters, an optimizer over them, and what is read of all their entries."""
    params = parameters()
    optimizer = kind(params, lr=lr)
    return params, optimizer, tapped(optimizer, params, before)[1]


def set_gradients(params: Sequence[nn.Parameter], grads: Sequence[torch.Tensor]) -> None:
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()


def backward(params: Sequence[nn.Parameter], grads: Sequence[torch.Tensor]) -> None:
    """A backward pass that leaves these gradients, in tensors that are there or in new ones."""
    for param in params:
        param.grad = None
    with torch.enable_grad():
        sum((p * g).sum() for p, g in zip(params, grads, strict=True)).backward()


def flat(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    return np.concatenate([t.detach().double().reshape(-1).numpy() for t in tensors])


@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("SGD", {"maximize": True}),
        ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
        ("AdamW", {"maximize": True}),
        ("RMSprop", {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
        *((kind, {}) for kind in ("Adam", "NAdam", "RAdam", "Adagrad")),
    ],
)
def test_an_update_with_a_canary_taken_out_is_left_alone_bit_for_bit(kind, given, foreach):
    clean, audited = parameters(), parameters()
    build = getattr(torch.optim, kind)
    plain = build(clean, lr=0.1, foreach=foreach, **given)
    watched = build(audited, lr=0.1, foreach=foreach, **given)
    _, readings = tapped(watched, audited, lambda: of_canary(0.5) + of_canary(2.0))
    for step in range(3):
        set_gradients(clean, gradients(step))
        with_canaries = gradients(step)
        add(canary(), 0.5, with_canaries)
        add(canary(), 2.0, with_canaries)
        set_gradients(audited, with_canaries)
        plain.step()
        watched.step()
    assert [reading.replaced for reading in readings] == [False] * 3
    for step, reading in enumerate(readings):
        np.testing.assert_array_equal(reading.values, flat(gradients(step)))
    for one, other in zip(clean, audited, strict=True):
        assert torch.equal(one, other)


class ReplacesItsGradient(torch.optim.Optimizer):
    """Runs its closure again inside the step, and updates with what that leaves."""

    def __init__(self, params: Sequence[nn.Parameter], lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        if closure is not None:
            closure()
        for group in self.param_groups:
            for param in group["params"]:
                param.sub_(group["lr"] * param.grad)


class CallsItsParent(torch.optim.SGD):
    """A user's own optimizer on top of torch's; optionally with the closure run again."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            closure()
        super().step()


@pytest.fixture
def sgd_was_used_before():
    # torch wraps a class's step on its first instance: from then on super().step() runs the hooks
    # of the instance a second time, inside the step of the subclass.
    torch.optim.SGD(parameters(), lr=0.1)


@pytest.mark.usefixtures("sgd_was_used_before")
@pytest.mark.parametrize("kind", [ReplacesItsGradient, CallsItsParent])
def test_a_gradient_changed_inside_the_step_counts_as_replaced_and_is_the_one_read(kind):
    params = parameters()
    optimizer = kind(params, lr=0.1)
    made, readings = tapped(optimizer, params)
    set_gradients(params, gradients(0))
    seen = [made.tap.inside_step]

    def closure() -> None:
        seen.append(made.tap.inside_step)
        backward(params, gradients(1))

    optimizer.step(closure)
    assert [*seen, made.tap.inside_step] == [False, True, False]
    set_gradients(params, gradients(2))
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step(closure)  # a gradient appears
    assert [reading.replaced for reading in readings] == [True, False, True]
    np.testing.assert_array_equal(readings[0].values, flat(gradients(1)))


def nudge(params: Sequence[nn.Parameter]) -> None:
    grad: Any = params[1].grad
    grad[3] = torch.nextafter(grad[3], torch.tensor(9.0))


def nudge_by_other_memory(params: Sequence[nn.Parameter]) -> None:
    """The same tensor as before, with another memory."""
    grad: Any = params[1].grad
    grad.data = grad.data.clone()
    nudge(params)


def nudge_by_strides(params: Sequence[nn.Parameter]) -> None:
    """The same tensor and the same memory, read in another order."""
    grad: Any = params[2].grad
    grad.data = grad.data.transpose(2, 3)


@pytest.mark.parametrize("change", [nudge, nudge_by_other_memory, nudge_by_strides])
def test_a_change_in_the_step_is_seen(change):
    params, optimizer, readings = watched(ReplacesItsGradient)
    set_gradients(params, gradients(0))
    optimizer.step(lambda: change(params))
    assert readings[0].unclear
    assert not readings[0].replaced


@pytest.mark.usefixtures("sgd_was_used_before")
def test_a_subclass_that_calls_its_parent_has_the_canary_taken_out_once():
    params, optimizer, readings = watched(CallsItsParent, before=lambda: of_canary(2.0))
    grads = gradients(0)
    add(canary(), 2.0, grads)
    set_gradients(params, grads)
    optimizer.step()
    assert [reading.replaced for reading in readings] == [False]
    np.testing.assert_array_equal(readings[0].values, flat(gradients(0)))


def test_nan_equals_itself_and_is_read_as_nan():
    params, optimizer, readings = watched()
    grads = gradients(0)
    grads[0][1, 1], grads[1][2] = torch.nan, torch.inf
    set_gradients(params, grads)
    optimizer.step()
    assert not readings[0].replaced
    np.testing.assert_array_equal(readings[0].values, flat(grads))
    assert np.isnan(readings[0].values).sum() == 1


def test_a_parameter_without_gradient_reads_as_nan_and_takes_no_removal():
    params, optimizer, readings = watched(before=lambda: of_canary(1.0))
    set_gradients(params, gradients(0))
    params[0].grad = None
    before = params[0].detach().clone()
    optimizer.step()
    assert not readings[0].replaced
    assert np.isnan(readings[0].values[:12]).all()
    assert np.isfinite(readings[0].values[12:]).all()
    assert torch.equal(params[0], before)


@pytest.mark.parametrize("kind", [GradientTap, UpdateTap])
def test_the_gradients_of_a_step_are_not_kept_alive(kind):
    params = parameters()
    optimizer = torch.optim.SGD(params, lr=0.1)
    tap = Tapped(optimizer, params, every_coordinate(), kind=kind)
    set_gradients(params, gradients(0))
    held = [weakref.ref(p.grad) for p in params]
    optimizer.step()
    optimizer.zero_grad()
    assert [ref() for ref in held] == [None] * len(held)
    assert len(tap.readings) == 1
    tap.remove()


# --- Moves of the weights, in an update and between two.

INDEX = {0: np.arange(0, 40), 1: np.array([0, 2])}


def params() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(8, 10)), nn.Parameter(torch.randn(3))]


def read(weights: list[nn.Parameter]) -> np.ndarray:
    pairs = zip(weights, INDEX.values(), strict=True)
    return np.concatenate([w.detach().flatten().double().numpy()[i] for w, i in pairs])


@pytest.mark.parametrize("contiguous", [True, False])
def test_moves_are_those_of_the_update_and_those_between_updates(contiguous):
    weights = params()
    if not contiguous:
        weights[0] = nn.Parameter(torch.randn(10, 8).t())
    watch, first = WeightWatch(weights, GradientReader(weights, INDEX)), read(weights)
    watch.start()
    with torch.no_grad():
        weights[0] += 1.0
    moves = watch.end()()
    assert moves.outside is None
    assert moves.start == pytest.approx(first)
    assert moves.update == pytest.approx(read(weights) - first)
    with torch.no_grad():
        weights[1] -= 0.5
    watch.start()
    outside = watch.end()().outside
    assert (outside[:40], outside[40:]) == (pytest.approx(0.0), pytest.approx(-0.5))


def test_later_steps_are_watched_now_and_then_and_say_nothing_of_what_is_between():
    held = params()
    watch, seen = WeightWatch(held, GradientReader(held, INDEX)), []
    for _ in range(140):
        watch.start()
        seen.append(watch.end())
    assert all(moves is not None for moves in seen[:100])
    assert [i for i, moves in enumerate(seen[100:], 100) if moves] == [104, 112, 120, 128, 136]
    assert all(moves().outside is None for moves in seen[100:] if moves)
