"""What the optimizer inside Opacus' may do with the gradient, and what the audit makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from training_support import PrivateModule, trainer_for

from lightning_audit import PrivacyAudit


class OnTopOfTorchs(torch.optim.SGD):
    """Calls its parent, whose step fires the step hooks once more."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class ScalesInPlace(torch.optim.SGD):
    """Changes p.grad inside its step, so that nobody can see what the update used."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)
        return super().step(closure)


def _audited(tmp_path: Path, kind: type[torch.optim.SGD], **options: Any) -> PrivacyAudit:
    audit = PrivacyAudit(on_violation="warn", seed=1)
    module = PrivateModule(inner=lambda params: kind(params, lr=0.05, **options))
    trainer_for(tmp_path, audit, max_steps=64).fit(module)
    return audit


def test_momentum_that_torch_adds_in_place_is_no_replaced_gradient(tmp_path: Path) -> None:
    options = {"momentum": 0.9, "nesterov": True, "foreach": True}
    audit = _audited(tmp_path, torch.optim.SGD, **options)
    assert audit.report.verdict.outcome == "PASS", audit.report.verdict


def test_an_optimizer_on_top_of_torchs_is_read_once_a_step(tmp_path: Path) -> None:
    audit = _audited(tmp_path, OnTopOfTorchs)
    assert audit.report.verdict.outcome == "PASS", audit.report.verdict
    assert audit.report.steps == 64


def test_an_update_that_scales_what_was_released_passes(tmp_path: Path) -> None:
    audit = _audited(tmp_path, ScalesInPlace)
    assert audit.report.verdict.outcome == "PASS", audit.report.verdict
