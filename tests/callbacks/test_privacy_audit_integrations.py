"""Ways in which people bring Opacus into a Lightning training, other than in the module's net."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.lightning import DPLightningDataModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from training_support import (
    PrivateModule,
    assert_no_hooks_left,
    fit,
    mlp,
    random_data,
    replace_optimizer,
    status,
    trainer_for,
    violation,
)

from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.testing.faulty import HalfNoise

STEPS_PER_EPOCH = 32
SAMPLE_RATE = 1 / STEPS_PER_EPOCH


def assert_sound(report: AuditReport, steps: int, *, sigma: float = 1.0) -> None:
    """Every step was observed, the training passes, and its epsilon is that of its steps."""
    assert report.verdict.outcome == "PASS", report.verdict
    assert report.steps == steps
    assert report.observations == steps * 8
    expected = epsilon_of_history([Phase(sigma, SAMPLE_RATE, steps)], report.delta)
    assert report.epsilon_spent == pytest.approx(expected, rel=0.01)


# ------------------------------------------------------------------ DPLightningDataModule


class PlainData(pl.LightningDataModule):
    """Data that know nothing of privacy."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(random_data(), batch_size=16)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(random_data(64, seed=1), batch_size=16)


class SelfPrivate(pl.LightningModule):
    """As in Opacus' own Lightning example: the whole module is made private, on the data module's
    loader, and the trainer goes on with the module that it was given.
    """

    def __init__(self, optimizer_class: type[DPOptimizer] | None = None) -> None:
        super().__init__()
        self.net = mlp()
        self.engine = PrivacyEngine()
        self.optimizer_class = optimizer_class

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> DPOptimizer:
        self.trainer.fit_loop.setup_data()
        loader = self.trainer.train_dataloader
        assert isinstance(loader, DPDataLoader)
        private, optimizer, _ = self.engine.make_private(
            module=self,
            optimizer=torch.optim.SGD(self.parameters(), lr=0.05),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=True,
        )
        self.private = {"model": private}  # in a dict, so that it is no submodule of its own
        if self.optimizer_class is None:
            return optimizer
        return replace_optimizer(optimizer, self.optimizer_class)


def test_opacus_data_module_with_the_module_itself_private_passes(tmp_path: Path) -> None:
    audit, module = PrivacyAudit(seed=1), SelfPrivate()
    trainer = trainer_for(tmp_path, audit, max_steps=64)
    trainer.fit(module, datamodule=DPLightningDataModule(PlainData()))
    assert_sound(audit.report, 64)
    assert status(audit.report, "sampling.not_poisson") == "ok"
    assert_no_hooks_left(module)


def test_half_noise_with_opacus_data_module_is_a_violation(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1, on_violation="stop")
    trainer = trainer_for(tmp_path, audit, max_steps=64)
    trainer.fit(SelfPrivate(HalfNoise), datamodule=DPLightningDataModule(PlainData()))
    assert audit.report.verdict.fault.startswith("noise scale too small")


# ------------------------------------------------------------------ PrivacyEngine in a callback


