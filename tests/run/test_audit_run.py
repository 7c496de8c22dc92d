"""What belongs to an audited training: its own steps, and nothing of trials and validations."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from stages import staged
from torch.utils.data import DataLoader
from trained import check, violated, with_optimizer
from training_support import PrivateModule, assert_no_hooks_left, trainer_for

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.testing import faulty_trainings
from lightning_audit.testing.faulty import ClosureRunsAgain, NoNoise
from lightning_audit.testing.trainings import HandWritten, SplitBatches, Training, random_data

# --- What belongs to an audited training: its own steps, and nothing of trials and validations.


@pytest.mark.parametrize(("kind", "trial"), [(None, 20), (ClosureRunsAgain, 20), (NoNoise, True)])
def test_fast_dev_run_writes_nothing_and_never_fails(tmp_path, kind, trial):
    report = tmp_path / "audit" / "report.json"
    report.parent.mkdir()
    report.write_text("of an earlier training")
    audit = PrivacyAudit(on_inconclusive="raise", seed=1)
    module = PrivateModule(optimizer_class=kind)
    trainer_for(tmp_path, audit, fast_dev_run=trial, max_steps=-1).fit(module)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [report]
    assert audit.report.steps == int(trial)
    assert_no_hooks_left(module)


def test_validate_and_test_are_not_audited(tmp_path):
    class Tested(PrivateModule):
        def test_step(self, batch, batch_idx):
            self.log("loss", PrivateModule.training_step(self, batch, batch_idx))

        def test_dataloader(self):
            return self.plain_loader()

    audit = PrivacyAudit()
    trainer_for(tmp_path, audit, max_steps=1).test(Tested(), verbose=False)
    assert audit.report is None
    assert not (tmp_path / "audit").exists()


# --- Real trainings: what the ledger finds, and what it lets be.


def ledger(
    folder: Path, kind: type, change: Any = None, examinations: int = 0, **trainer: Any
) -> AuditReport:
    """The report of a training of 30 steps by default; ``change`` sees its module before."""
    torch.manual_seed(0)
    module = type(kind.__name__, (kind, pl.LightningModule), {})()
    if change is not None:
        change(module)
    given = {"on_violation": "warn", "seed": 0, "bounds": [], "examinations": examinations}
    audit = PrivacyAudit(report_dir=folder, **given)
    trainer_for(folder, audit, **{"max_steps": 30, "max_epochs": -1, **trainer}).fit(module)
    return audit.report


class Small(Training):
    """Sixty records, of which batches are often alike or empty."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data = random_data(records=60)

    def plain_loader(self) -> DataLoader[Any]:
        return DataLoader(self.data, batch_size=1)


class Workers(Training):
    """Batches that workers load ahead."""

    def plain_loader(self) -> DataLoader[Any]:
        return DataLoader(self.data, 16, num_workers=2, prefetch_factor=4)


class _Slotted:
    __slots__ = ("own",)

    def __init__(self, own: Any) -> None:
        self.own = own

    def __call__(self, optimizer: Any) -> None:
        self.own(optimizer)


def unfollowed(optimizer: Any) -> None:
    """Give it a hook that nobody can read."""
    optimizer.step_hook = _Slotted(optimizer.step_hook)


class Remembers(Training):
    """Looks at a batch of before beside each step, and trains on the one that was drawn."""

    kept: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.kept = self.kept or batch
        with torch.no_grad():
            self.forward(self.kept[0])
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("kind", "trainer", "examinations"),
    staged(
        quick=[
            (faulty_trainings.HookWrapped, {}, 0),
            (Remembers, {"max_steps": 110, "limit_train_batches": 20}, 0),
            (SplitBatches, {}, 0),
        ],
        heavy=[
            (Small, {"max_steps": 120}, 0),
            (Workers, {"max_steps": 140}, 0),
            (Remembers, {"max_steps": 110}, 3),
            (HandWritten, {}, 0),
        ],
    ),
)
@pytest.mark.usefixtures("all_numbers")
def test_correct_trainings_are_let_be(tmp_path, kind, trainer, examinations):
    report = ledger(tmp_path, kind, examinations=examinations, **trainer)
    # Batches in parts, summed or empty have as many rows as records.
    assert "gradients than their batch" not in " ".join(report.notes)
    assert "the sample rate allows" not in " ".join(report.verdict.pass_blockers)
    if kind is HandWritten:
        return
    names = ("ledger.draws", "ledger.steps", "ledger.records", "ledger.accountant", "accounting")
    assert {check(report, name).status for name in names} == {"ok"}
    told = check(report, "ledger.accountant").evidence
    assert (told["told"], told["missing"]) == (report.steps, 0)
    if kind is Remembers:
        evidence = check(report, "ledger.steps").evidence
        # Of a batch of fewer than eight records nothing is told; the last ten are not looked at.
        assert 90 <= evidence["recognised"] <= 100
        assert evidence["stale"] == 0


