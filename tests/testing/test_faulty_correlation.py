"""Correlated noise has the size and the correlation that its name says."""

from __future__ import annotations

import pytest
import torch
from added_noise import added, flat

from lightning_audit.testing import faulty

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(
    "kind",
    [
        faulty.AutoregressiveNoise,
        faulty.OppositeNoise,
        faulty.FlippedNoise,
        faulty.CancellingNoise,
    ],
)
def test_noise_has_the_stated_size_at_each_step(kind: type) -> None:
    # 5,898 draws: a relative error of 0.01.
    for drawn in added(kind, steps=3):
        assert flat(drawn).std().item() == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (faulty.AutoregressiveNoise, 0.4),
        (faulty.OppositeNoise, -0.6),
        (faulty.CancellingNoise, -0.5),
    ],
)
def test_a_part_of_the_noise_is_that_of_the_step_before(kind: type, part: float) -> None:
    before, now, _ = (flat(drawn) for drawn in added(kind, steps=4)[1:])
    found = torch.corrcoef(torch.stack([before, now]))[0, 1]
    assert found.item() == pytest.approx(part, abs=0.05)


def test_noise_is_taken_back_at_every_second_step() -> None:
    first, second, third, fourth = (flat(drawn) for drawn in added(faulty.FlippedNoise, steps=4))
    assert torch.equal(first, -second)
    assert torch.equal(third, -fourth)
    assert not torch.equal(first.abs(), third.abs())


@pytest.mark.parametrize(
    ("kind", "factor"), [(faulty.BandedNoise, 1.0), (faulty.HalfBandedNoise, 0.5)]
)
def test_banded_noise_is_the_sum_of_its_draws_by_their_weights(kind: type, factor: float) -> None:
    steps = [flat(tensors) for tensors in added(kind, steps=6)]
    first, second, third = (factor * weight for weight in faulty.COEFFICIENTS)
    draws: list[torch.Tensor] = []
    for step in steps:  # the draws, by the definition of the noise
        known = [*reversed(draws), torch.zeros_like(step), torch.zeros_like(step)]
        draws.append((step - second * known[0] - third * known[1]) / first)
    for draw in draws:
        assert draw.std().item() == pytest.approx(1.0, rel=0.05)
    for i, draw in enumerate(draws):
        for other in draws[:i]:
            assert abs(torch.corrcoef(torch.stack([draw, other]))[0, 1].item()) < 0.06
