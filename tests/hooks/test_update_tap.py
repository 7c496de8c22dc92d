"""Where the gradient of a plain optimizer's update is read."""

from typing import Any

import numpy as np
import pytest
import torch
from tapped import Tapped
from torch import nn

from lightning_audit.hooks.gradient_tap import GradientReader, WeightWatch
from lightning_audit.hooks.update_tap import UpdateTap
from lightning_audit.record.store import Moves, Observation
from lightning_audit.session.reading import MovesOutside

# --- Weights that move between updates as by noise, and all that moves them otherwise.

INDEX = {0: np.arange(0, 40), 1: np.array([0, 2])}


def moved(change, steps: int = 20) -> bool:
    """Steps of SGD with a gradient of the data alone, and ``change`` of the weights after each."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(8, 10)), nn.Parameter(torch.randn(3))]
    watch, seen = WeightWatch(weights, GradientReader(weights, INDEX)), MovesOutside()
    rng = torch.Generator().manual_seed(1)
    for step in range(steps):
        watch.start()
        with torch.no_grad():
            for w in weights:
                w -= 0.01 * 0.1 * torch.randn(w.shape, generator=rng)
        seen.update(watch.end()(), 0.1 * np.ones(42))
        with torch.no_grad():
            change(weights, rng, step)
    return seen.like_noise


def test_noise_on_the_weights_is_seen():
    def noise(weights, rng, step):
        for w in weights:
            w -= 0.01 * torch.randn(w.shape, generator=rng)

    assert moved(noise)


@pytest.mark.parametrize(
    "change",
    [
        lambda weights, rng, step: None,
        lambda weights, rng, step: [w.mul_(0.99) for w in weights],
        lambda weights, rng, step: [w.mul_(1.0) for w in weights],
        lambda weights, rng, step: [w.add_(0.3) for w in weights] if step % 5 == 0 else None,
    ],
    ids=["nothing", "decay", "same", "sometimes"],
)
def test_what_else_moves_weights_is_not_taken_for_noise(change):
    assert not moved(change)


def test_few_steps_tell_nothing_and_one_that_is_not_finite_is_not_counted():
    seen = MovesOutside()
    shaken = Moves(np.ones(4), np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.0, 3.0, -3.0, 3.0]))
    for _ in range(2):
        seen.update(shaken, np.ones(4))
    seen.update(shaken, np.array([1.0, 1.0, 1.0, np.nan]))
    assert not seen.like_noise
    seen.update(shaken, np.ones(4))
    assert seen.like_noise


class Doubling(torch.optim.SGD):
    """Doubles the gradient, then updates as SGD does."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = 2 * p.grad
        super().step()
        return loss


class Own(Doubling):
    """Updates by itself."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                p -= p.grad


def _tapped(
    kind: type[torch.optim.Optimizer],
) -> tuple[Any, nn.Parameter, Tapped, list[Observation]]:
    param = nn.Parameter(torch.zeros(3))
    optimizer = kind([param], lr=1.0)
    tapped = Tapped(optimizer, [param], {0: np.array([0, 2])}, kind=UpdateTap)
    return optimizer, param, tapped, tapped.readings


def _closure(param: nn.Parameter) -> Any:
    def closure() -> float:
        param.grad = torch.tensor([1.0, 2.0, 3.0])
        return 0.0

    return closure


@pytest.mark.parametrize(
    ("kind", "read", "opaque"),
    [(torch.optim.SGD, [1.0, 3.0], False), (Doubling, [2.0, 6.0], False), (Own, [1.0, 3.0], True)],
)
@pytest.mark.parametrize("by_closure", [True, False])
def test_gradient_is_read_behind_the_closure_in_the_innermost_step(kind, read, opaque, by_closure):
    optimizer, param, tapped, readings = _tapped(kind)
    tap: Any = tapped.tap
    assert tap.trial is (kind is not torch.optim.SGD)
    for _ in range(2):
        if by_closure:
            assert optimizer.step(closure=_closure(param)) == (None if kind is Own else 0.0)
        else:
            _closure(param)()
            optimizer.step()
        assert not tap.trial
        assert not tap.inside_step
    assert tap.opaque is opaque
    assert [reading.values.tolist() for reading in readings] == [read, read]
    assert not any(reading.replaced or reading.unclear for reading in readings)
    tapped.remove()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("by_name", [True, False])
def test_step_of_a_parent_without_objects_is_read_and_given_back(by_name):
    class Base(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.data -= p.grad

    class Noisy(Base):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = p.grad + 1
            if by_name:
                Base.step(self)
            else:
                super().step()

    own, param = vars(Base)["step"], nn.Parameter(torch.zeros(3))
    optimizer, fired = Noisy([param], {}), []
    optimizer.register_step_post_hook(lambda *_: fired.append(1))
    taps = [
        Tapped(each, [param], {0: np.array([1])}, kind=UpdateTap)
        for each in (optimizer, Noisy([param], {}))
    ]
    for _ in range(2):
        param.grad = torch.ones(3)
        optimizer.step()
    assert [reading.values.tolist() for reading in taps[0].readings] == [[2.0], [2.0]]
    assert not taps[1].readings
    assert taps[0].tap.opaque
    assert len(fired) == 2  # the hooks of others run once a step, as they would
    taps[0].remove()
    assert vars(Base)["step"] is not own
    taps[1].remove()
    assert vars(Base)["step"] is own
    assert not getattr(own, "hooked", False)


def test_what_is_taken_out_is_not_in_the_update():
    param = nn.Parameter(torch.zeros(3))
    optimizer = Doubling([param], lr=1.0)
    taken: list[np.ndarray | None] = [None]
    where = {0: np.array([2])}
    readings = Tapped(optimizer, [param], where, lambda: taken[-1], UpdateTap).readings
    optimizer.step(_closure(param))
    assert param.tolist() == [-2.0, -4.0, -6.0]
    taken.append(np.array([6.0]))
    optimizer.step(_closure(param))
    assert param.tolist() == [-4.0, -8.0, -6.0]
    assert readings[1].values.tolist() == [0.0]
