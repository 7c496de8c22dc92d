"""The assertions for unit tests find wrong per-sample gradients, and accept correct models."""

from typing import Any

import pytest
import torch
from opacus.grad_sample import register_grad_sampler
from opacus.layers import DPLSTM
from torch import nn

from lightning_audit.testing.assertions import assert_per_sample_gradients, assert_same_release

LOSS = nn.CrossEntropyLoss()


def batch_of(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 3.0 * torch.randn(6, *shape, generator=generator), torch.arange(6) % 3


class Scaled(nn.Module):
    """A layer whose grad sampler forgets a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * x * self.scale


@register_grad_sampler(Scaled)
def wrong(layer: Any, activations: Any, backprops: torch.Tensor) -> dict[Any, torch.Tensor]:
    return {layer.scale: activations[0] * backprops}


class Centered(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Last(nn.Module):
    """Scores by the last state of a recurrent net."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = DPLSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


CORRECT = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 9), nn.Dropout(), nn.Linear(9, 3)), (4,)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)
        ),
        (1, 6, 6),
    ),
    "recurrent": (Last, (5, 4)),
}


@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_correct_models_pass(name, reduction):
    make, shape = CORRECT[name]
    torch.manual_seed(0)
    model, loss = make(), nn.CrossEntropyLoss(reduction=reduction)
    before = [p.detach().clone() for p in model.parameters()]
    assert_per_sample_gradients(model, batch_of(*shape), loss)
    modes = ("hooks", "functorch") if name == "recurrent" else ("hooks", "ghost", "functorch")
    assert_same_release(model, batch_of(*shape), loss, modes, max_grad_norm=0.5)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_wrong_grad_sampler_is_named():
    model = nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 3))
    with pytest.raises(AssertionError, match=r"1\.scale: the gradient of record 0 .* by 0\.5 of"):
        assert_per_sample_gradients(model, batch_of(4), LOSS)
    with pytest.raises(AssertionError, match=r"clipped sum with grad_sample_mode='functorch'"):
        assert_same_release(model, batch_of(4), LOSS, ("hooks", "functorch"))


def test_records_that_change_each_other_are_named():
    model = nn.Sequential(nn.Linear(4, 4), Centered(), nn.Linear(4, 3))
    with pytest.raises(AssertionError, match=r"0\.weight: the gradient of record 0"):
        assert_per_sample_gradients(model, batch_of(4), LOSS)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model": 3}, "model=int must be a module"),
        ({"batch": torch.zeros(4)}, "batch= must be two tensors"),
        ({"batch": (torch.zeros(1, 4), torch.zeros(1).long())}, "at least 2"),
        ({"loss": lambda x, y: x.sum()}, "loss= has reduction=None"),
        ({"modes": "hooks"}, "modes='hooks' must name two"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0"),
    ],
)
def test_bad_arguments_are_named(changed, says):
    given = {"model": nn.Linear(4, 3), "batch": batch_of(4), "loss": LOSS, **changed}
    with pytest.raises(ValueError, match=says):
        assert_same_release(**given)
