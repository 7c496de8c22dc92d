"""What changes during a training: layers, noise, seeds, parameters beside the private ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from training_support import PrivateModule, digits, mlp, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.dpsgd.opacus import accountant_link
from lightning_audit.testing.faulty import ClipAtTwice


def _report(tmp_path: Path, module: pl.LightningModule, *callbacks: Any, **options: Any):
    audit = PrivacyAudit(on_violation="warn", seed=1, **options.pop("audit", {}))
    trainer_for(tmp_path, audit, *callbacks, **options).fit(module)
    return audit.report


class NoNoiseForThreeSteps(DPOptimizer):
    """Steps 150 to 152 go out without noise."""

    taken = 0

    def add_noise(self) -> None:
        stated = self.noise_multiplier
        self.noise_multiplier = 0.0 if 150 <= self.taken < 153 else stated
        super().add_noise()
        self.noise_multiplier = stated
        self.taken += 1


@pytest.mark.heavy
def test_three_steps_without_noise_among_three_hundred_are_seen(tmp_path: Path) -> None:
    report = _report(tmp_path, PrivateModule(optimizer_class=NoNoiseForThreeSteps), max_steps=300)
    assert report.verdict.outcome == "VIOLATION"
    assert "noise of some steps" in report.verdict.fault


class SeedsEveryEpoch(PrivateModule):
    """An epoch of 57 steps, longer than the lags: the noise starts anew with each."""

    def on_train_epoch_start(self) -> None:
        private = self.trainer.optimizers[0]
        private.generator = torch.Generator().manual_seed(5)


@pytest.mark.heavy
def test_noise_seeded_anew_in_each_epoch_is_seen(tmp_path: Path) -> None:
    report = _report(tmp_path, SeedsEveryEpoch(batch_size=9), max_epochs=4)
    assert report.verdict.outcome == "VIOLATION"
    assert "the same noise is added in every epoch" in report.verdict.fault


class ClipsByWhatTheBatchHolds(DPOptimizer):
    """The gradients of one batch in fifty are not clipped, by a number of its records."""

    def clip_and_accumulate(self) -> None:
        rows = torch.cat([g.flatten(1) for g in self.grad_samples], dim=1)
        median = float(rows.norm(dim=1).median())
        stated = self.max_grad_norm
        if (math.sin(12.9898 * median) * 43758.5453) % 1.0 < 0.02:
            self.max_grad_norm = 1e9
        super().clip_and_accumulate()
        self.max_grad_norm = stated


def test_canaries_that_pass_in_few_steps_are_not_taken_for_noise(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = PrivateModule(mlp(64), dataset=digits(), optimizer_class=ClipsByWhatTheBatchHolds)
    report = _report(tmp_path, module, max_steps=150)
    status = {check.name: check.status for check in report.checks}
    assert (status["sensitivity"], status["noise.excess"]) == ("ok", "ok")
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.verdict.pass_blockers[0].startswith("sums are longer than clipping allows, and")


class FreezesALayer(PrivateModule):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 20:
            next(self.net.parameters()).requires_grad_(False)


def test_a_layer_frozen_midway_is_left_alone_and_said(tmp_path: Path) -> None:
    def trained(*callbacks: Any) -> torch.Tensor:
        pl.seed_everything(3, verbose=False)
        module = FreezesALayer()
        trainer_for(tmp_path, *callbacks, max_steps=40).fit(module)
        return torch.cat([p.detach().flatten() for p in module.parameters()])

    audit = PrivacyAudit(on_violation="warn", seed=1)
    audited, plain = trained(audit), trained()
    assert torch.linalg.norm(audited - plain) <= 1e-6 * torch.linalg.norm(plain)
    assert audit.report.verdict.outcome == "INCONCLUSIVE"
    assert any(
        "trained parameters changed in step 21" in m for m in audit.report.verdict.pass_blockers
    )


class GainsAPrivateLayer(PrivateModule):
    """Clipped and noised as the others, by what Opacus does; the audit began without it."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 20:
            self.head = GradSampleModule(nn.Linear(10, 10))
            group = {"params": list(self.head.parameters())}
            self.trainer.optimizers[0].add_param_group(group)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        scores = self.net(batch[0])
        head = getattr(self, "head", None)
        return functional.cross_entropy(scores if head is None else head(scores), batch[1])


class GainsALayerBeside(GainsAPrivateLayer):
    """It is trained by an optimizer of its own, which the Trainer does not know."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 20:
            self.head = nn.Linear(10, 10)
            self.own = torch.optim.SGD(self.head.parameters(), lr=0.1)

    def on_train_batch_end(self, *_: Any) -> None:
        if getattr(self, "own", None) is not None:
            self.own.step()


class GainsAFrozenLayer(GainsAPrivateLayer):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 20:
            self.head = nn.Linear(10, 10).requires_grad_(False)


def test_parameters_that_join_the_private_optimizer_are_said(tmp_path: Path) -> None:
    report = _report(tmp_path, GainsAPrivateLayer(), max_steps=60)
    (changed,) = (m for m in report.verdict.pass_blockers if "parameters changed" in m)
    assert "in step 21: 2 joined, without which the audit began (shapes (10, 10), (10,))" in changed
    assert not any("NaN" in m or "`head" in m for m in report.verdict.pass_blockers)
    assert report.verdict.outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(("kind", "said"), [(GainsALayerBeside, True), (GainsAFrozenLayer, False)])
def test_a_layer_that_is_added_and_trained_without_noise_does_not_pass(
    tmp_path: Path, kind: Any, said: bool
) -> None:
    report = _report(tmp_path, kind(), max_steps=96)
    found = [m for m in report.verdict.pass_blockers if "`head.weight`, `head.bias` changed" in m]
    assert len(found) == said
    assert report.verdict.outcome != "VIOLATION"


class NoiseFallsInTheModulesHook(PrivateModule):
    """Runs after the callbacks' hook: what the audit read before is no longer stated."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        private = self.trainer.optimizers[0]
        private.noise_multiplier = 2.0 if self.trainer.global_step < 3 else 0.5


def test_noise_that_the_module_lowers_just_before_the_step_is_no_fault(tmp_path: Path) -> None:
    module = NoiseFallsInTheModulesHook(noise_multiplier=2.0)
    report = _report(tmp_path, module, max_steps=60)
    assert report.verdict.outcome != "VIOLATION", report.verdict
    assert {sigma for sigma, *_ in report.history} == {2.0, 0.5}


def test_canaries_of_the_clipping_norm_cannot_pass(tmp_path: Path) -> None:
    module = PrivateModule(optimizer_class=ClipAtTwice)
    report = _report(tmp_path, module, max_steps=150, audit={"oversize": 1.0})
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("set oversize to 1000" in item for item in report.verdict.pass_blockers)


class AccountantIsToldTwiceTheNoise(PrivateModule):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        accountant = accountant_link(optimizer).accountant
        step = accountant.step

        def told(*, noise_multiplier: float, sample_rate: float) -> None:
            step(noise_multiplier=2 * noise_multiplier, sample_rate=sample_rate)

        accountant.step = told
        return optimizer


def test_an_accountant_that_is_told_more_noise_than_there_is_does_not_count(tmp_path: Path) -> None:
    report = _report(tmp_path, AccountantIsToldTwiceTheNoise(), max_steps=64)
    assert report.verdict.outcome == "VIOLATION"
    assert report.verdict.kind == "accounting"
    assert report.epsilon_spent > 1.5 * report.claimed_epsilon
