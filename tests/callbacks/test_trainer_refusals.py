from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.plugins.precision import MixedPrecision
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from training_support import (
    PrivateModule,
    refusal_of,
)

from lightning_audit import PrivacyAudit
from lightning_audit.callbacks.trainer_refusals import refuse_trainer


def test_gradient_scaler_is_refused(tmp_path: Path) -> None:
    plugin = MixedPrecision("16-mixed", device="cpu")
    message = refusal_of(tmp_path, PrivateModule(), PrivacyAudit(), plugins=[plugin])
    assert "precision='16-mixed'" in message
    assert "'32-true' or 'bf16-mixed'" in message


def test_half_precision_is_refused(tmp_path: Path) -> None:
    message = refusal_of(tmp_path, PrivateModule(), PrivacyAudit(), precision="16-true")
    assert "precision='16-true'" in message
    assert "'32-true'" in message


class _Trainer(SimpleNamespace):
    """As much of a Trainer of two processes as is looked at before any is started."""

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy=strategy, world_size=2, precision="32-true")


@pytest.mark.parametrize("kind", [FSDPStrategy, ModelParallelStrategy])
def test_a_strategy_that_shards_parameters_is_refused_with_advice(kind: type) -> None:
    with pytest.raises(MisconfigurationException, match=r"shards the parameters.*strategy='ddp'"):
        refuse_trainer(_Trainer(kind()), audits=1)


def test_processes_of_a_strategy_that_is_not_known_are_refused() -> None:
    with pytest.raises(MisconfigurationException, match=r"2 processes.*strategy='ddp'"):
        refuse_trainer(_Trainer(object()), audits=1)
    refuse_trainer(_Trainer(DDPStrategy()), audits=1)
