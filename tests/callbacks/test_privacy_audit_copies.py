"""Copies and pickles, taken at any moment, hold the audit and nothing of the training."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning as pl
import torch
from resume_support import RESUMING
from stages import staged
from training_support import PrivateModule, PrivateTraining, report_in, trainer_for

from lightning_audit import EpsilonStar, Examination, PrivacyAudit, PrivacyClaim
from lightning_audit.results.audit_report import AuditReport

pytestmark = RESUMING


class UnifiedModule(PrivateTraining, lightning.pytorch.LightningModule):
    """The same training as a module of the other package."""


#: What no copy may hold.
_OF_A_TRAINING = (
    pl.Trainer,
    lightning.pytorch.Trainer,
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.utils.data.DataLoader,
)


class _Looking(pickle.Pickler):
    """Pickles, and refuses what is of a training."""

    def persistent_id(self, held: Any) -> None:
        assert not isinstance(held, _OF_A_TRAINING), f"a copy holds {type(held).__name__}"


def pickled(callback: Any) -> Any:
    stream = io.BytesIO()
    _Looking(stream).dump(callback)
    return pickle.loads(stream.getvalue())


WAYS = (copy.copy, copy.deepcopy, pickled)


class Copies(pl.Callback):
    """Copies other callbacks at each hook of Lightning's."""

    def __init__(self, *others: Any) -> None:
        self.others = others
        self.hooks: set[str] = set()
        self.taken: list[Any] = []

    def take(self, hook: str) -> None:
        if hook not in self.hooks:  # once each: the first step is under way then
            self.hooks.add(hook)
            self.taken += [way(other) for other in self.others for way in WAYS]


def _taking(hook: str) -> Callable[..., None]:
    return lambda self, *_, **__: self.take(hook)


for _hook in dir(pl.Callback):
    if _hook.startswith("on_") or _hook in ("setup", "teardown"):
        setattr(Copies, _hook, _taking(_hook))


class CopiesBoth(Copies, lightning.pytorch.Callback):
    """The same, of the other package."""


