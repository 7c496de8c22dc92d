"""Which session audits a private optimizer, with what coins, and what is read off it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hand_written_support import CLAIM
from training_support import PrivateModule, fit, mlp

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Blank
from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.dpsgd.hand_written import ManualStep, stated_claim
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.run.optimizers import _coins, facts_of, label_of, new_session
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.planner import Ranks
from lightning_audit.session.reading import HandWrittenReading, PrivateReading
from lightning_audit.session.sources import GradientRows, HandedRows, InputSample


def private_step() -> DPSGDStep:
    module = PrivateModule()
    optimizer = module.configure_optimizers()
    names = {id(p): name for name, p in module.named_parameters()}
    return opacus_step(optimizer, names, module.modules())


def manual_step() -> DPSGDStep:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    names = {id(p): name for name, p in net.named_parameters()}
    return ManualStep(optimizer, names, stated_claim(CLAIM))


def session_of(
    step: DPSGDStep, place: tuple[int, int] = (1, 1), precision: str = "32-true", **arguments: Any
) -> AuditSession:
    config = PrivacyAudit(seed=1, **arguments).config
    trainer = SimpleNamespace(
        precision=precision, optimizers=[None], estimated_stepping_batches=40, train_dataloader=None
    )
    return new_session(step, place, config, trainer, lambda _: None, None, Ranks())


@pytest.mark.parametrize(
    ("make", "arguments", "source", "way"),
    [
        (private_step, {}, GradientRows, PrivateReading),
        (private_step, {"canaries": [Blank()]}, InputSample, PrivateReading),
        (manual_step, {"claim": CLAIM}, HandedRows, HandWrittenReading),
        (manual_step, {"claim": CLAIM, "canaries": [Blank()]}, InputSample, HandWrittenReading),
    ],
)
def test_a_step_and_its_canaries_choose_source_and_way_of_reading(
    make: Any, arguments: dict[str, Any], source: type, way: type
) -> None:
    session = session_of(make(), **arguments)
    assert (type(session.source), type(session.way)) == (source, way)
    session.detach()


def test_low_precision_allows_a_canary_its_rounding() -> None:
    step = private_step()
    for precision, signal in (("32-true", 1.0), ("bf16-mixed", 1.0 + 2.0**-7)):
        session = session_of(step, precision=precision)
        assert session.monitor.header.signal == signal
        session.detach()


def test_the_divisor_is_known_of_a_mean_only() -> None:
    optimizer = PrivateModule().configure_optimizers()
    facts = facts_of(optimizer)
    assert (facts.expected_batch_size, facts.loss_reduction) == (16, "mean")
    assert facts.accountant is not None
    optimizer.loss_reduction = "sum"
    assert facts_of(optimizer).expected_batch_size is None
    optimizer.loss_reduction, optimizer.world_size = "mean", 4
    assert facts_of(optimizer).expected_batch_size == 64


def test_a_label_names_the_number_and_the_first_parameter() -> None:
    assert label_of(private_step(), 2) == "optimizer 2 (`net.0.weight`, ...)"


def tosses(seed: int, number: int) -> list[int]:
    return _coins(seed, number).integers(0, 2, 64).tolist()


def test_coins_are_a_function_of_the_seed_and_the_optimizers_number() -> None:
    assert tosses(5, 1) == tosses(5, 1)
    assert tosses(5, 2) == tosses(5, 2)
    different = {tuple(tosses(seed, number)) for seed in (5, 6) for number in (1, 2, 3)}
    assert len(different) == 6


def test_coins_of_different_optimizers_are_independent() -> None:
    first, second = (_coins(0, number).integers(0, 2, 100_000) for number in (1, 2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(100_000)


def test_optimizer_made_anew_each_epoch_is_followed(tmp_path: Path) -> None:
    class Renewing(PrivateModule):
        def on_train_epoch_start(self) -> None:
            old = self.trainer.optimizers[0]
            new = type(old)(
                torch.optim.SGD(self.trainable(), lr=0.05),
                noise_multiplier=old.noise_multiplier,
                max_grad_norm=old.max_grad_norm,
                expected_batch_size=old.expected_batch_size,
            )
            new.attach_step_hook(old.step_hook)
            self.trainer.optimizers = [new]

    module = Renewing()
    report = fit(tmp_path, module, PrivacyAudit(seed=1), max_epochs=2)
    assert report.verdict.outcome == "PASS"
    assert report.steps == 64
    assert report.observations == 64 * 8
