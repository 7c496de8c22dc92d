"""Optimizers that cannot be audited are refused before the first step, with what to change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hand_written_support import CLAIM
from training_support import PrivateModule, mlp, refusal_of, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Blank, Dirac
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.run.optimizers import hand_written_step, private_optimizers, refuse_several


def test_two_private_optimizers_of_one_parameter_are_refused() -> None:
    module = PrivateModule()
    first = module.configure_optimizers()
    second = type(first)(
        torch.optim.SGD(module.trainable(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=16,
    )
    with pytest.raises(UnauditableTraining, match=r"1 and 2 both train a parameter of shape \(32"):
        private_optimizers([first, second])
    plain = torch.optim.SGD(mlp().parameters(), lr=0.1)
    assert private_optimizers([plain, first]) == [first]


def test_several_private_optimizers_are_refused_with_input_canaries_and_on_two_processes() -> None:
    refuse_several(2, [Dirac()], processes=1)
    refuse_several(1, [Blank()], processes=2)
    with pytest.raises(UnauditableTraining, match="all 2 private optimizers at once"):
        refuse_several(2, [Blank()], processes=1)
    with pytest.raises(UnauditableTraining, match="the Trainer has 3; train with devices=1"):
        refuse_several(2, [Dirac()], processes=3)


@pytest.mark.parametrize(
    ("optimizers", "processes", "words"),
    [(1, 2, "in one process only, the Trainer has 2"), (2, 1, "the module has 2 optimizers")],
)
def test_hand_written_steps_of_several_optimizers_or_processes_are_refused(
    optimizers: int, processes: int, words: str
) -> None:
    module = mlp()
    module.trainer = SimpleNamespace(world_size=processes)
    made = [torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(optimizers)]
    with pytest.raises(UnauditableTraining, match=words):
        hand_written_step(CLAIM, made, module)


def test_an_expected_batch_of_zero_is_refused_with_its_reason(tmp_path: Path) -> None:
    class ZeroBatch(PrivateModule):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            optimizer.expected_batch_size = 0
            return optimizer

    with pytest.raises(Exception, match="expected_batch_size=0 must be > 0"):
        trainer_for(tmp_path, PrivacyAudit(), max_steps=2).fit(ZeroBatch())


def test_a_private_optimizer_that_wraps_a_private_one_is_refused_before_the_first_step(
    tmp_path: Path,
) -> None:
    class Twice(PrivateModule):
        def configure_optimizers(self) -> Any:
            inner = super().configure_optimizers()
            outer = type(inner)(
                inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16
            )
            outer.attach_step_hook(inner.step_hook)
            return outer

    said = refusal_of(tmp_path, Twice(), PrivacyAudit(seed=1))
    assert "DPOptimizer wraps DPOptimizer: each clips and adds noise" in said
    assert "Call make_private once" in said
