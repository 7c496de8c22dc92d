"""`trainer.fit` again: the same training goes on with its audit, another one starts anew."""

import contextlib
import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from own_samplers import OwnPoisson, OwnSampling, OwnSizes
from pytorch_lightning.plugins.precision import MixedPrecision
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from resume_support import RESUMING, StepwiseModule, StopAt, checkpoint_at, saver
from torch import nn
from torch.utils.data import DataLoader
from trained import weights
from training_support import PrivateModule, assert_no_hooks_left, report_in, status, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.callbacks.trainer import refuse_trainer, show_batches
from lightning_audit.canaries import Dirac
from lightning_audit.hooks.sampler_tap import WatchedSampler
from lightning_audit.record.store import RECORD_NAME, read_observations
from lightning_audit.testing.faulty import HalfNoise

pytestmark = RESUMING

# --- `trainer.fit` again: the same training goes on with its audit, another one starts anew.


#: Epochs of eight steps.
SHORT = {"limit_train_batches": 8}


def steps_on_disk(directory: Path) -> list[int]:
    return read_observations(directory / "audit" / RECORD_NAME)[1]["step"].tolist()


def as_on_disk(report: AuditReport) -> AuditReport:
    return AuditReport.from_json(report.to_json())


def training(directory: Path, *callbacks: Any, audit: Any = None, **trainer: Any) -> pl.Trainer:
    """A Trainer with an audit, of one epoch by default."""
    given = {"max_epochs": 1, **trainer} if "max_steps" not in trainer else trainer
    return trainer_for(directory, audit or PrivacyAudit(seed=1), *callbacks, **given)


def go_on(trainer: pl.Trainer, module: pl.LightningModule, epochs: int, **given: Any) -> None:
    """Fit the same Trainer until so many epochs are over."""
    trainer.fit_loop.max_epochs = epochs
    trainer.fit(module, **given)


# ------------------------------------------------------------------ more epochs


