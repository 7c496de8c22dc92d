"""Input canaries: what they are made of, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from lightning_audit.canaries import Adversarial, Blank, Crafted, InputCanary, Mislabeled
from lightning_audit.canaries.inputs import Sample, loss_of, sample_of


def _x(n: int = 3) -> torch.Tensor:
    return torch.arange(4.0 * n).reshape(n, 4)


def _y(n: int = 3) -> torch.Tensor:
    return torch.arange(n)


def _sample(batch: Any) -> Sample:
    return sample_of(batch, 1, None, None)


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))


def _params(net: nn.Module) -> list[nn.Parameter]:
    return list(net.parameters())


def _loss(net: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(net(batch[0]), batch[1])


@pytest.mark.parametrize(
    "canary",
    [Mislabeled(), Mislabeled(num_classes=5), Mislabeled(loss=_loss, num_classes=5), Blank()],
)
def test_the_label_is_the_least_likely_class_of_the_present_weights(canary: InputCanary) -> None:
    net = _net()
    made = canary.made(net, _sample((_x(), _y())), (_x(), _y()), _params(net))
    for _ in range(3):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn_like(p))
        label = canary.at_step(net, made).label
        assert label is not None
        assert int(label) == int(net(made.input)[0].argmin())


def test_the_amplitude_multiplies_the_input_and_a_blank_is_zero() -> None:
    net, sample = _net(), _sample((_x(), _y()))
    made = Mislabeled(amplitude=50.0).made(net, sample, None, _params(net))
    assert torch.equal(made.input, 50.0 * sample.input)
    assert not Blank().made(net, sample, None, _params(net)).input.any()


def test_adversarial_raises_the_loss_within_its_radius() -> None:
    net, sample = _net(), _sample((_x(), _y()))
    canary = Adversarial(steps=20, step_size=0.1, radius=0.3)
    made = canary.made(net, sample, (_x(), _y()), _params(net))
    assert (made.input - sample.input).abs().max() <= 0.3 + 1e-6
    before, after = (float(_loss(net, one.batch).detach()) for one in (sample, made))
    assert after > before + 0.1
    assert torch.equal(canary.at_step(net, made).leaves[1], sample.leaves[1])
    assert all(p.grad is None for p in net.parameters())


def test_losses_of_the_users_own_are_used() -> None:
    sample = _sample((_x(), _y()))
    canary = Mislabeled(loss=lambda net, batch: batch[0].sum() * 2)
    assert float(loss_of(canary, None, sample.batch, sample)) == float(_x()[1].sum() * 2)


@pytest.mark.parametrize("kind", [Mislabeled, Blank, Adversarial, Crafted])
def test_canaries_are_compared_copied_and_written_by_their_arguments(kind: Any) -> None:
    canary = kind(amplitude=3.0)
    assert canary == kind(**asdict(canary))
    assert eval(repr(canary)) == canary


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mislabeled(amplitude=0.0), "amplitude=0.0 must be"),
        (lambda: Blank(sampling_rate=0.0), r"sampling_rate=0.0 must be in \(0, 1\)"),
        (lambda: Crafted(sampling_rate=1.0), "sampling_rate=1.0 must be .* has no coin"),
        (lambda: Blank(game="sub"), r"game='sub' must be one of \['step', 'subsampled'\]"),
        (lambda: Blank(loss="loss"), "loss='loss' must be a function"),
        (lambda: Blank(num_classes=0), "num_classes=0 must be"),
        (lambda: Adversarial(steps=0), "steps=0 must be"),
        (lambda: Adversarial(step_size=0.0), "step_size=0.0 must be"),
        (lambda: Adversarial(radius=-1.0), "radius=-1.0 must be"),
        (lambda: Crafted(remake_every_n_steps=0), "remake_every_n_steps=0 must be"),
    ],
)
def test_arguments_are_checked(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


class _NoForward(nn.Module):
    pass


class _Sequences(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, None, :]


@pytest.mark.parametrize(
    ("canary", "net", "batch", "words"),
    [
        (Mislabeled(), _NoForward(), (_x(), _y()), "_NoForward has no forward"),
        (Mislabeled(), _Sequences(), (_x(), _y()), "and not one number a class"),
        (Mislabeled(), _net(), (_x(), _x()), "Mislabeled needs a label"),
        (Adversarial(), _net(), (_x(), _x()), "give loss=, a function of"),
        (Adversarial(), _net(), (_y(), _y()), "which is of torch.int64"),
        (Adversarial(loss=lambda net, b: b[0]), _net(), (_x(), _y()), "must give one number"),
    ],
)
def test_what_a_canary_cannot_do_it_says(
    canary: InputCanary, net: nn.Module, batch: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        canary.at_step(net, canary.made(net, _sample(batch), batch, _params(net)))