class PlainModule(pl.LightningModule):
    """A training without privacy, on a Poisson loader."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.dataset = random_data()

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=16)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y)

    def train_dataloader(self) -> DPDataLoader:
        return DPDataLoader.from_data_loader(self.plain_loader())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=0.05)


class MakePrivate(pl.Callback):
    """A user's callback that makes a training private, when one hook is called.

    Args:
        hook: the callback's hook.
        once: at the first call only, rather than at each.
        one_engine: one engine and so one accountant, rather than a new one each time.
        optimizer_class: replaces Opacus' optimizer.
        wrap_model: of Opacus.
    """

    def __init__(
        self,
        hook: str,
        *,
        once: bool = True,
        one_engine: bool = True,
        optimizer_class: type[DPOptimizer] = DPOptimizer,
        wrap_model: bool = True,
    ) -> None:
        self.engine = PrivacyEngine()
        self.once, self.one_engine = once, one_engine
        self.optimizer_class, self.wrap_model = optimizer_class, wrap_model
        self.made = 0
        setattr(self, hook, self._make)

    def _make(self, trainer: pl.Trainer, pl_module: PlainModule, *_: Any) -> None:
        if self.made and self.once:
            return
        if not self.one_engine:
            self.engine = PrivacyEngine()
        self.made += 1
        net, optimizer, _ = self.engine.make_private(
            module=pl_module.net,
            optimizer=getattr(trainer.optimizers[0], "original_optimizer", trainer.optimizers[0]),
            data_loader=pl_module.plain_loader(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            wrap_model=self.wrap_model,
        )
        if self.wrap_model:
            pl_module.net = net
        trainer.strategy.optimizers = [replace_optimizer(optimizer, self.optimizer_class)]


HOOKS = ["on_train_start", "on_train_epoch_start", "on_train_batch_start"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("audit_first", [True, False], ids=["audit first", "audit last"])
@pytest.mark.one_in(4)
def test_private_by_a_callback_passes_wherever_the_audit_stands(
    tmp_path: Path, hook: str, audit_first: bool
) -> None:
    module, user = PlainModule(), MakePrivate(hook)
    audit = PrivacyAudit(seed=1)
    callbacks = [audit, user] if audit_first else [user, audit]
    trainer_for(tmp_path, *callbacks, max_steps=64).fit(module)
    assert_sound(audit.report, 64)
    assert status(audit.report, "no_dp") == "ok"
    assert_no_hooks_left(module)


@pytest.mark.parametrize("audit_first", [True, False], ids=["audit first", "audit last"])
def test_half_noise_by_a_callback_is_a_violation(tmp_path: Path, audit_first: bool) -> None:
    user = MakePrivate("on_train_epoch_start", optimizer_class=HalfNoise)
    audit = PrivacyAudit(seed=1, on_violation="stop")
    callbacks = [audit, user] if audit_first else [user, audit]
    trainer_for(tmp_path, *callbacks, max_steps=64).fit(PlainModule())
    assert audit.report.verdict.fault.startswith("noise scale too small")


def test_stated_mechanism_is_audited_although_a_callback_makes_it_private_late(
    tmp_path: Path,
) -> None:
    claim = PrivacyClaim(noise_multiplier=1.0, sample_rate=SAMPLE_RATE)
    user = MakePrivate("on_train_epoch_start")
    report = fit(tmp_path, PlainModule(), PrivacyAudit(claim=claim, seed=1), user, max_steps=64)
    assert_sound(report, 64)


class WrapConfiguration(MakePrivate):
    """Makes the optimizer private where it comes from."""

    def __init__(self) -> None:
        super().__init__("unused")

    def setup(self, trainer: pl.Trainer, pl_module: PlainModule, stage: str) -> None:
        plain = pl_module.configure_optimizers

        def private() -> DPOptimizer:
            pl_module.net, optimizer, _ = self.engine.make_private(
                module=pl_module.net,
                optimizer=plain(),
                data_loader=pl_module.plain_loader(),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
            )
            return optimizer

        pl_module.configure_optimizers = private


def test_configure_optimizers_wrapped_by_a_callback_passes(tmp_path: Path) -> None:
    module = PlainModule()
    assert_sound(fit(tmp_path, module, PrivacyAudit(seed=1), WrapConfiguration(), max_steps=64), 64)
    assert_no_hooks_left(module)


# ------------------------------------------------------------------ anew each epoch


@pytest.mark.parametrize("audit_first", [True, False], ids=["audit first", "audit last"])
def test_engine_that_makes_private_anew_each_epoch_is_accounted_once(
    tmp_path: Path, audit_first: bool
) -> None:
    user = MakePrivate("on_train_epoch_start", once=False)
    audit = PrivacyAudit(seed=1)
    callbacks = [audit, user] if audit_first else [user, audit]
    trainer_for(tmp_path, *callbacks, max_epochs=2).fit(PlainModule())
    assert user.made == 2
    assert_sound(audit.report, 2 * STEPS_PER_EPOCH)
    assert sum(n for *_, n in user.engine.accountant.history) == 2 * STEPS_PER_EPOCH


def test_accountant_that_starts_anew_each_epoch_is_found_to_forget(tmp_path: Path) -> None:
    user = MakePrivate("on_train_epoch_start", once=False, one_engine=False)
    audit = PrivacyAudit(seed=1)
    report = violation(tmp_path, PlainModule(), audit, user, max_epochs=4)
    assert report.verdict.kind == "accounting"
    assert status(report, "noise") == "ok"


def test_noise_that_is_halved_from_the_second_epoch_on_is_a_violation(tmp_path: Path) -> None:
    class Worsening(MakePrivate):
        def _make(self, *args: Any) -> None:
            self.optimizer_class = HalfNoise if self.made else DPOptimizer
            super()._make(*args)

    user = Worsening("on_train_epoch_start", once=False)
    report = violation(tmp_path, PlainModule(), PrivacyAudit(seed=1), user, max_epochs=3)
    assert report.verdict.fault.startswith(f"noise too small from step {STEPS_PER_EPOCH + 1} on")
    assert STEPS_PER_EPOCH < report.steps < 2 * STEPS_PER_EPOCH
    assert report.epochs[0]["violated"] == 0.0


# ------------------------------------------------------------------ wrap_model


class Unwrapped(PrivateModule):
    """The network stays what it is; Opacus' hooks hang on its layers."""

    def configure_optimizers(self) -> DPOptimizer:
        self.hooks, optimizer, _ = self.engine.make_private(
            module=self.net,
            optimizer=self.inner(self.trainable()),
            data_loader=self.plain_loader(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            wrap_model=False,
        )
        return replace_optimizer(optimizer, self.optimizer_class or DPOptimizer)


def test_training_without_a_wrapped_model_passes_without_a_copy(tmp_path: Path) -> None:
    module = Unwrapped()
    report = fit(tmp_path, module, PrivacyAudit(seed=1), max_steps=64)
    assert type(module.net) is nn.Sequential
    assert_sound(report, 64)
    assert not any("copied" in note for note in report.notes), report.notes
    assert_no_hooks_left(module)


def test_half_noise_without_a_wrapped_model_is_a_violation(tmp_path: Path) -> None:
    report = violation(
        tmp_path, Unwrapped(optimizer_class=HalfNoise), PrivacyAudit(seed=1), max_steps=32
    )
    assert report.verdict.fault.startswith("noise scale too small")
