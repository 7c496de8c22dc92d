"""The noise of steps behind an examination is kept for a while, and let go of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from plain_step import PlainStep
from torch import nn

from lightning_audit.replay.noise import STEPS, ExaminedNoise, NoiseEntries, SuccessiveSteps
from lightning_audit.testing.faulty import OwnNoise


class Recalls(OwnNoise):
    """Adds a part of the noise of the step before the last."""

    def unit_noise(self) -> list[torch.Tensor]:
        past = self.__dict__.setdefault("past", [])
        new = super().unit_noise()
        if len(past) > 1:
            new = [0.8 * z - 0.6 * old for z, old in zip(new, past[-2], strict=True)]
        past.append(new)
        return new


def watched(kind: type[DPOptimizer] | None, steps: int) -> tuple[PlainStep, SuccessiveSteps]:
    user = PlainStep(kind, nn.Sequential(nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 3)))
    entries = NoiseEntries.of(user.adapter.layout, most=10_000)
    draws = np.random.default_rng(0).normal(size=(12, entries.count)).astype(np.float32)
    kept = SuccessiveSteps(user.adapter, ExaminedNoise(entries, draws))
    torch.manual_seed(3)
    for _ in range(steps):
        user.take([user.batch()])
    return user, kept


@pytest.mark.parametrize(("kind", "found"), [(Recalls, True), (OwnNoise, False), (None, False)])
def test_noise_that_is_recalled_is_seen(kind: type[DPOptimizer] | None, found: bool) -> None:
    user, kept = watched(kind, STEPS + 2)
    assert kept.full
    look = kept.look()
    assert look is not None
    assert bool(look.findings) == found
    if found:
        assert "against that of 2 steps before" in look.findings[0].name
    kept.remove()
    assert "add_noise" not in vars(user.optimizers[0])


def test_one_step_tells_nothing() -> None:
    _, kept = watched(None, 1)
    assert not kept.full
    assert kept.look() is None


def test_an_optimizer_that_shows_no_sum_is_let_go_of() -> None:
    class Hides(DPOptimizer):
        def add_noise(self) -> None:
            super().add_noise()
            for p in self.params:
                p.summed_grad = None

    _, kept = watched(Hides, 3)
    assert kept.full
    assert kept.look() is None
