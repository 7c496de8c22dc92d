"""A training may set the noise of a step in a hook of its own, after the audit's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_support import PrivateModule, fit, status

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Dirac, Mislabeled

pytestmark = pytest.mark.filterwarnings("default")


class LouderInTheEnd(PrivateModule):
    """Raises the noise multiplier before some step."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.global_step == 5:
            private: Any = self.trainer.optimizers[0]
            private.noise_multiplier = 3.0

    def forward(self, x: Any) -> Any:
        return self.net(x)


@pytest.mark.parametrize("canary", [Dirac(), Mislabeled(num_classes=10)])
def test_noise_that_is_raised_before_a_step_is_that_of_the_step(
    tmp_path: Path, canary: Dirac | Mislabeled
) -> None:
    report = fit(tmp_path, LouderInTheEnd(), PrivacyAudit(canaries=[canary]), max_steps=8)
    assert status(report, "accounting") == "ok"
    assert status(report, "noise.excess") == "ok"
