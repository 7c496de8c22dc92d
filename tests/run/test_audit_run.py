"""What belongs to an audited training: its own steps, and nothing of trials and validations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_support import PrivateModule, assert_no_hooks_left, fit, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.testing.faulty import ClosureRunsAgain, NoNoise


@pytest.mark.parametrize("kind", [None, ClosureRunsAgain, NoNoise])
@pytest.mark.parametrize("trial", [True, 20])
def test_fast_dev_run_writes_nothing_and_never_fails(
    tmp_path: Path, kind: Any, trial: bool | int
) -> None:
    audit = PrivacyAudit(on_inconclusive="raise", seed=1)
    module = PrivateModule(optimizer_class=kind)
    trainer_for(tmp_path, audit, fast_dev_run=trial, max_steps=-1).fit(module)
    assert list(tmp_path.iterdir()) == []
    assert audit.report.steps == int(trial)
    assert_no_hooks_left(module)


def test_fast_dev_run_leaves_an_earlier_report_where_it_is(tmp_path: Path) -> None:
    fit(tmp_path, PrivateModule(), PrivacyAudit(seed=1), max_steps=8)
    before = (tmp_path / "audit" / "report.json").read_bytes()
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=2), fast_dev_run=True, max_steps=-1)
    trainer.fit(PrivateModule())
    assert (tmp_path / "audit" / "report.json").read_bytes() == before
    assert not (tmp_path / "audit" / "previous-1").exists()


def test_sanity_checking_and_validation_are_no_steps(tmp_path: Path) -> None:
    class Validated(PrivateModule):
        validated = 0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.validated += 1
            self.log("val_loss", PrivateModule.training_step(self, batch, batch_idx))

        def val_dataloader(self) -> Any:
            return self.plain_loader()

    module = Validated()
    report = fit(
        tmp_path,
        module,
        PrivacyAudit(seed=1),
        max_epochs=2,
        num_sanity_val_steps=2,
        limit_val_batches=3,
    )
    assert module.validated == 2 + 3 + 3
    assert report.steps == 64
    assert len(report.epochs) == 2


def test_validate_and_test_are_not_audited(tmp_path: Path) -> None:
    class Tested(PrivateModule):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", PrivateModule.training_step(self, batch, batch_idx))

        def test_dataloader(self) -> Any:
            return self.plain_loader()

    audit = PrivacyAudit()
    trainer_for(tmp_path, audit, max_steps=1).test(Tested(), verbose=False)
    assert audit.report is None
    assert not (tmp_path / "audit").exists()
