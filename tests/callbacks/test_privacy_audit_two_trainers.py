"""One callback is part of one fit at a time; what was broken off blocks no later one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from resume_support import RESUMING
from training_support import PrivateModule, PrivateTraining, report_in, trainer_for

from lightning_audit import EpsilonStar, Examination, PrivacyAudit

pytestmark = RESUMING


class UnifiedModule(PrivateTraining, lightning.pytorch.LightningModule):
    """The same training as a module of the other package."""


class FitsAnother(pl.Callback):
    """Fits another Trainer, with the same callback, at one hook of the first one's fit."""

    def __init__(self, hook: str, fit: Any) -> None:
        self.error: Exception | None = None
        setattr(self, hook, lambda *_, **__: self.attempt(fit))

    def attempt(self, fit: Any) -> None:
        if self.error is None:
            with pytest.raises(Exception, match=r".") as raised:
                fit()
            self.error = raised.value


def another(directory: Path, callback: Any, package: Any = pl) -> tuple[Any, Any]:
    kind = PrivateModule if package is pl else UnifiedModule
    return trainer_for(directory, callback, max_steps=3, trainer_class=package.Trainer), kind()


HOOKS = ("setup", "on_train_start", "on_before_optimizer_step", "on_train_batch_end", "on_fit_end")


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("package", [pl, lightning.pytorch])
def test_a_fit_within_a_fit_is_refused_and_the_first_one_is_audited_to_its_end(
    tmp_path: Path, hook: str, package: Any
) -> None:
    audit = PrivacyAudit(claimed_epsilon=50.0, seed=1)
    trainer, module = another(tmp_path / "b", audit, package)
    inner = FitsAnother(hook, lambda: trainer.fit(module))
    trainer_for(tmp_path / "a", audit, inner, max_steps=16).fit(PrivateModule())
    assert isinstance(inner.error, MisconfigurationException)
    assert "give each Trainer its own PrivacyAudit" in str(inner.error)
    assert trainer.global_step == 0
    assert not (tmp_path / "b" / "audit").exists()
    assert report_in(tmp_path / "a").steps == audit.report.steps == 16
    assert report_in(tmp_path / "a").verdict.outcome != "VIOLATION"
    trainer_for(tmp_path / "c", audit, max_steps=4).fit(PrivateModule())
    assert report_in(tmp_path / "c").steps == 4


def test_of_two_threads_the_second_is_refused(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Waits(pl.Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            if args[-1] == 3:
                inside.set()
                assert go_on.wait(60)

    audit = PrivacyAudit(seed=1)
    first = trainer_for(tmp_path / "a", audit, Waits(), max_steps=8)
    thread = threading.Thread(target=first.fit, args=(PrivateModule(),))
    thread.start()
    assert inside.wait(60)
    try:
        second, module = another(tmp_path / "b", audit)
        with pytest.raises(MisconfigurationException, match="its own PrivacyAudit"):
            second.fit(module)
        assert second.global_step == 0
    finally:
        go_on.set()
        thread.join()
    assert report_in(tmp_path / "a").steps == 8
    assert not report_in(tmp_path / "a").verdict.summary.count("broke off")


def test_a_validation_of_another_trainer_leaves_the_audit_alone(tmp_path: Path) -> None:
    class Fails(PrivateModule):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            raise RuntimeError("no validation today")

        def val_dataloader(self) -> Any:
            return self.plain_loader()

    audit = PrivacyAudit(seed=1)
    trainer = trainer_for(tmp_path / "b", audit, max_steps=3)
    inner = FitsAnother("on_train_batch_end", lambda: trainer.validate(Fails(), verbose=False))
    trainer_for(tmp_path / "a", audit, inner, max_steps=8).fit(PrivateModule())
    assert "no validation today" in str(inner.error)
    assert report_in(tmp_path / "a").steps == 8


class BreaksItsEnd(pl.Callback):
    """Raises in the training and again as Lightning calls the hooks of the end."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 4:
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
            raise RuntimeError("first")

    def on_exception(self, *_: Any) -> None:
        raise RuntimeError("second")


def test_a_training_that_was_broken_off_without_its_end_blocks_no_later_one(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1)
    broken = trainer_for(tmp_path / "a", BreaksItsEnd(), audit, max_steps=8)
    with pytest.raises(RuntimeError, match="second"):
        broken.fit(PrivateModule())
    assert audit._run is not None  # it was given no end
    trainer_for(tmp_path / "b", audit, max_steps=6).fit(PrivateModule())
    report = report_in(tmp_path / "b")
    assert (report.steps, report.verdict.outcome != "VIOLATION") == (6, True)
    assert not any("without this audit's state" in lack for lack in report.verdict.pass_blockers)
    trainer_for(tmp_path / "c", audit, max_steps=5).fit(PrivateModule())
    assert report_in(tmp_path / "c").steps == 5


def losses(module: Any, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module.net(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize(
    "make", [Examination, lambda: EpsilonStar(1e-5, losses=losses, permutations=3)]
)
def test_the_other_callbacks_are_part_of_one_fit_at_a_time(tmp_path: Path, make: Any) -> None:
    class Validated(PrivateModule):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def val_dataloader(self) -> Any:
            return self.plain_loader()

    callback = make()
    second, module = another(tmp_path / "b", callback)
    inner = FitsAnother("on_train_batch_end", lambda: second.fit(module))
    trainer_for(tmp_path / "a", inner, callback, max_epochs=1, limit_train_batches=4).fit(
        Validated()
    )
    assert f"give each Trainer its own {type(callback).__name__}" in str(inner.error)
    found = callback.answers if isinstance(callback, Examination) else callback.history
    assert len(found) > 0
