"""What is added is what the name of a fault says, measured on Opacus' own optimizer."""

from __future__ import annotations

import itertools

import pytest
import torch
from planted import private

from lightning_audit.testing.faulty import faulty_noise as noise

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")
BATCH = 16


def added(kind: type, *, steps: int = 1, **settings: float) -> list[list[torch.Tensor]]:
    """What each step adds to a sum of zeros, tensor by tensor."""
    torch.manual_seed(0)
    optimizer = private(**settings)
    optimizer.__class__ = kind
    drawn = []
    for _ in range(steps):
        for p in optimizer.params:
            p.summed_grad = torch.zeros_like(p)
        optimizer.add_noise()
        drawn.append([p.grad.detach().clone() for p in optimizer.params])
    return drawn


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tensors])


@pytest.mark.parametrize(
    ("kind", "settings", "size"),
    [
        (noise.HalfNoise, {}, 0.5),
        (noise.NoNoise, {}, 0.0),
        (noise.NoiseOverBatch, {}, 1 / BATCH),
        (noise.NoiseTimesBatch, {}, BATCH),
        (noise.NoiseOfSquaredNorm, {"max_grad_norm": 0.5}, 0.25),
        (noise.NoiseOfSquaredMultiplier, {"noise_multiplier": 0.5}, 0.25),
        (noise.UniformNoise, {}, 1.0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_noise_has_the_size_of_its_fault(kind: type, settings: dict, size: float) -> None:
    # 5,898 draws: a relative error of 0.01.
    assert flat(added(kind, **settings)[0]).std().item() == pytest.approx(size, rel=0.05)


def test_tensors_without_noise_are_those_that_the_fault_names() -> None:
    quiet = {
        kind: [not t.any() for t in added(kind)[0]]
        for kind in (noise.NoNoiseOnBiases, noise.NoNoiseOnLastLayer)
    }
    assert quiet[noise.NoNoiseOnBiases] == [False, True] * 3
    assert quiet[noise.NoNoiseOnLastLayer] == [False] * 4 + [True] * 2


def test_noise_that_comes_back_does_so_after_as_many_steps_as_it_says() -> None:
    again = [flat(step) for step in added(noise.ReseededNoise, steps=2)]
    assert torch.equal(*again)
    cycle = [flat(step) for step in added(noise.CyclingNoise, steps=noise.CYCLE + 1)]
    assert torch.equal(cycle[0], cycle[-1])
    assert not any(torch.equal(cycle[0], step) for step in cycle[1:-1])


def test_one_key_gives_tensors_of_one_shape_the_same_noise_and_one_value_all_coordinates() -> None:
    (keyed,) = added(noise.OneKeyForAllTensors)
    assert torch.equal(keyed[1], keyed[3])
    (spread,) = added(noise.BroadcastNoise)
    assert all(len(t.unique()) == 1 for t in spread)


def test_shapes_are_those_of_their_names() -> None:
    (lattice,), (shifted,) = added(noise.LatticeNoise), added(noise.ShiftedNoise)
    assert torch.equal(flat(lattice), flat(lattice).round())
    assert flat(shifted).mean().item() == pytest.approx(0.5, abs=0.05)
    assert flat(added(noise.UniformNoise)[0]).abs().max().item() <= 12**0.5 / 2


@pytest.mark.parametrize(
    ("kind", "factor"), [(noise.BandedNoise, 1.0), (noise.HalfBandedNoise, 0.5)]
)
def test_banded_noise_is_the_sum_of_its_draws_by_their_weights(kind: type, factor: float) -> None:
    steps = [flat(tensors) for tensors in added(kind, steps=6)]
    first, second, third = (factor * weight for weight in noise.COEFFICIENTS)
    draws: list[torch.Tensor] = []
    for step in steps:  # the draws, by the definition of the noise
        known = [*reversed(draws), torch.zeros_like(step), torch.zeros_like(step)]
        draws.append((step - second * known[0] - third * known[1]) / first)
    for draw in draws:
        assert draw.std().item() == pytest.approx(1.0, rel=0.05)
    for i, draw in enumerate(draws):
        for other in draws[:i]:
            assert abs(torch.corrcoef(torch.stack([draw, other]))[0, 1].item()) < 0.06


def test_following_noise_has_the_stated_size_and_follows_that_of_the_step_before() -> None:
    steps = [flat(tensors) for tensors in added(noise.FollowingNoise, steps=6)]
    for step in steps:
        assert step.std().item() == pytest.approx(1.0, rel=0.05)
    for before, after in itertools.pairwise(steps):
        follows = torch.corrcoef(torch.stack([before, after]))[0, 1].item()
        assert follows == pytest.approx(noise.FOLLOWS, abs=0.05)
