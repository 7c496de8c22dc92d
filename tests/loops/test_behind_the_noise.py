"""What is kept or joined behind the noise: public gradients, the batch's, and sums of raw ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.data_loader import DPDataLoader
from plain_loops import BATCH, Made, made
from stages import staged
from torch.nn import functional
from training_support import random_data

import lightning_audit
from lightning_audit import AuditReport, PrivacyClaim, PrivacyViolation, attach

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


@pytest.mark.parametrize("behind", staged([mixes_public, None], nightly=[adds_public, projects]))
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


# --- An optimizer that clips record by record into sums of its own, as pyvacy's.


class OwnSums(torch.optim.SGD):
    """Sums clipped gradients in its settings, and adds noise in its own step."""

    net: torch.nn.Module
    kept = 0.0

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **settings)
        for group in self.param_groups:
            group["sums"] = [torch.zeros_like(p) for p in group["params"]]

    def start(self) -> None:
        for total in self.param_groups[0]["sums"]:
            total *= self.kept

    def add(self, grads: list[torch.Tensor]) -> None:
        norm = torch.stack([g.norm() for g in grads]).norm()
        for total, g in zip(self.param_groups[0]["sums"], grads, strict=True):
            total += g * min(1.0, 1.0 / float(norm + 1e-6))

    def step(self, closure: Any = None) -> None:
        for p, total in zip(
            self.param_groups[0]["params"], self.param_groups[0]["sums"], strict=True
        ):
            p.grad = (total + torch.randn_like(total)) / 32
        lightning_audit.released(
            {name: p.grad for name, p in self.net.named_parameters()}, module=self.net
        )
        super().step(closure)


def clip_one_by_one(net: torch.nn.Module, optimizer: OwnSums, loader: DPDataLoader) -> None:
    for x, y in loader:
        optimizer.start()
        for row in range(len(x)):
            net.zero_grad()
            functional.cross_entropy(net(x[row : row + 1]), y[row : row + 1]).backward()
            optimizer.add([p.grad for p in net.parameters()])
        for canary in lightning_audit.rows(module=net):
            optimizer.add([*canary.values()])
        optimizer.step()


@pytest.mark.parametrize("kept", [0.0, 0.1], ids=["set to zero", "a part is kept"])
def test_sums_that_the_next_step_overwrites_are_no_leak(tmp_path, kept):
    data = random_data(128)
    net = torch.nn.Linear(8, 10)
    optimizer = OwnSums(net.parameters(), lr=0.1)
    optimizer.net, optimizer.kept = net, kept
    claim = PrivacyClaim(
        noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=32, sample_rate=1 / 4
    )
    loader = DPDataLoader(data, sample_rate=claim.sample_rate)
    given = {"claim": claim, "seed": 1, "report_dir": tmp_path, "on_violation": "warn"}
    with attach(net, optimizer, loader, 50.0, **given) as audit:
        clip_one_by_one(net, optimizer, loader)
    release = {check.name: check for check in audit.report.checks}["replay.release"]
    assert release.status == ("violated" if kept else "not_run")
    assert ("set it to zero" in str(audit.report.verdict.pass_blockers)) != bool(kept)