class InTheStep:
    """Copies in the training step and in the optimizer's, where Lightning has no hook."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.copies.take("training_step")
        return super().training_step(batch, batch_idx)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.copies.take("optimizer_step")
        super().optimizer_step(*args, **kwargs)


class Copied(InTheStep, PrivateModule):
    """Of pytorch_lightning."""


class UnifiedCopied(InTheStep, UnifiedModule):
    """Of lightning.pytorch."""


def trained(
    directory: Path, kind: type, trainer_class: type, audit: PrivacyAudit, copies: Any, *after: Any
) -> tuple[AuditReport, dict[str, torch.Tensor]]:
    torch.manual_seed(7)
    module = kind()
    module.copies = copies
    callbacks = [copies, audit, *after] if copies is not None else [audit]
    trainer_for(
        directory, *callbacks, trainer_class=trainer_class, max_epochs=2, limit_train_batches=8
    ).fit(module)
    return report_in(directory), module.state_dict()


@pytest.mark.parametrize(
    ("plain", "copied", "trainer_class", "copies_class"),
    staged(
        quick=[(PrivateModule, Copied, pl.Trainer, Copies)],
        heavy=[(UnifiedModule, UnifiedCopied, lightning.pytorch.Trainer, CopiesBoth)],
    ),
)
@pytest.mark.parametrize("claimed_epsilon", staged(quick=[50.0], heavy=[None]))
def test_copies_at_every_hook_leave_the_training_as_it_was_and_hold_nothing_of_it(
    tmp_path: Path,
    plain: type,
    copied: type,
    trainer_class: type,
    copies_class: type,
    claimed_epsilon: float | None,
) -> None:
    alone = PrivacyAudit(claimed_epsilon=claimed_epsilon, seed=1)
    report, weights = trained(tmp_path / "alone", plain, trainer_class, alone, None)
    audit = PrivacyAudit(claimed_epsilon=claimed_epsilon, seed=1)
    copies = copies_class(audit)
    got, got_weights = trained(tmp_path / "copied", copied, trainer_class, audit, copies)
    assert {"on_before_optimizer_step", "training_step", "teardown"} <= copies.hooks
    assert {
        name: torch.equal(weights[name], w) for name, w in got_weights.items()
    } == dict.fromkeys(weights, True)
    assert (got.steps, got.verdict) == (report.steps, report.verdict)
    assert [check.status for check in got.checks] == [check.status for check in report.checks]
    assert audit.report.epochs == got.epochs


def test_a_copy_from_the_middle_of_a_training_audits_another_one_meanwhile(tmp_path: Path) -> None:
    class Nested(pl.Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            if args[-1] == 5:
                twin = copy.deepcopy(audit)
                trainer_for(tmp_path, twin, max_steps=8).fit(PrivateModule())
                self.report = twin.report

    audit, nested = PrivacyAudit(claimed_epsilon=50.0, seed=1), Nested()
    trainer_for(tmp_path, audit, nested, max_steps=16).fit(PrivateModule())
    assert nested.report.steps == 8
    assert report_in(tmp_path).steps == audit.report.steps == 16
    assert AuditReport.load(tmp_path / "audit" / "run-2" / "report.json").steps == 8


def test_a_copy_from_the_middle_does_not_continue_the_training_from_its_end(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1)
    copies = Copies(audit)
    trainer, module = trainer_for(tmp_path, audit, copies, max_steps=8), PrivateModule()
    trainer.fit(module)
    early = copies.taken[3 * len(copies.hooks) // 2]
    trainer.callbacks[trainer.callbacks.index(audit)] = early
    trainer.fit_loop.epoch_loop.max_steps = 12
    trainer.fit(module)
    report = early.report
    assert report.steps == 4
    assert any("without this audit's state" in lack for lack in report.verdict.pass_blockers)


@pytest.mark.parametrize("way", WAYS)
def test_a_callback_that_was_given_a_checkpoint_can_be_copied(tmp_path: Path, way: Any) -> None:
    audit = PrivacyAudit(claimed_epsilon=50.0, seed=1)
    trainer_for(tmp_path, audit, max_steps=8).fit(PrivateModule())
    loaded = PrivacyAudit(claimed_epsilon=50.0, seed=1)
    loaded.load_state_dict(audit.state_dict())
    assert way(loaded).state_dict().keys() == audit.state_dict().keys()
    assert way(loaded).state_dict()["checksum"] == audit.state_dict()["checksum"]


def test_a_copy_claims_and_allows_what_the_original_does(tmp_path: Path) -> None:
    claim = PrivacyClaim(noise_multiplier=1.0, max_grad_norm=1.0)
    audit = PrivacyAudit(50.0, claim=claim, allow=["noise.mean"], on_violation="stop", seed=3)
    for way in WAYS:
        twin = way(audit)
        assert (twin.config.settings(), twin.claim) == (audit.config.settings(), audit.claim)
        assert (twin.on_violation, twin.allow) == ("stop", ("noise.mean",))


def losses(module: Any, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module.net(batch[0]), batch[1], reduction="none")


class Validated(PrivateModule):
    """Has data to validate on."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def val_dataloader(self) -> Any:
        return self.plain_loader()


def test_the_other_callbacks_are_copied_without_the_training(tmp_path: Path) -> None:
    star, examination = EpsilonStar(1e-5, losses=losses, permutations=3), Examination(after=2)
    copies = Copies(star, examination)
    trainer_for(tmp_path, copies, star, examination, max_epochs=1, limit_train_batches=4).fit(
        Validated()
    )
    assert examination.passed, examination
    for way in WAYS:
        assert way(examination).answers.keys() == examination.answers.keys()
        assert [found.epoch for found in way(star).history] == [0]
