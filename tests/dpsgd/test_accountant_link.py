from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.dpsgd.accountant_link import accountant_link


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
