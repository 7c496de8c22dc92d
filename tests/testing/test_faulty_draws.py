"""Noise of the right size that is drawn wrongly is as its name says."""

from __future__ import annotations

import pytest
import torch
from added_noise import added, flat

from lightning_audit.testing import faulty

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("kind", [faulty.OwnNoise, faulty.TiledNoise, faulty.MirroredNoise])
def test_noise_has_the_stated_size(kind: type) -> None:
    # 5,898 draws, of which a tile leaves 300 or so.
    for tensors in added(kind, steps=3):
        assert flat(tensors).std().item() == pytest.approx(1.0, rel=0.15)


def test_the_same_entry_in_a_hundred_has_no_noise_at_any_step() -> None:
    first, second = (flat(tensors) for tensors in added(faulty.OneInAHundredWithout, steps=2))
    assert torch.equal(first == 0, second == 0)
    assert (first == 0).double().mean().item() == pytest.approx(0.01, abs=0.004)


def test_entries_share_the_draws_of_a_tile_or_of_the_mirrored_half() -> None:
    for tensor in added(faulty.TiledNoise)[0]:
        assert len(tensor.unique()) == min(faulty.TILE, tensor.numel())
        if tensor.numel() > faulty.TILE:
            row = tensor.flatten()
            assert torch.equal(row[: -faulty.TILE], row[faulty.TILE :])
    for tensor in added(faulty.MirroredNoise)[0]:
        row, half = tensor.flatten(), tensor.numel() // 2
        assert torch.equal(row[:half], -row.flip(0)[:half])
