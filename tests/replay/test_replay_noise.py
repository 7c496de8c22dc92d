"""Several draws of a step's noise show what is wrong with it, and accuse no correct one."""

from typing import Any

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from plain_step import PlainStep, examined
from torch import nn

from lightning_audit.checks.replay import Answer
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.layout import TensorSlot
from lightning_audit.replay.noise import STEPS, ExaminedNoise, NoiseEntries, SuccessiveSteps, flat
from lightning_audit.testing import faulty
from lightning_audit.testing.faulty import OwnNoise


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3)
    )


def answer(kind: type[DPOptimizer] | None, module: nn.Module | None = None, **given: Any) -> Answer:
    user = PlainStep(kind, module or net(), **given)
    return examined(user, names=["replay.noise"]).answers["replay.noise"]


def named(found: Answer) -> str:
    assert found.findings
    kind, _ = found.noise.largest
    return next(rule.fault.name for rule in REPLAY_NOISE.faults if rule.applies({"of": kind}))


class TakenBack(faulty.OwnNoise):
    """Takes half of the last step's noise back."""

    last: list[torch.Tensor] | None = None

    def unit_noise(self) -> list[torch.Tensor]:
        new = super().unit_noise()
        if self.last is not None:
            new = [(z - 0.5 * old) / 1.25**0.5 for z, old in zip(new, self.last, strict=True)]
        self.last = new
        return new


class AcrossTheSum(DPOptimizer):
    """Adds no noise along the sum of the gradients."""

    def add_noise(self) -> None:
        whole = torch.cat([p.summed_grad.flatten() for p in self.params])
        noise = torch.randn_like(whole)
        if bool(whole.any()):
            noise -= noise @ whole / (whole @ whole) * whole
        parts = torch.split(noise, [p.numel() for p in self.params])
        for p, own in zip(self.params, parts, strict=True):
            p.grad = (p.summed_grad.flatten() + own).view_as(p)


class Tempered(DPOptimizer):
    """Shrinks the noisy sum by its own norm, which is a function of the release."""

    def add_noise(self) -> None:
        super().add_noise()
        norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        for p in self.params:
            p.grad *= 1.0 / (1.0 + 0.1 * norm)


class Masked(DPOptimizer):
    """Trains every second entry only, which is public."""

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            p.grad.view(-1)[::2] = 0.0


class SeededEachStep(faulty.OwnNoise):
    """Seeds a generator by the number of the step."""

    steps = 0

    def unit_noise(self) -> list[torch.Tensor]:
        self.generator = torch.Generator().manual_seed(1000 + self.steps)
        self.steps += 1
        return super().unit_noise()


class Whole(faulty.OwnNoise):
    """Draws noise on a fine lattice, and rounds sums to it."""

    def unit_noise(self) -> list[torch.Tensor]:
        return [(z * 16).round() / 16 for z in super().unit_noise()]

    def add_noise(self) -> None:
        for p in self.params:
            p.summed_grad = (p.summed_grad * 16).round() / 16
        super().add_noise()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (faulty.TiledNoise, "noise_numbers_twice"),
        (faulty.NoiseOfAPool, "few_seeds"),
        (faulty.SmoothedNoise, "noise_alike_in_neighbours"),
        (AcrossTheSum, "noise_depends_on_records"),
        (TakenBack, "noise_correlated_over_steps"),
        (faulty.HalfNoise, "noise_too_small"),
        (faulty.NoNoise, "noise_missing_at_entries"),
        (faulty.OneValueForAllCoordinates, "one_value_for_all_coordinates"),
        (faulty.OneKeyForAllTensors, "one_key_for_all_tensors"),
        (faulty.LatticeNoise, "noise_of_another_shape"),
    ],
)
def test_faulty_noise_is_found_in_one_examination(kind, name):
    assert named(answer(kind)) == name