def test_a_hook_that_cannot_be_followed_stands_in_the_way_of_a_pass(tmp_path):
    report = ledger(tmp_path, with_optimizer(unfollowed, Training))
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("cannot be identified" in blocker for blocker in report.verdict.pass_blockers)
    assert check(report, "ledger.accountant").status == "not_run"


def test_data_that_cannot_be_compared_end_no_training(tmp_path, monkeypatch):
    def fails(_: Any) -> int:
        raise RuntimeError("of no shape")

    monkeypatch.setattr("lightning_audit.run.audit_run.repeated_contents", fails)
    report = ledger(tmp_path, Training)
    assert report.steps == 30
    assert "ledger.records" not in {found.name for found in report.checks}


def test_contents_that_stand_twice_are_a_note(tmp_path):
    def repeat(module: Any) -> None:
        for tensor in module.data.tensors:
            tensor[5] = tensor[4]

    report = ledger(tmp_path, Training, repeat)
    assert any("holds records with equal contents" in note for note in report.notes)
    assert violated(report) == []


class Views(Small):
    """Each record has two rows, one for each of its views."""

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        return super().training_step((torch.cat([x, -x]), torch.cat([y, y])), 0)


class LeavesOut(Small):
    """The first record of each batch is left out."""

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return super().training_step([part[1:] for part in batch], 0)


@pytest.mark.parametrize(
    ("kind", "said"), [(Views, "clipped more gradients"), (LeavesOut, "clipped fewer gradients")]
)
def test_rows_that_are_not_the_records_are_a_note(tmp_path, kind, said):
    notes = " ".join(ledger(tmp_path, kind).notes)
    assert said in notes
    assert notes.count("gradients than their batch") == 1


class HeldBack(Training):
    """Every sixth batch is swapped on its way for the one before it, by its owner's hook."""

    before: Any = None

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.number = getattr(self, "number", 0) + 1
        given, self.before = self.before if self.number % 6 == 0 else batch, batch
        return given


class FillsUp(Training):
    """An eighth of the rows of a batch, and five more, come in the next one again."""

    rest: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        kept = [part[: 5 + len(part) // 8] for part in batch]
        rows = batch if self.rest is None else [*map(torch.cat, zip(batch, self.rest, strict=True))]
        self.rest = kept
        return super().training_step(rows, batch_idx)


def test_a_batch_that_is_given_for_a_fresh_one_is_found(tmp_path):
    found = check(ledger(tmp_path, HeldBack, max_steps=20), "ledger.steps")
    assert (found.status, found.evidence["again"]) == ("violated", 3)


def test_batches_that_are_filled_up_stand_in_the_way_of_a_pass(tmp_path):
    report = ledger(tmp_path, FillsUp, max_steps=60)
    assert report.verdict.outcome == "INCONCLUSIVE"
    said = [b for b in report.verdict.pass_blockers if "the sample rate allows" in b]
    assert len(said) == 1
    assert "PrivacyClaim(sample_rate=...)" in said[0]


def test_a_batch_that_is_kept_and_trained_again_is_found_and_counted(tmp_path):
    report = ledger(tmp_path, faulty_trainings.KeptBatches, max_steps=20)
    found = check(report, "ledger.steps")
    assert found.status == "violated"
    assert (found.evidence["recognised"], found.evidence["stale"]) == (20, 5)
    assert report.verdict.root.name == "several_steps_on_one_batch"
