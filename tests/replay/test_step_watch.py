"""The batches of one step are collected as they were before it."""

from __future__ import annotations

from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import wrap_data_loader
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.replay.step_replay import StepWatch


def training(records: int = 32) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    data = TensorDataset(torch.randn(records, 4), torch.zeros(records, dtype=torch.long))
    return PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )


def watched(net: Any, optimizer: Any) -> StepWatch:
    names = {id(p): name for name, p in net.named_parameters()}
    return StepWatch(opacus_step(optimizer, names, net.modules()))


def train(net: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()
    optimizer.step()


def test_a_step_has_the_batch_as_it_was() -> None:
    net, optimizer, _ = training()
    watch = watched(net, optimizer)
    batch = (torch.ones(8, 4), torch.zeros(8, dtype=torch.long))
    watch.start_batch(batch)
    assert watch.end_batch() is None
    batch[0].mul_(2.0)
    train(net, optimizer, batch)
    taken = watch.end_batch()
    assert taken is not None
    assert torch.equal(taken.batches[0][0], torch.ones(8, 4))
    assert taken.skips == [False]


def test_calls_of_the_steps_own_code_are_none_of_the_batches() -> None:
    net, optimizer, _ = training()
    watch = watched(net, optimizer)
    watch.start_batch((torch.ones(8, 4), torch.zeros(8, dtype=torch.long)))
    for part in range(2):
        optimizer.signal_skip_step(do_skip=not part)
        train(net, optimizer, (torch.ones(4, 4), torch.zeros(4, dtype=torch.long)))
    taken = watch.end_batch()
    assert taken is not None
    assert taken.calls == [True, False]
    assert taken.skips == []


def test_physical_batches_of_a_logical_one_stand_together() -> None:
    net, optimizer, loader = training()
    split = wrap_data_loader(data_loader=loader, max_batch_size=3, optimizer=optimizer)
    watch, taken = watched(net, optimizer), None
    sizes = []
    for batch in split:
        watch.start_batch(batch)
        train(net, optimizer, batch)
        sizes.append(len(batch[0]))
        if taken := watch.end_batch():
            break
    assert taken is not None
    assert [len(batch[0]) for batch in taken.batches] == sizes
    assert len(sizes) > 1
    assert taken.skips == [True] * (len(sizes) - 1) + [False]


def test_nothing_is_left_on_the_optimizer() -> None:
    net, optimizer, _ = training()
    hooks = dict(optimizer.original_optimizer._optimizer_step_post_hooks)
    watch = watched(net, optimizer)
    watch.remove()
    assert dict(optimizer.original_optimizer._optimizer_step_post_hooks) == hooks
    assert "pre_step" not in vars(optimizer)