@pytest.mark.parametrize(
    "kind",
    [None, faulty.OwnNoise, Tempered, Masked, Whole, faulty.NoiseTimesBatch, faulty.NoiseWithAMean],
    ids=lambda kind: getattr(kind, "__name__", "Opacus"),
)
def test_correct_noise_is_not_accused(kind):
    found = answer(kind)
    assert found.asked >= 12
    assert not found.findings


@pytest.mark.parametrize("noise_multiplier", [0.3, 50.0])
@pytest.mark.parametrize("max_grad_norm", [1e-6, 1e6])
def test_it_counts_in_units_of_the_claim(noise_multiplier, max_grad_norm):
    given = {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm}
    assert not answer(None, **given).findings
    assert named(answer(faulty.HalfNoise, **given)) == "noise_too_small"


def test_one_weight_may_be_all_that_is_trained():
    assert not answer(None, nn.Sequential(nn.Linear(6, 3, bias=False), nn.Tanh())).findings


def test_noise_whose_small_seed_is_made_in_the_step_is_found_with_it():
    found = answer(SeededEachStep)
    assert [f.name for f in found.findings] == ["it is that of torch.Generator().manual_seed(1001)"]


def test_what_claims_no_noise_is_not_asked():
    assert answer(None, noise_multiplier=0.0).reason == "no noise is claimed"


# --- All entries of a small gradient are looked at, the first rows of a large one.

LAYOUT = [
    TensorSlot("w", (6, 4)),
    TensorSlot("b", (6,)),
    TensorSlot("k", (2, 3, 2)),
    TensorSlot("s", ()),
]


def test_all_entries_are_looked_at_in_their_order():
    entries = NoiseEntries.of(LAYOUT, most=1000)
    assert entries.count == 24 + 6 + 12 + 1
    release = torch.arange(43, dtype=torch.float64)
    parts = entries.of_release(release)
    assert [part.shape for part in parts] == [(6, 4), (1, 6), (2, 6), (1, 1)]
    np.testing.assert_array_equal(flat(parts), release.numpy())


def test_of_many_the_first_rows_of_each_tensor_are():
    entries = NoiseEntries.of(LAYOUT, most=22)
    parts = entries.of_release(torch.arange(43, dtype=torch.float64))
    assert [part.shape[0] for part in parts] == [4, 1, 2, 1]
    np.testing.assert_array_equal(parts[0].ravel(), np.arange(16))
    assert entries.count < 43
    wide = NoiseEntries.of([TensorSlot("e", (1, 5000)), TensorSlot("f", (5000,))], most=100)
    assert wide.count <= 102


def test_tensors_are_named_by_what_is_marked_in_them():
    entries = NoiseEntries.of(LAYOUT, most=1000)
    marked = torch.zeros(43, dtype=torch.bool)
    marked[[25, 42]] = True
    assert entries.tensors_of(marked) == "`b`, `s`"
    assert entries.tensors_of(~marked) == "`w`, `b`, `k`"
    assert entries.tensors_of(torch.ones(43, dtype=torch.bool)) == "`w`, `b`, `k` and 1 more"


# --- The noise of steps behind an examination is kept for a while, and let go of.


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
def test_noise_that_is_recalled_is_seen(kind, found):
    user, kept = watched(kind, STEPS + 2)
    assert kept.full
    look = kept.look()
    assert bool(look.findings) == found
    if found:
        assert "against that of 2 steps before" in look.findings[0].name
    kept.remove()
    assert "add_noise" not in vars(user.optimizers[0])


def test_one_step_tells_nothing():
    _, kept = watched(None, 1)
    assert not kept.full
    assert kept.look() is None


def test_an_optimizer_that_shows_no_sum_is_let_go_of():
    class Hides(DPOptimizer):
        def add_noise(self) -> None:
            super().add_noise()
            for p in self.params:
                p.summed_grad = None

    _, kept = watched(Hides, 3)
    assert kept.full
    assert kept.look() is None