def test_more_epochs_give_the_report_of_one_long_training(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    # Each fit is examined anew, at other steps: `test_a_resumed_training_is_examined_anew`.
    audits = [PrivacyAudit(seed=1, examinations=0, bounds="all") for _ in (whole, parts)]
    training(whole, audit=audits[0], max_epochs=3, **SHORT).fit(StepwiseModule())
    module, trainer = StepwiseModule(), training(parts, audit=audits[1], **SHORT)
    for epochs in (1, 2, 3):
        go_on(trainer, module, epochs)
    assert steps_on_disk(parts) == list(range(24))
    assert not (parts / "audit" / "previous-1").exists()
    one, other = report_in(whole), report_in(parts)
    evidence = [{c.name: c.log_e_value for c in report.checks} for report in (one, other)]
    evidence[1].pop("reuse.resume", None)
    assert evidence[0] == evidence[1]
    # The planned end of the parts is that of the first.
    bounds = [[b for b in report.bounds if b.name != "at_end"] for report in (one, other)]
    assert (bounds[0], one.verdict) == (bounds[1], other.verdict)


def test_a_violation_of_the_first_fit_stands_in_the_second(tmp_path):
    module, trainer = StepwiseModule(optimizer_class=HalfNoise), training(tmp_path)
    for epochs in (1, 2):
        with pytest.raises(PrivacyViolation):
            go_on(trainer, module, epochs)
        module.optimizer_class = None  # the noise is mended, and what it released is out
    assert 1 <= report_in(tmp_path).steps < 20


def test_a_fit_that_broke_off_goes_on_in_the_next(tmp_path):
    stop, module = StopAt(20), StepwiseModule()
    trainer = training(tmp_path, stop, max_epochs=2)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.fit(module)
    stop.step = -1
    trainer.fit(module)
    report = report_in(tmp_path)
    assert (report.complete, report.verdict.outcome) == (True, "PASS")
    assert report.steps == trainer.global_step
    assert steps_on_disk(tmp_path) == list(range(report.steps))


# ------------------------------------------------------------------ nothing left


@pytest.mark.parametrize("kind", [None, HalfNoise])
def test_with_nothing_left_to_train_the_report_stays_what_it_was(tmp_path, kind):
    audit, file = PrivacyAudit(seed=1, on_violation="warn"), tmp_path / "audit" / "report.json"
    module = StepwiseModule(optimizer_class=kind)
    trainer = training(tmp_path, audit=audit, **SHORT)
    trainer.fit(module)
    before, report = file.read_bytes(), audit.report
    for _ in range(2):
        trainer.fit(module)
        assert (file.read_bytes(), audit.report) == (before, report)
    assert steps_on_disk(tmp_path) == list(range(report.steps))
    assert not (tmp_path / "audit" / "previous-1").exists()
    assert_no_hooks_left(module)


def test_a_finished_checkpoint_loaded_anew_has_the_report_that_it_had(tmp_path):
    trainer, last = training(tmp_path, max_epochs=2, **SHORT), tmp_path / "last.ckpt"
    trainer.fit(StepwiseModule())
    trainer.save_checkpoint(last)
    first, audit = report_in(tmp_path), PrivacyAudit(seed=1)
    trainer = training(tmp_path, audit=audit, max_epochs=2, **SHORT)
    trainer.fit(StepwiseModule(), ckpt_path=last, weights_only=True)
    again = report_in(tmp_path)
    assert (again.steps, again.verdict) == (first.steps, first.verdict)
    assert again.epsilon_spent == first.epsilon_spent
    # Only a training that was resumed has a check of noise that starts again. Looks at steps are in
    # no checkpoint: they are of private numbers.
    assert {c.name: c.log_e_value for c in again.checks if c.name != "reuse.resume"} == {
        c.name: c.log_e_value for c in first.checks if c.name != "every_step"
    }
    assert steps_on_disk(tmp_path) == list(range(16))
    assert as_on_disk(audit.report) == again


# ------------------------------------------------------------------ checkpoints, in one process


@pytest.mark.heavy
def test_a_checkpoint_of_the_same_process_goes_on_from_where_it_was_saved(tmp_path):
    saved, module = tmp_path / "saved", StepwiseModule()
    saves = saver(saved, epoch_end=True)
    trainer = training(tmp_path, saves, max_epochs=2, enable_checkpointing=True)
    trainer.fit(module)
    torch.manual_seed(11)  # the module's own seed of step 63 would draw that step's batch twice
    go_on(trainer, module, 3, ckpt_path=checkpoint_at(saved, 32), weights_only=True)
    report = report_in(tmp_path)
    assert (report.steps, report.verdict.outcome) == (96, "PASS")
    assert steps_on_disk(tmp_path) == list(range(96))


def test_a_checkpoint_without_the_audit_is_not_gone_on_with_from_memory(tmp_path):
    plain, ckpt = trainer_for(tmp_path / "plain", max_epochs=2, **SHORT), tmp_path / "plain.ckpt"
    plain.fit(StepwiseModule())
    plain.save_checkpoint(ckpt)
    module, trainer = StepwiseModule(), training(tmp_path, max_epochs=2, **SHORT)
    trainer.fit(module)
    go_on(trainer, module, 3, ckpt_path=ckpt, weights_only=True)
    verdict = report_in(tmp_path).verdict
    assert verdict.outcome == "INCONCLUSIVE"
    assert "without this audit's state" in verdict.pass_blockers[0]


# ------------------------------------------------------------------ another training


@pytest.mark.parametrize("anew", ["Trainer", "loop"])
def test_a_new_trainer_or_loop_starts_the_audit_anew(tmp_path, anew):
    audit, module = PrivacyAudit(seed=1), StepwiseModule()
    trainer = training(tmp_path, audit=audit, **SHORT)
    trainer.fit(module)
    if anew == "Trainer":
        trainer, module = training(tmp_path, audit=audit, max_steps=4), StepwiseModule()
    else:
        trainer.fit_loop = type(trainer.fit_loop)(trainer, max_epochs=1)
    trainer.fit(module)
    assert report_in(tmp_path).steps == (4 if anew == "Trainer" else 8)
    assert AuditReport.load(tmp_path / "audit" / "previous-1" / "report.json").steps == 8


def test_another_module_in_the_same_trainer_is_not_passed_by_the_first_ones_steps(tmp_path):
    trainer = training(tmp_path, max_epochs=2)
    trainer.fit(StepwiseModule())
    go_on(trainer, StepwiseModule(), 4)
    report = report_in(tmp_path)
    assert (report.steps, report.verdict.outcome) == (64, "INCONCLUSIVE")


# ------------------------------------------------------------------ copies


def copies(audit: PrivacyAudit) -> list[PrivacyAudit]:
    return [copy.deepcopy(audit), pickle.loads(pickle.dumps(audit)), copy.copy(audit)]


def test_a_callback_that_raised_or_failed_can_be_copied_with_its_report(tmp_path):
    found, broken = PrivacyAudit(seed=1), PrivacyAudit(seed=1)
    with pytest.raises(PrivacyViolation) as raised:
        training(tmp_path / "a", audit=found).fit(PrivateModule(optimizer_class=HalfNoise))
    with pytest.raises(RuntimeError, match="power cut"):
        training(tmp_path / "b", StopAt(5), audit=broken).fit(PrivateModule())
    refused = PrivacyAudit(canaries=[Dirac(tensor="nowhere")])
    with pytest.raises(ValueError, match="nowhere"):
        training(tmp_path / "c", audit=refused).fit(PrivateModule())
    for audit in (found, broken, refused):
        assert {repr(twin.report) for twin in copies(audit)} == {repr(audit.report)}
    assert repr(pickle.loads(pickle.dumps(raised.value)).report) == repr(found.report)


# --- Methods of a strategy are stood in for while a training is audited, and put back.


class Strategy:
    """Doubles its batch; None for none."""

    def training_step(self, batch: Any, batch_idx: int = 0) -> Any:
        return None if batch is None else 2 * batch


def shown(strategy: Strategy, *, automatic: bool = True, **calls: Any) -> Any:
    """The hook that shows batches to a run, which changes none of them unless told so."""
    precision = SimpleNamespace(train_step_context=contextlib.nullcontext)
    trainer: Any = SimpleNamespace(strategy=strategy, precision_plugin=precision)
    module: Any = nn.Linear(1, 1)
    module.automatic_optimization = automatic
    nothing = {"admit": lambda batch, module: batch, "skipped": lambda: None}
    return show_batches(trainer, module, SimpleNamespace(**(nothing | calls)))


@pytest.mark.parametrize("automatic", [True, False])
def test_no_output_is_a_step_left_out_in_automatic_optimization_alone(automatic):
    strategy, skipped = Strategy(), []
    shown(strategy, automatic=automatic, skipped=lambda: skipped.append(1))
    assert strategy.training_step(None, 0) is None
    assert len(skipped) == automatic


def test_watching_a_sampler_leaves_the_training_as_it_is(tmp_path):
    ends = []
    for audits in ([], [PrivacyAudit(seed=1)]):
        torch.manual_seed(0)
        module = OwnSampling(OwnPoisson())
        trainer_for(tmp_path, *audits, max_steps=20).fit(module)
        ends.append(weights(module.net))
    assert torch.allclose(*ends, rtol=0, atol=1e-5)


def test_validation_loaders_are_not_watched(audited):
    class Validated(OwnSampling):
        def val_dataloader(self) -> Any:
            self.val = DataLoader(self.dataset, batch_sampler=OwnSizes())
            return self.val

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            loaders = {"train": getattr(self, "loader", None), "val": self.val}
            self.watched = {k: type(x.batch_sampler) for k, x in loaders.items() if x}

    module = Validated(OwnPoisson())
    report = audited(module, max_epochs=2)
    assert module.watched == {"train": WatchedSampler, "val": OwnSizes}
    assert status(report, "sampling.not_poisson") == "ok"


# --- Trainers that cannot be audited are refused before the first step, with what to change.


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("16-mixed", {"plugins": [MixedPrecision("16-mixed", device="cpu")]}),
        ("16-true", {"precision": "16-true"}),
    ],
)
def test_half_precision_is_refused(tmp_path, precision, options):
    with pytest.raises(MisconfigurationException, match=f"precision='{precision}'") as raised:
        refuse_trainer(trainer_for(tmp_path, **options), audits=1)
    assert "'32-true' or 'bf16-mixed'" in str(raised.value)


