"""Hand-written DP-SGD that is not changed is audited by a canary in its batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hand_written_support import (
    BATCH,
    CLAIM,
    CLIP,
    Gradients,
    HandWritten,
    OneByOne,
    OwnOptimizer,
    SelfContainedOptimizer,
)
from input_canary_support import (
    STATED,
    audit_unchanged,
    audit_with,
    readings_in,
    records_in,
    weights_of,
)
from stages import staged
from torch.utils.data import DataLoader, TensorDataset
from training_support import fit, status, trainer_for, violation

from lightning_audit import PrivacyClaim
from lightning_audit.canaries import Blank, InputCanary, Mislabeled

HEAVY = pytest.mark.heavy


class ClipsTheMean(HandWritten):
    """The mean gradient is clipped, with the noise that per-sample clipping would need."""

    def write_gradient(self, grads: Gradients) -> None:
        means = {n: g.mean(0) if len(g) else g.sum(0) for n, g in grads.items()}
        norm = torch.stack([mean.norm() for mean in means.values()]).norm()
        factor = (CLIP / (norm + 1e-9)).clamp(max=1.0)
        for name, p in self.net.named_parameters():
            p.grad = means[name] * factor + self.noise(p) / BATCH


class HalfTheNoise(HandWritten):
    def noise(self, p: torch.Tensor) -> torch.Tensor:
        return 0.5 * super().noise(p)


def test_clipping_the_mean_is_found_in_unchanged_hand_written_code(tmp_path: Path) -> None:
    canary = Mislabeled(amplitude=100.0, **STATED)
    report = violation(tmp_path, ClipsTheMean(ask=False), audit_unchanged(canary), max_steps=200)
    assert status(report, "sensitivity") == "violated"
    assert "clipped" in report.verdict.fault or "no clipping" in report.verdict.fault


def test_half_the_noise_is_found_in_unchanged_hand_written_code(tmp_path: Path) -> None:
    canary = Mislabeled(amplitude=100.0, **STATED)
    audit = audit_unchanged(canary, on_violation="warn")
    report = fit(tmp_path, HalfTheNoise(ask=False), audit, max_steps=60)
    assert status(report, "noise") == "violated"
    assert status(report, "sensitivity") == "ok"


@pytest.mark.parametrize(
    ("kind", "ask"),
    staged([], [(HandWritten, True)] + [(k, False) for k in (OwnOptimizer, HandWritten, OneByOne)]),
)
def test_sound_hand_written_code_passes_and_keeps_its_weights(
    tmp_path: Path, kind: type[HandWritten], ask: bool
) -> None:
    models = []
    for name in ("plain", "audited"):
        torch.manual_seed(3)
        module = kind(ask=ask)
        if name == "plain":
            trainer_for(tmp_path / name, max_steps=300).fit(module)
        else:
            audit = audit_unchanged(Mislabeled(amplitude=100.0, **STATED))
            report = fit(tmp_path, module, audit, max_steps=300)
            assert report.verdict.outcome == "PASS", report.verdict
        models.append(weights_of(module))
    assert torch.linalg.norm(models[1] - models[0]) <= 1e-6 * torch.linalg.norm(models[0])
    out, inside = readings_in(tmp_path)
    error = np.hypot(out.std() / len(out) ** 0.5, inside.std() / len(inside) ** 0.5)
    assert abs(inside.mean() - out.mean() - 1.0) < 4.0 * error


def test_an_optimizer_whose_update_cannot_be_read_is_not_passed(tmp_path: Path) -> None:
    audit = audit_unchanged(Mislabeled(amplitude=100.0, **STATED))
    report = fit(tmp_path, SelfContainedOptimizer(ask=False), audit, max_steps=40)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("cannot be read" in item for item in report.verdict.pass_blockers)
    assert not records_in(tmp_path)["coins"].any()


# ------------------------------------------------------------------ the reading


class SameBatch(HandWritten):
    """One batch at every step, weights that stay, and hardly any noise."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def train_dataloader(self) -> DataLoader:
        few = TensorDataset(*(tensor[:BATCH] for tensor in self.dataset.tensors))
        return DataLoader(few, batch_size=BATCH)

    def noise(self, p: torch.Tensor) -> torch.Tensor:
        return 1e-4 * torch.randn_like(p)


@pytest.mark.parametrize(
    ("canary", "clip"),
    [
        (Mislabeled(amplitude=100.0, **STATED), 1.0),
        (Mislabeled(**STATED), 50.0),
        (Blank(**STATED), 50.0),
    ],
)
def test_the_signal_is_the_clipped_norm_of_the_canarys_own_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canary: InputCanary, clip: float
) -> None:
    monkeypatch.setattr("hand_written_support.CLIP", clip)
    claim = PrivacyClaim(noise_multiplier=1e-4 / clip, max_grad_norm=clip, expected_batch_size=16)
    audit = audit_with(canary, claim=claim, on_violation="warn")
    module = SameBatch(ask=False)
    trainer = trainer_for(tmp_path, audit, max_steps=30)
    norms: list[float] = []

    class _Norm(pl.Callback):
        def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            norms.append(audit._run.session.source.oversize)

    trainer.callbacks.insert(0, _Norm())
    trainer.fit(module)
    out, inside = readings_in(tmp_path)
    assert len(out) > 5 < len(inside)
    expected = min(1.0, norms[0])
    assert inside.mean() - out.mean() == pytest.approx(expected, abs=1e-3)
    assert (clip == 50.0) == (expected < 0.5)


def test_a_canary_below_the_clipping_norm_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hand_written_support.CLIP", 50.0)
    audit = audit_with(Blank(**STATED), claim=replace(CLAIM, max_grad_norm=50.0))
    report = fit(tmp_path, HandWritten(ask=False), audit, max_steps=60)
    missing = " ".join(report.verdict.pass_blockers)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert "take an input canary whose gradient is longer, as Mislabeled(" in missing


def test_clipping_the_mean_is_found_by_a_rare_canary(tmp_path: Path) -> None:
    canary = Mislabeled(amplitude=100.0, sampling_rate=0.1, **STATED)
    report = violation(tmp_path, ClipsTheMean(ask=False), audit_unchanged(canary), max_steps=200)
    assert status(report, "sensitivity") == "violated"
