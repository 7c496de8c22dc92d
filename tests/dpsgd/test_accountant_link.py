from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.dpsgd.opacus import accountant_link, hook_is_unread


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


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
@pytest.mark.filterwarnings("ignore:GDP accounting is experimental:UserWarning")
@pytest.mark.parametrize("accountant", ["rdp", "gdp", "prv"])
def test_the_accountant_and_its_sample_rate_are_read_off_the_step_hook(accountant: str) -> None:
    engine, optimizer = engine_optimizer(accountant)
    link = accountant_link(optimizer)
    assert link is not None
    assert link.accountant is engine.accountant
    assert link.sample_rate == pytest.approx(8 / 40)


class HookObject:
    def __call__(self, optimizer: DPOptimizer) -> None:
        raise AssertionError("reading a hook must not call it")


def foreign_hooks() -> Iterator[Callable[..., None]]:
    sample_rate = 0.25
    yield lambda optimizer: None
    yield lambda optimizer: print(sample_rate)
    yield functools.partial(print, sample_rate)
    yield HookObject()
    yield HookObject().__call__


@pytest.mark.parametrize("hook", list(foreign_hooks()), ids=range(5))
def test_a_foreign_hook_has_no_accountant(hook: Callable[..., None]) -> None:
    optimizer = hand_made()
    optimizer.attach_step_hook(hook)
    assert accountant_link(optimizer) is None


def test_a_hand_made_optimizer_has_no_accountant() -> None:
    assert accountant_link(hand_made()) is None


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
    "lambda": deeper,
    "lambda of a lambda": lambda hook: deeper(deeper(hook)),
    "partial": lambda hook: functools.partial(lambda own, optimizer: own(optimizer), hook),
    "object": Holds,
    "method": lambda hook: Holds(hook).tell,
    "default": lambda hook: lambda optimizer, own=hook: own(optimizer),
}


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
@pytest.mark.parametrize("way", WRAPPED)
def test_a_hook_that_is_wrapped_is_followed(way: str) -> None:
    engine, optimizer = engine_optimizer("prv")
    optimizer.attach_step_hook(WRAPPED[way](optimizer.step_hook))
    link = accountant_link(optimizer)
    assert link is not None
    assert link.accountant is engine.accountant
    assert link.sample_rate == pytest.approx(8 / 40)
    assert not hook_is_unread(optimizer)


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
def test_a_hook_of_ones_own_has_the_rate_that_it_tells() -> None:
    engine, optimizer = engine_optimizer("prv")
    accountant = engine.accountant
    optimizer.attach_step_hook(lambda _: accountant.step(noise_multiplier=1.0, sample_rate=0.125))
    link = accountant_link(optimizer)
    assert link is not None
    assert link.sample_rate is None
    optimizer.step_hook(optimizer)
    assert link.sample_rate == 0.125


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
def test_of_two_accountants_none_is_chosen() -> None:
    (_, one), (_, other) = engine_optimizer("prv"), engine_optimizer("prv")
    first, second = one.step_hook, other.step_hook
    one.attach_step_hook(lambda optimizer: (first(optimizer), second(optimizer)))
    assert accountant_link(one) is None
    assert hook_is_unread(one)
    assert not hook_is_unread(hand_made())
