"""Gradients that join a noisy one behind its noise: of public records, and of the batch's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain_loops import BATCH, Made, made
from torch.nn import functional
from training_support import random_data

from lightning_audit import AuditReport, PrivacyViolation, attach

PUBLIC = random_data(600, seed=9).tensors
#: Changes the gradients of a training whose batch has been clipped and noised.
Behind = Callable[[Made, Any], None]


def backward(training: Made, x: torch.Tensor, y: torch.Tensor) -> None:
    training.model.disable_hooks()
    functional.cross_entropy(training.model(x), y).backward()
    training.model.enable_hooks()


def some() -> Any:
    at = torch.randint(0, 600, (BATCH,))
    return PUBLIC[0][at], PUBLIC[1][at]


def mixed(training: Made, records: Any) -> None:
    noisy = [p.grad.clone() for p in training.optimizer.params]
    training.optimizer.original_optimizer.zero_grad()
    backward(training, *records)
    for p, n in zip(training.optimizer.params, noisy, strict=True):
        p.grad = 0.5 * p.grad + 0.5 * n


def mixes_public(training: Made, batch: Any) -> None:
    mixed(training, some())


def adds_public(training: Made, batch: Any) -> None:
    backward(training, *some())


def projects(training: Made, batch: Any) -> None:
    """Onto the span of public gradients, which are written to no `p.grad`."""
    params = training.optimizer.params
    training.model.disable_hooks()
    rows = []
    for _ in range(4):
        x, y = some()
        own = torch.autograd.grad(functional.cross_entropy(training.model(x), y), params)
        rows.append(torch.cat([g.flatten() for g in own]))
    training.model.enable_hooks()
    basis = torch.linalg.qr(torch.stack(rows).T)[0]
    noisy = torch.cat([p.grad.flatten() for p in params])
    parts = (basis @ (basis.T @ noisy)).split([p.numel() for p in params])
    for p, part in zip(params, parts, strict=True):
        p.grad = part.view_as(p).clone()


def mixes_the_batch(training: Made, batch: Any) -> None:
    mixed(training, batch)


def adds_some_records(training: Made, batch: Any) -> None:
    backward(training, batch[0][:2], batch[1][:2])


class MixesInItsStep(torch.optim.SGD):
    """An inner optimizer whose step has a backward pass of its own, without a closure."""

    training: Made

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            mixed(self.training, some())
        return super().step()


def audited(folder: Any, behind: Behind | None, epochs: int = 3, **arguments: Any) -> AuditReport:
    training = made()
    inner = training.optimizer.original_optimizer
    if behind is None:
        inner.__class__, inner.training = MixesInItsStep, training
    try:
        with attach(*training.training, report_dir=folder, **{"seed": 1, **arguments}) as audit:
            for _ in range(epochs):
                for x, y in training.loader:
                    training.optimizer.zero_grad()
                    functional.cross_entropy(training.model(x), y).backward()
                    if training.optimizer.pre_step():
                        if behind is not None:
                            behind(training, (x, y))
                        inner.step()
    except PrivacyViolation as error:
        return error.report
    return audit.report


@pytest.mark.parametrize("behind", [mixes_public, adds_public, projects, None])
def test_what_public_records_add_behind_the_noise_passes(tmp_path, behind):
    report = audited(tmp_path, behind)
    assert report.verdict.outcome == "PASS", report.verdict


@pytest.mark.parametrize("behind", [mixes_the_batch, adds_some_records])
def test_what_the_batch_adds_behind_the_noise_replaces_the_gradient(tmp_path, behind):
    report = audited(tmp_path, behind)
    assert [fault.name for fault in report.verdict.faults] == ["gradient_replaced"]
    violated = {check.name for check in report.checks if check.status == "violated"}
    assert violated == {"gradient_replaced", "replay.release"}
    assert report.steps == 1


@pytest.mark.parametrize("behind", [adds_public, mixes_the_batch])
def test_without_a_replay_a_backward_pass_behind_the_noise_does_not_pass(tmp_path, behind):
    report = audited(tmp_path, behind, epochs=1, examinations=0)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("state examinations=10" in blocker for blocker in report.verdict.pass_blockers)
