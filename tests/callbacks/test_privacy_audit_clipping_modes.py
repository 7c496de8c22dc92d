"""Faults are found, and what cannot be audited is said, under every way of Opacus to clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from training_matrix import AdaClip, Ghost, ManualGhost, PerLayer, wide
from training_support import fit, status, trainer_for, violation

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Blank
from lightning_audit.record.store import DROPPED, read_observations
from lightning_audit.testing.faults import plant


def _as(optimizer: DPOptimizer, kind: type[DPOptimizer]) -> DPOptimizer:
    """The optimizer, with the methods of another class."""
    optimizer.__class__ = kind
    return optimizer


class QuietPerLayer(PerLayer):
    def configure_optimizers(self) -> Any:
        return plant(super().configure_optimizers(), "half_noise")


class TwicePerLayer(DPPerLayerOptimizer):
    def clip_and_accumulate(self) -> None:
        norms = self.max_grad_norms
        self.max_grad_norms = [2.0 * norm for norm in norms]
        super().clip_and_accumulate()
        self.max_grad_norms = norms


class LoosePerLayer(PerLayer):
    def configure_optimizers(self) -> Any:
        return _as(super().configure_optimizers(), TwicePerLayer)


class QuietAdaClip(AdaClip):
    """The noise that the accountant is told, without what the count takes of it."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return _as(optimizer, type("Q", (_StatedNoise, AdaClipDPOptimizer), {}))


class _StatedNoise(AdaClipDPOptimizer):
    def add_noise(self) -> None:
        std = self.unclipped_num_std
        self.unclipped_num_std = 1e6
        super().add_noise()
        self.unclipped_num_std = std


class QuietGhost(Ghost):
    def configure_optimizers(self) -> Any:
        return plant(super().configure_optimizers(), "half_noise")


class LooseGhost(Ghost):
    """Losses are weighted for twice the clipping norm."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.net.max_grad_norm *= 2
        return optimizer


@pytest.mark.parametrize("kind", [QuietPerLayer, QuietGhost])
def test_half_the_noise_is_found(tmp_path: Path, kind: Any) -> None:
    audit = PrivacyAudit(seed=1, on_violation="warn")
    report = fit(tmp_path, wide(kind), audit, max_steps=30)
    assert status(report, "noise") == "violated"
    assert status(report, "sensitivity") == "ok"


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [LoosePerLayer, LooseGhost])
def test_clipping_at_twice_the_norm_is_found(tmp_path: Path, kind: Any) -> None:
    report = fit(tmp_path, wide(kind), PrivacyAudit(seed=1, on_violation="warn"), max_steps=150)
    assert status(report, "sensitivity") == "violated"
    shift = next(c for c in report.checks if c.name == "sensitivity").evidence["shift"]
    assert shift == pytest.approx(2.0, abs=0.4)


def test_adaptive_clipping_without_the_noise_that_its_count_costs_is_found(tmp_path: Path) -> None:
    module = wide(QuietAdaClip, noise_multiplier=2.0)
    module.engine_arguments = {**module.engine_arguments, "unclipped_num_std": 1.2}
    report = fit(tmp_path, module, PrivacyAudit(seed=1, on_violation="warn"), max_steps=60)
    assert status(report, "noise") == "violated"


class ShortNorms(Ghost):
    """A layer's norm is lost, so that samples pass with more than the clipping norm."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        net, own = self.net, self.net.get_norm_sample
        net.__dict__["get_norm_sample"] = lambda: 1e-3 * own()
        return optimizer


def test_ghost_norms_that_gradients_exceed_are_found_although_canaries_are_clipped(
    tmp_path: Path,
) -> None:
    report = violation(tmp_path, wide(ShortNorms), PrivacyAudit(seed=1), max_steps=20)
    assert status(report, "clipping.norm") == "violated"
    assert status(report, "sensitivity") == "ok"
    assert "wrong norms" in report.verdict.fault


class AroundLightning(ManualGhost):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        x, y = batch
        self.criterion(self.net(x), y).backward()
        optimizer.step()


def test_ghost_losses_that_run_backward_unannounced_are_not_passed(tmp_path: Path) -> None:
    report = fit(tmp_path, wide(AroundLightning), PrivacyAudit(seed=1), max_steps=40)
    assert report.verdict.outcome == "INCONCLUSIVE"
    _, entries = read_observations(tmp_path / "audit" / report.record)
    assert (entries["canaries"] == DROPPED).all()
    said = next(note for note in report.notes if "clipped before a canary" in note)
    assert "call self.manual_backward(loss) instead" in said


@pytest.mark.parametrize(("kind", "word"), [(PerLayer, "per-layer"), (AdaClip, "adaptive")])
def test_input_canaries_that_could_not_be_taken_out_are_refused(
    tmp_path: Path, kind: Any, word: str
) -> None:
    loss = torch.nn.functional.cross_entropy
    trainer = trainer_for(tmp_path, PrivacyAudit(canaries=[Blank(loss=loss, num_classes=10)]))
    with pytest.raises(MisconfigurationException, match=f"{word} clipping; use gradient canaries"):
        trainer.fit(wide(kind))
    assert trainer.global_step == 0