@pytest.mark.filterwarnings("ignore:You passed `Trainer")
def test_what_lightning_makes_of_half_precision_on_a_cpu_is_not_refused(tmp_path):
    trainer = trainer_for(tmp_path, precision="16-mixed")
    assert trainer.precision == "bf16-mixed"
    refuse_trainer(trainer, audits=1)


def test_an_ordinary_trainer_with_one_audit_is_not_refused_and_with_two_it_is(tmp_path):
    trainer = trainer_for(tmp_path, precision="bf16-mixed")
    refuse_trainer(trainer, audits=1)
    with pytest.raises(MisconfigurationException, match=r"has 2 PrivacyAudit callbacks.*Keep one"):
        refuse_trainer(trainer, audits=2)


class _Trainer(SimpleNamespace):
    """As much of a Trainer of two processes as is looked at before any is started."""

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy=strategy, world_size=2, precision="32-true")


@pytest.mark.parametrize("kind", [FSDPStrategy, ModelParallelStrategy])
def test_a_strategy_that_shards_parameters_is_refused_with_advice(kind):
    with pytest.raises(MisconfigurationException, match=r"shards the parameters.*strategy='ddp'"):
        refuse_trainer(_Trainer(kind()), audits=1)


def test_processes_of_a_strategy_that_is_not_known_are_refused():
    with pytest.raises(MisconfigurationException, match=r"2 processes.*strategy='ddp'"):
        refuse_trainer(_Trainer(object()), audits=1)
    refuse_trainer(_Trainer(DDPStrategy()), audits=1)
