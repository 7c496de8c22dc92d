"""What is added is what the name of a fault says, measured on Opacus' own optimizer."""

from __future__ import annotations

import pytest
import torch
from added_noise import added, flat

from lightning_audit.testing import faulty

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")
BATCH = 16


@pytest.mark.parametrize(
    ("kind", "settings", "size"),
    [
        (faulty.HalfNoise, {}, 0.5),
        (faulty.NoNoise, {}, 0.0),
        (faulty.NoiseOverBatch, {}, 1 / BATCH),
        (faulty.NoiseTimesBatch, {}, BATCH),
        (faulty.NoiseOfSquaredNorm, {"max_grad_norm": 0.5}, 0.25),
        (faulty.NoiseOfSquaredMultiplier, {"noise_multiplier": 0.5}, 0.25),
        (faulty.UniformNoise, {}, 1.0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_noise_has_the_size_of_its_fault(kind: type, settings: dict, size: float) -> None:
    # 5,898 draws: a relative error of 0.01.
    for drawn in added(kind, steps=3, **settings):
        assert flat(drawn).std().item() == pytest.approx(size, rel=0.05)


def test_tensors_without_noise_are_those_that_the_fault_names() -> None:
    quiet = {
        kind: [not t.any() for t in added(kind)[0]]
        for kind in (faulty.NoNoiseOnBiases, faulty.NoNoiseOnLastLayer)
    }
    assert quiet[faulty.NoNoiseOnBiases] == [False, True] * 3
    assert quiet[faulty.NoNoiseOnLastLayer] == [False] * 4 + [True] * 2


def test_noise_that_comes_back_does_so_after_as_many_steps_as_it_says() -> None:
    again = [flat(step) for step in added(faulty.ReseededNoise, steps=2)]
    assert torch.equal(*again)
    cycle = [flat(step) for step in added(faulty.CyclingNoise, steps=faulty.CYCLE + 1)]
    assert torch.equal(cycle[0], cycle[-1])
    assert not any(torch.equal(cycle[0], step) for step in cycle[1:-1])


def test_one_key_gives_tensors_of_one_shape_the_same_noise_and_one_value_all_coordinates() -> None:
    (keyed,) = added(faulty.OneKeyForAllTensors)
    assert torch.equal(keyed[1], keyed[3])
    (spread,) = added(faulty.BroadcastNoise)
    assert all(len(t.unique()) == 1 for t in spread)


def test_shapes_are_those_of_their_names() -> None:
    (lattice,), (shifted,) = added(faulty.LatticeNoise), added(faulty.ShiftedNoise)
    assert torch.equal(flat(lattice), flat(lattice).round())
    assert flat(shifted).mean().item() == pytest.approx(0.5, abs=0.05)
    assert flat(added(faulty.UniformNoise)[0]).abs().max().item() <= 12**0.5 / 2


def test_the_largest_tensor_alone_has_less_noise() -> None:
    drawn = added(faulty.LessNoiseOnLargest)[0]
    largest = max(range(len(drawn)), key=lambda j: drawn[j].numel())
    sizes = [t.std().item() for t in drawn if t.numel() > 500]
    assert drawn[largest].std().item() == pytest.approx(0.9, abs=0.04)
    assert sum(size > 0.95 for size in sizes) == len(sizes) - 1
