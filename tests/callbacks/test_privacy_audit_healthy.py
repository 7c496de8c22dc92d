"""A sound DP-SGD passes, whatever the network, the loader and the way it is optimized."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from training_support import (
    ManualModule,
    PrivateModule,
    assert_no_hooks_left,
    digits,
    fit,
    mlp,
    random_data,
    report_in,
    status,
    trainer_for,
)

from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.record.store import read_observations

RATE = 16 / 512


class HandBuilt(PrivateModule):
    """Opacus without a PrivacyEngine: nothing counts the steps."""

    def configure_optimizers(self) -> Any:
        self.net = GradSampleModule(self.net)
        return DPOptimizer(
            self.inner(self.trainable()),
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=self.batch_size,
        )


def _passes(report: AuditReport) -> None:
    assert report.verdict.outcome == "PASS", report.verdict
    assert report.verdict.exit_code == 0
    assert report.verdict.kind is None
    assert report.complete
    assert not [c.name for c in report.checks if c.status == "violated"]


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_sound_training_passes_and_leaves_a_report(tmp_path: Path, mode: str) -> None:
    module = PrivateModule(mode=mode)
    report = fit(tmp_path, module, PrivacyAudit(seed=1), max_steps=64)
    _passes(report)
    assert report.steps == 64
    assert report.observations == 64 * 8
    assert report.history == ((1.0, RATE, 64),)
    assert report.settings["seed"] == 1
    assert status(report, "sampling.not_poisson") == "ok"
    assert status(report, "sampling.rate") == "ok"
    assert report.notes == ()
    header, entries = read_observations(tmp_path / "audit" / report.record)
    assert len(entries) == 64
    assert len(header.canaries) == 8
    assert_no_hooks_left(module)


def test_sound_training_on_digits_passes(tmp_path: Path) -> None:
    module = PrivateModule(mlp(64), dataset=digits())
    _passes(fit(tmp_path, module, PrivacyAudit(seed=1), max_steps=64))


@pytest.mark.heavy
@pytest.mark.parametrize("noise", [0.6, 2.0])
def test_passes_at_other_noise_and_clipping_norm(tmp_path: Path, noise: float) -> None:
    module = PrivateModule(noise_multiplier=noise, max_grad_norm=0.3)
    report = fit(tmp_path, module, PrivacyAudit(seed=1), max_steps=160)
    _passes(report)
    assert report.history[0][0] == noise


def test_callback_without_arguments_claims_the_accountants_epsilon(tmp_path: Path) -> None:
    module = PrivateModule()
    audit = PrivacyAudit()
    report = fit(tmp_path, module, audit, max_steps=64)
    _passes(report)
    assert report.claimed_epsilon == pytest.approx(module.engine.get_epsilon(1e-5), rel=0.01)
    assert report.epsilon_spent == report.claimed_epsilon
    (told,) = [check.message for check in report.checks if check.name == "accounting"]
    assert f"epsilon {report.epsilon_spent:.4g} at delta 1e-05 as privacy loss distr" in told
    assert (
        f"the history of Opacus' prv accountant says {report.claimed_epsilon:.4g} (claimed)" in told
    )
    assert 0 <= report.epsilon_lower <= report.epsilon_spent
    assert report.epsilon_not_excluded > report.epsilon_spent
    assert report.delta == 1e-5


def test_max_epochs_ends_an_audit_as_max_steps_does(tmp_path: Path) -> None:
    report = fit(tmp_path, PrivateModule(), PrivacyAudit(seed=1), max_epochs=2)
    _passes(report)
    assert report.steps == 64
    assert [epoch["epoch"] for epoch in report.epochs] == [0, 1]


def test_every_epoch_leaves_a_report_that_is_not_complete(tmp_path: Path) -> None:
    outcomes = []

    class Looking(PrivateModule):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch:
                outcomes.append(report_in(tmp_path))

    fit(tmp_path, Looking(), PrivacyAudit(seed=1), max_epochs=3)
    assert [report.verdict.outcome for report in outcomes] == ["INCONCLUSIVE"] * 2
    assert not any(report.complete for report in outcomes)
    assert [report.steps for report in outcomes] == [32, 64]


def test_training_without_accountant_is_audited_and_the_note_says_so(tmp_path: Path) -> None:
    report = fit(tmp_path, HandBuilt(), PrivacyAudit(seed=1), max_steps=64)
    _passes(report)
    assert any("no accountant" in note for note in report.notes)
    assert report.claimed_epsilon is None
    assert report.epsilon_spent is None
    assert status(report, "accounting") == "not_run"


def test_stated_sample_rate_composes_epsilons_without_accountant(tmp_path: Path) -> None:
    claim = PrivacyClaim(sample_rate=RATE)
    audit = PrivacyAudit(claimed_epsilon=8.0, claim=claim, seed=1)
    report = fit(tmp_path, HandBuilt(), audit, max_steps=64)
    _passes(report)
    full = PrivacyClaim(noise_multiplier=1.0, sample_rate=RATE, steps=64, delta=1e-5)
    assert report.epsilon_spent == pytest.approx(full.composed_epsilon(), rel=1e-6)
    assert report.claimed_epsilon == 8.0
    assert status(report, "accounting") == "ok"
    assert report.epsilon_lower is not None
    assert not any("no accountant" in note for note in report.notes)


def test_claimed_epsilon_without_sample_rate_is_inconclusive(tmp_path: Path) -> None:
    report = fit(tmp_path, HandBuilt(), PrivacyAudit(claimed_epsilon=8.0, seed=1), max_steps=64)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.verdict.exit_code == 2
    assert any("the sample rate is unknown" in lack for lack in report.verdict.pass_blockers)
    assert any("PrivacyClaim(sample_rate=" in lack for lack in report.verdict.pass_blockers)


def test_too_few_steps_are_inconclusive_and_say_how_many_more(tmp_path: Path) -> None:
    report = fit(tmp_path, PrivateModule(), PrivacyAudit(seed=1), max_steps=4)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("more steps are needed" in lack for lack in report.verdict.pass_blockers)


def test_empty_poisson_batches_are_steps_like_others(tmp_path: Path) -> None:
    sizes = []

    class Counting(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            sizes.append(len(batch[0]))
            return super().training_step(batch, batch_idx)

    module = Counting(dataset=random_data(64), batch_size=1)
    report = fit(tmp_path, module, PrivacyAudit(seed=1), max_steps=128)
    assert sizes.count(0) > 20
    _passes(report)
    assert report.steps == 128
    assert report.observations == 128 * 8


def test_frozen_parameters_are_left_out(tmp_path: Path) -> None:
    net = mlp()
    for p in net[0].parameters():
        p.requires_grad_(False)
    before = net[0].weight.detach().clone()
    report = fit(tmp_path, PrivateModule(net), PrivacyAudit(seed=1), max_steps=64)
    _passes(report)
    header, _ = read_observations(tmp_path / "audit" / "observations.bin")
    assert len(header.tensors) == 4
    assert torch.equal(net[0].weight, before)


def test_tied_parameters_are_one_tensor(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.second = nn.Linear(8, 8, bias=False)
            self.second.weight = self.first.weight
            self.last = nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.second(torch.relu(self.first(x))))
            return self.last(x)

    report = fit(tmp_path, PrivateModule(Tied()), PrivacyAudit(seed=1), max_steps=96)
    _passes(report)
    header, _ = read_observations(tmp_path / "audit" / "observations.bin")
    assert len(header.tensors) == 4


@pytest.mark.heavy
def test_convolutional_network_passes(tmp_path: Path) -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 10),
    )
    module = PrivateModule(net, dataset=digits(images=True))
    _passes(fit(tmp_path, module, PrivacyAudit(seed=1), max_steps=96))


def test_manual_optimization_passes(tmp_path: Path) -> None:
    module = ManualModule()
    report = fit(tmp_path, module, PrivacyAudit(seed=1), max_steps=64)
    _passes(report)
    assert report.steps == 64
    assert report.observations == 64 * 8


def test_adam_with_a_learning_rate_schedule_passes(tmp_path: Path) -> None:
    class Scheduled(PrivateModule):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    module = Scheduled(inner=lambda params: torch.optim.Adam(params, lr=1e-3))
    _passes(fit(tmp_path, module, PrivacyAudit(seed=1), max_steps=64))


@pytest.mark.parametrize(
    "inner",
    [
        lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True),
        lambda params: torch.optim.SGD(params, lr=0.05, weight_decay=1e-2, foreach=True),
        lambda params: torch.optim.SGD(params, lr=0.05, maximize=True, weight_decay=1e-2),
        lambda params: torch.optim.AdamW(params, lr=1e-3, amsgrad=True),
        lambda params: torch.optim.Adam(params, lr=1e-3, fused=True),
        lambda params: torch.optim.RMSprop(params, lr=1e-3, centered=True, momentum=0.9),
        lambda params: torch.optim.Adagrad(params, lr=1e-2, weight_decay=1e-2),
        lambda params: torch.optim.NAdam(params, lr=1e-3),
    ],
    ids=["nesterov", "decay", "maximize", "adamw", "fused", "rmsprop", "adagrad", "nadam"],
)
@pytest.mark.one_in(4)
def test_no_optimizer_of_torch_counts_as_replacing_the_gradient(tmp_path: Path, inner: Any) -> None:
    report = fit(tmp_path, PrivateModule(inner=inner), PrivacyAudit(seed=1), max_steps=32)
    assert status(report, "gradient_replaced") == "ok"
    _passes(report)


def test_parameter_groups_are_audited_together(tmp_path: Path) -> None:
    def grouped(params: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        first, *rest = params
        return torch.optim.SGD([{"params": rest, "lr": 0.01}, {"params": [first]}], lr=0.05)

    report = fit(tmp_path, PrivateModule(inner=grouped), PrivacyAudit(seed=1), max_steps=32)
    _passes(report)
    header, _ = read_observations(tmp_path / "audit" / "observations.bin")
    assert len(header.tensors) == 6


def test_rdp_accountant_passes_and_claims_more_than_is_spent(tmp_path: Path) -> None:
    report = fit(tmp_path, PrivateModule(accountant="rdp"), PrivacyAudit(seed=1), max_steps=64)
    _passes(report)
    assert report.epsilon_spent < report.claimed_epsilon


def test_noise_multiplier_that_changes_is_followed(tmp_path: Path) -> None:
    class Rising(PrivateModule):
        def on_train_epoch_start(self) -> None:
            self.trainer.optimizers[0].noise_multiplier = 1.0 + self.current_epoch

    report = fit(tmp_path / "as it is", Rising(), PrivacyAudit(seed=1), max_epochs=2)
    # A loss may have set it at the epoch's end, for all that is seen.
    assert report.verdict.outcome == "INCONCLUSIVE"
    (blocker,) = report.verdict.pass_blockers
    assert "state allow=['ledger.schedule']" in blocker
    audit = PrivacyAudit(allow=["ledger.schedule"], seed=1)
    report = fit(tmp_path / "allowed", Rising(), audit, max_epochs=2)
    _passes(report)
    assert report.history == ((1.0, RATE, 32), (2.0, RATE, 32))


def test_accumulated_gradients_pass_as_one_step(tmp_path: Path) -> None:
    module = PrivateModule(poisson=False, make_poisson=False)
    audit = PrivacyAudit(allow=["sampling.not_poisson"], seed=1)
    report = fit(tmp_path, module, audit, max_steps=48, accumulate_grad_batches=2)
    _passes(report)
    assert report.steps == 48
    assert report.observations == 48 * 8


def test_bfloat16_passes(tmp_path: Path) -> None:
    report = fit(
        tmp_path, PrivateModule(), PrivacyAudit(seed=1), max_steps=64, precision="bf16-mixed"
    )
    _passes(report)


def test_gradients_that_are_not_finite_never_pass(tmp_path: Path) -> None:
    class Diverging(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss * torch.nan if self.global_step == 40 else loss

    report = fit(tmp_path, Diverging(), PrivacyAudit(seed=1), max_steps=64)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("24 of 64 steps were lost" in lack for lack in report.verdict.pass_blockers)


class OtherAudit(PrivacyAudit):
    """Has a state of its own in checkpoints: two of one class Lightning itself refuses."""


def test_two_audits_of_one_training_are_refused(tmp_path: Path) -> None:
    audits = [kind(report_dir=tmp_path / kind.__name__) for kind in (PrivacyAudit, OtherAudit)]
    # Each would see the other's canaries come and go.
    with pytest.raises(MisconfigurationException, match="has 2 PrivacyAudit callbacks"):
        trainer_for(tmp_path, *audits, max_steps=64).fit(PrivateModule())


def test_classification_loss_with_validation_passes(tmp_path: Path) -> None:
    class Validated(PrivateModule):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            x, y = batch
            self.log("val_loss", functional.cross_entropy(self.net(x), y))

        def val_dataloader(self) -> Any:
            return self.plain_loader()

    audit = PrivacyAudit(seed=1)
    trainer = trainer_for(tmp_path, audit, max_steps=64, num_sanity_val_steps=2)
    trainer.fit(Validated())
    _passes(report_in(tmp_path))
    assert audit.report.steps == 64
    assert len(read_observations(tmp_path / "audit" / "observations.bin")[1]) == 64
