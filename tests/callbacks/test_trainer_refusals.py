"""Trainers that cannot be audited are refused before the first step, with what to change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.plugins.precision import MixedPrecision
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from training_support import trainer_for

from lightning_audit.callbacks.trainer import refuse_trainer


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("16-mixed", {"plugins": [MixedPrecision("16-mixed", device="cpu")]}),
        ("16-true", {"precision": "16-true"}),
    ],
)
def test_half_precision_is_refused(tmp_path, precision: str, options: dict[str, Any]) -> None:
    with pytest.raises(MisconfigurationException, match=f"precision='{precision}'") as raised:
        refuse_trainer(trainer_for(tmp_path, **options), audits=1)
    assert "'32-true' or 'bf16-mixed'" in str(raised.value)


@pytest.mark.filterwarnings("ignore:You passed `Trainer")
def test_what_lightning_makes_of_half_precision_on_a_cpu_is_not_refused(tmp_path) -> None:
    trainer = trainer_for(tmp_path, precision="16-mixed")
    assert trainer.precision == "bf16-mixed"
    refuse_trainer(trainer, audits=1)


def test_an_ordinary_trainer_with_one_audit_is_not_refused_and_with_two_it_is(tmp_path) -> None:
    trainer = trainer_for(tmp_path, precision="bf16-mixed")
    refuse_trainer(trainer, audits=1)
    with pytest.raises(MisconfigurationException, match=r"has 2 PrivacyAudit callbacks.*Keep one"):
        refuse_trainer(trainer, audits=2)


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
