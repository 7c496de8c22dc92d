"""Each fault of the registry is found under its own name, or is known not to be found yet."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from opacus.optimizers import DPOptimizer
from planted import private
from stages import staged
from training_support import trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.config import findings
from lightning_audit.testing import faulty, trainings
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.runs import train
from lightning_audit.testing.selftest import Row
from lightning_audit.testing.selftest_pool import status_of
from lightning_audit.testing.trainings import (
    BATCH_SIZE,
    BY_HAND_CLAIM,
    RECORDS,
    GhostInParts,
    HandWritten,
    PhysicalBatches,
    Training,
)
from lightning_audit.verdict.gate import contradictions

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("short_report")]

SEEN = [fault for fault in FAULTS.values() if not fault.warn_only]
WARNED = [f for f in FAULTS.values() if f.warn_only and not f.remarked]
REMARKED = [fault for fault in FAULTS.values() if fault.remarked]
#: Left to the second stage: long ones, and those that `test_privacy_audit_faults` has data for.
SLOW = {
    *("logical_batches_run_together", "noise_repeated_on_resume", "gdp_accountant"),
    *("noise_for_fewer_steps", "clip_after_average", "clip_per_tensor", "half_noise"),
    *("no_clipping", "no_noise", "noise_of_squared_multiplier", "noise_averaged_over_processes"),
    *("noise_over_batch", "one_key_for_all_tensors", "one_value_for_all_coordinates"),
    *("processes_not_synchronised", "records_drawn_by_every_process", "record_counts_twice"),
}


@pytest.fixture(autouse=True)
def _one_thread_one_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def _named(fault: Fault, *, heavy: bool) -> Any:
    return pytest.param(fault, id=fault.name, marks=[pytest.mark.heavy] if heavy else [])


def _trained(
    directory: Path, module: Any, steps: int, package: str = "pytorch_lightning", **audit: Any
) -> AuditReport:
    callback = PrivacyAudit(seed=1, report_dir=directory / "audit", **audit)
    kind = import_module(package).Trainer
    trainer = trainer_for(directory, callback, trainer_class=kind, max_steps=steps)
    try:
        trainer.fit(module)
    except PrivacyViolation as violation:
        return violation.report
    return callback.report


def _report_of(fault: Fault, directory: Path) -> AuditReport:
    report = train(fault, directory / "audit")
    # The gate takes it for what it is, whatever the fault.
    assert contradictions(AuditReport.from_json(report.to_json())) == []
    return report


def _violated(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if check.status == "violated"}


# ------------------------------------------------------------------ every fault


@pytest.mark.parametrize("fault", [_named(f, heavy=f.name in SLOW) for f in SEEN])
@pytest.mark.heavy_one_in(12)
@pytest.mark.one_in(4)
def test_fault_is_found_and_named_within_its_steps(tmp_path, fault):
    report = _report_of(fault, tmp_path)
    assert report.verdict.outcome == "VIOLATION", report.verdict
    assert report.verdict.faults[0].name == fault.likely, report.verdict.faults
    assert report.verdict.faults[0].finding in _violated(report)
    assert all(likely.look_at and likely.sentence for likely in report.verdict.faults)
    saved = AuditReport.load(tmp_path / "audit" / "report.json")
    assert saved.verdict.faults == report.verdict.faults


@pytest.mark.nightly  # of two processes
def test_a_seed_in_the_environment_does_not_make_the_processes_alike(tmp_path, monkeypatch):
    # `pl.seed_everything` leaves it there, and equal noise of two processes adds up to the claim.
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    report = _report_of(FAULTS["noise_averaged_over_processes"], tmp_path)
    assert report.verdict.outcome == "VIOLATION", report.verdict


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, id=f.name, marks=[pytest.mark.nightly] if f.processes > 1 else [])
        for f in (*WARNED, *REMARKED)
    ],
)
def test_a_harmless_fault_is_warned_of_or_remarked_upon_and_fails_no_gate(tmp_path, fault):
    report = _report_of(fault, tmp_path)
    assert report.verdict.outcome == fault.ends
    assert _violated(report) == set()
    assert not fault.remarked or {check.status for check in report.checks} <= {"ok", "not_run"}
    assert status_of(Row("fault", fault, ""), report) == ("warned", True)


@pytest.mark.parametrize(
    "kind",
    staged(
        [trainings.Training], [trainings.SplitBatches, HandWritten, PhysicalBatches, GhostInParts]
    ),
)
def test_the_same_trainings_without_a_fault_are_not_accused(tmp_path, kind):
    sound = Fault("sound", "nothing", "", training=kind)
    by_hand = {"claim": BY_HAND_CLAIM} if kind is HandWritten else {}
    report = _trained(tmp_path, sound.module(), 100, **by_hand)
    assert _violated(report) == set()
    assert report.verdict.outcome != "VIOLATION"


def test_a_fault_of_some_tensors_has_their_names_its_size_and_its_step(tmp_path):
    fault = _trained(tmp_path, FAULTS["no_noise_on_biases"].module(), 20).verdict.faults[0]
    assert sorted(fault.place.parameters) == ["net.0.bias", "net.2.bias", "net.4.bias"]
    assert set(fault.evidence["noise_ratio_upper"]) == set(fault.place.parameters)
    # What is left on a bias is the data's part, which is loud in the last one.
    assert min(fault.evidence["noise_ratio_upper"].values()) < 0.15
    assert fault.evidence["median_of_the_others"] == pytest.approx(1.0, abs=0.1)
    assert fault.place.step < 20


def test_gradients_that_are_replaced_are_placed_at_the_first_such_step(tmp_path):
    report = _trained(tmp_path, FAULTS["closure_runs_again"].module(), 8, on_violation="warn")
    assert [fault.name for fault in report.verdict.faults] == ["gradient_replaced"]
    assert report.verdict.faults[0].place.step == 0
    assert report.verdict.faults[0].evidence["replaced"] == 8


# ------------------------------------------------------------------ the registry


@pytest.mark.parametrize("fault", [_named(f, heavy=False) for f in FAULTS.values()])
def test_an_entry_says_what_is_found_and_within_how_many_steps_and_what_differs(fault):
    assert fault.wrong
    assert fault.met_in
    assert not fault.check or fault.check in findings()
    assert bool(fault.check or fault.sentence) == fault.warn_only
    assert not fault.shows or fault.check
    of_noise = ("no_noise", "noise_", "one_key", "same_noise")
    at_once = fault.check.startswith("noise") or fault.likely.startswith(of_noise)
    # Lightning counts the parts of a split batch, two to three of these a step.
    parts = 2 if issubclass(fault.training, PhysicalBatches) else 1
    begins = faulty.SOUND_STEPS if fault.optimizer is faulty.NoiseEnds else 0
    assert fault.steps - begins <= (20 if at_once else 100 * parts)
    if fault.optimizer is not None:
        assert issubclass(fault.optimizer, DPOptimizer)
        assert set(fault.settings) <= {"noise_multiplier", "max_grad_norm"}
        return
    own = fault.training is not Training
    assert own or fault.audit or fault.settings or fault.trainer or fault.remarked
    with pytest.raises(TypeError, match="is no optimizer fault"):
        fault.apply(private())


def test_no_class_took_the_name_of_another():
    classes = {fault.optimizer or fault.training for fault in FAULTS.values()}
    assert len(classes) == len(FAULTS) == 101


# ------------------------------------------------------------------ in a training of one's own


def test_a_module_joins_the_lightning_that_is_asked_for(tmp_path):
    package = import_module("lightning.pytorch")
    module = FAULTS["half_noise"].module(package.LightningModule)
    assert isinstance(module, package.LightningModule)
    assert not isinstance(module, pl.LightningModule)
    report = _trained(tmp_path, module, 20, "lightning.pytorch")
    assert report.verdict.fault.startswith("noise scale too small")


def test_a_training_by_hand_comes_with_a_claim_since_no_engine_tells_its_noise():
    by_hand = [fault for fault in FAULTS.values() if issubclass(fault.training, HandWritten)]
    assert len(by_hand) > 2
    assert all(fault.audit["claim"].noise_multiplier > 0 for fault in by_hand)
    assert BY_HAND_CLAIM.sample_rate == BATCH_SIZE / RECORDS
