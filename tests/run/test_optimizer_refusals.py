from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training_support import (
    PrivateModule,
    refusal_of,
    trainer_for,
)

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Dirac
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.run.optimizer_refusals import refuse_several


def test_optimizer_that_runs_its_closure_many_times_is_refused(tmp_path: Path) -> None:
    module = PrivateModule(inner=lambda params: torch.optim.LBFGS(params, lr=0.1))
    message = refusal_of(tmp_path, module, PrivacyAudit())
    assert "LBFGS" in message
    assert "SGD or Adam" in message


def test_several_processes_are_refused() -> None:
    refuse_several(1, [Dirac()], 2)
    refuse_several(2, [Dirac()], 1)
    with pytest.raises(UnauditableTraining, match="2 private optimizers in one process"):
        refuse_several(2, [Dirac()], 2)


def test_an_expected_batch_of_zero_is_refused_with_its_reason(tmp_path: Path) -> None:
    class ZeroBatch(PrivateModule):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            optimizer.expected_batch_size = 0
            return optimizer

    with pytest.raises(Exception, match="expected_batch_size=0 must be > 0"):
        trainer_for(tmp_path, PrivacyAudit(), max_steps=2).fit(ZeroBatch())
