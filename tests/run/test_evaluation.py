from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from stages import staged
from torch import nn
from training_support import PrivateModule, trainer_for

from lightning_audit import AuditReport, PrivacyAudit


def _report(tmp_path: Path, module: pl.LightningModule, *callbacks: Any, **options: Any):
    audit = PrivacyAudit(on_violation="warn", seed=1, **options.pop("audit", {}))
    trainer_for(tmp_path, audit, *callbacks, **options).fit(module)
    return audit.report


class TrainsAHeadAside(PrivateModule):
    """A second net, trained on the same data by an optimizer that Lightning does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 10)
        self.aside = torch.optim.SGD(self.head.parameters(), lr=0.1)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        features, labels = batch
        with torch.enable_grad():
            nn.functional.cross_entropy(self.head(features.detach()), labels).backward()
        self.aside.step()
        self.aside.zero_grad()


@pytest.mark.parametrize(
    ("allow", "examinations", "outcome"),
    staged(
        # It learns of records, which a replay without one of them shows.
        quick=[((), 0, "INCONCLUSIVE"), (("unaudited",), 1, "VIOLATION")],
        heavy=[(("unaudited",), 0, "PASS"), (("unaudited", "replay.release"), 1, "PASS")],
    ),
)
def test_parameters_trained_aside_stand_in_the_way_of_a_pass(
    tmp_path: Path, allow: tuple[str, ...], examinations: int, outcome: str
) -> None:
    asked = {"allow": allow, "examinations": examinations}
    report: AuditReport = _report(tmp_path, TrainsAHeadAside(), max_steps=64, audit=asked)
    assert report.verdict.outcome == outcome, report.verdict
    assert any("`head.weight`" in item for item in report.verdict.pass_blockers) == (not allow)


pytestmark = pytest.mark.whole_report


def test_report_holds_nothing_of_a_single_batch(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, max_steps=32).fit(PrivateModule())
    text = (tmp_path / "audit" / "report.json").read_text()
    assert "batch_sizes" not in text
    assert "summed_grad" not in text
