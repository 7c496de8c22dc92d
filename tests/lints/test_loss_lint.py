"""How a loss adds up its batch is read off the graph that torch makes of it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from lightning_audit.lints.settings import reduction_of

X = torch.randn(4, 3, requires_grad=True)
Y = torch.tensor([0, 1, 2, 0])
ONES = torch.ones(4, 3)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_torchs_losses_tell(reduction: str) -> None:
    losses = [
        functional.cross_entropy(X, Y, reduction=reduction),
        functional.mse_loss(X, ONES, reduction=reduction),
        functional.binary_cross_entropy_with_logits(X, ONES, reduction=reduction),
        functional.smooth_l1_loss(X, ONES, reduction=reduction),
        getattr(functional.cross_entropy(X, Y, reduction="none"), reduction)(),
        functional.cross_entropy(X, Y, reduction=reduction)
        + functional.mse_loss(X, ONES, reduction=reduction),
    ]
    assert [reduction_of(loss) for loss in losses] == [reduction] * len(losses)


def test_what_lightning_divides_by_is_left_aside() -> None:
    total = functional.cross_entropy(X, Y, reduction="sum")
    assert reduction_of(total / 1) == "sum"
    assert reduction_of(total / 3, accumulated=3) == "sum"
    assert reduction_of(total / 4, accumulated=3) is None
    assert reduction_of(total / 1.5) is None
    assert reduction_of(total / 1 / 4) is None


def test_a_loss_that_is_made_otherwise_tells_nothing() -> None:
    total = functional.cross_entropy(X, Y, reduction="sum")
    mean = functional.cross_entropy(X, Y)
    losses = [total / 4, 0.5 * mean, mean + total, mean.detach(), None, X.norm()]
    assert [reduction_of(loss) for loss in losses] == [None] * len(losses)


def test_a_sum_of_stacked_or_weighted_losses_may_be_a_mean_and_tells_nothing() -> None:
    each = functional.cross_entropy(X, Y, reduction="none")
    mean = functional.mse_loss(X, ONES)
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0])
    losses = [
        torch.stack([each.mean(), mean]).sum(),
        torch.cat([each.mean()[None], mean[None]]).sum(),
        torch.stack([each.sum(), each.sum()]).mean(),
        (each * weights / weights.sum()).sum(),
        (each * (weights / weights.sum())).sum(),
    ]
    assert [reduction_of(loss) for loss in losses] == [None] * len(losses)
    assert reduction_of((each * weights).mean()) == "mean"
    assert reduction_of(((X - ONES) ** 2).sum()) == "sum"
