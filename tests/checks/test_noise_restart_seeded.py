"""What is said of a resume that repeats the noise can be done, and then nothing is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from training_support import PrivateModule, digits, mlp, status, trainer_for

from lightning_audit import PrivacyAudit

pytestmark = pytest.mark.filterwarnings("default")


class Resumable(PrivateModule):
    """Private before a checkpoint is loaded, whose names are those of the private net."""

    def __init__(self) -> None:
        super().__init__(mlp(64), dataset=digits())
        self._private = super().configure_optimizers()

    def configure_optimizers(self) -> Any:
        return self._private


class KeepsState(Resumable):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rng"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        torch.set_rng_state(checkpoint["rng"])


@pytest.mark.parametrize(
    ("kind", "seed", "found"),
    [(Resumable, 1, "violated"), (Resumable, 2, "ok"), (KeepsState, 1, "ok")],
    ids=["the same seed", "another seed", "the state is kept"],
)
def test_a_seed_before_a_resume_repeats_the_noise_unless_it_is_another_or_the_state_is_kept(
    tmp_path: Path, kind: type[Resumable], seed: int, found: str
) -> None:
    for number, seeded in enumerate((1, seed), 1):
        pl.seed_everything(seeded)
        module, audit = kind(), PrivacyAudit(seed=3, on_violation="warn", examinations=0)
        trainer = trainer_for(tmp_path, audit, max_steps=12 * number)
        trainer.fit(module, ckpt_path=tmp_path / "a.ckpt" if number > 1 else None)
        trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert status(audit.report, "reuse.resume") == found
    if found == "violated":
        (fault,) = (f for f in audit.report.verdict.faults if f.name == "noise_restarted")
        assert "leave seed_everything out there, give it a different seed" in fault.look_at
        assert "secure_mode=True" in fault.look_at
