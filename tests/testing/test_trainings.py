from __future__ import annotations

import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch.nn import functional

from lightning_audit.testing.trainings import (
    BATCH_SIZE,
    CLASSES,
    DeepTraining,
    FourViews,
    HandWritten,
    MeanOverBatch,
    NormalisedOverBatch,
    NotANumber,
    SummedLoss,
    Training,
    net,
    random_data,
)

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, y = random_data(1, records=8).tensors
    return x, y


def test_data_are_the_same_for_a_seed_whatever_was_drawn_before() -> None:
    first = random_data()
    torch.rand(3)
    assert all(map(torch.equal, first.tensors, random_data().tensors))
    assert not torch.equal(first.tensors[0], random_data(1).tensors[0])


def test_a_net_has_two_tensors_a_layer() -> None:
    assert [len(list(net(depth).parameters())) for depth in (1, 3, 8)] == [2, 6, 16]
    assert len(list(DeepTraining().net.parameters())) == 16


def test_the_hand_written_sum_is_that_of_gradients_clipped_one_by_one(batch) -> None:
    module = HandWritten(max_grad_norm=0.5)
    sums = module.clipped_sums(*batch)
    expected = {name: torch.zeros_like(p) for name, p in module.net.named_parameters()}
    for x, y in zip(*batch, strict=True):
        module.net.zero_grad()
        functional.cross_entropy(module.net(x[None]), y[None]).backward()
        grads = {name: p.grad for name, p in module.net.named_parameters()}
        norm = torch.cat([g.flatten() for g in grads.values()]).norm()
        for name, g in grads.items():
            expected[name] += g * min(1.0, 0.5 / norm.item())
    assert all(torch.allclose(sums[name], expected[name], atol=1e-6) for name in expected)


def test_four_views_add_up_to_four_clipped_gradients_of_a_record(batch) -> None:
    def longest(kind: type[HandWritten]) -> float:
        module = kind(max_grad_norm=1e-3)
        one = module.clipped_sums(batch[0][:1], batch[1][:1])
        return torch.cat([g.flatten() for g in one.values()]).norm().item()

    assert longest(HandWritten) == pytest.approx(1e-3, rel=1e-3)
    assert longest(FourViews) == pytest.approx(4e-3, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "adds_up"), [(HandWritten, True), (FourViews, True), (NormalisedOverBatch, False)]
)
def test_only_where_records_meet_is_the_sum_not_that_of_its_halves(batch, kind, adds_up) -> None:
    module = kind()
    whole, *halves = (
        torch.cat([g.flatten() for g in module.clipped_sums(*part).values()])
        for part in (batch, [t[:4] for t in batch], [t[4:] for t in batch])
    )
    assert torch.allclose(whole, sum(halves), atol=1e-5) == adds_up


def test_divisors_and_losses_are_those_of_the_names(batch) -> None:
    assert HandWritten().divisor(3) == BATCH_SIZE
    assert [MeanOverBatch().divisor(n) for n in (0, 3)] == [1, 3]
    mean, total = Training(), SummedLoss()
    total.net = mean.net
    assert total.training_step(batch, 0).item() == pytest.approx(
        8 * mean.training_step(batch, 0).item(), rel=1e-5
    )


def test_one_record_in_eight_is_not_a_number() -> None:
    features = NotANumber().data.tensors[0]
    assert features.isnan().any(1).float().mean().item() == 1 / 8


def test_the_planted_optimizer_is_the_one_to_train_with() -> None:
    planted: list[DPOptimizer] = []

    def plant(optimizer: DPOptimizer) -> DPOptimizer:
        planted.append(optimizer)
        return optimizer

    module = Training(plant, noise_multiplier=1.5, max_grad_norm=0.7)
    assert module.configure_optimizers() is planted[0]
    assert (planted[0].noise_multiplier, planted[0].max_grad_norm) == (1.5, 0.7)
    assert module.forward(torch.zeros(2, 16)).shape == (2, CLASSES)
