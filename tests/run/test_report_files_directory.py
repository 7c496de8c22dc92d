"""A report directory belongs to one training at a time, in processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from both_processes import run_both
from resume_support import RESUMING, StepwiseModule
from stages import staged
from training_process import Job, Trainings, trainings, wait_for
from training_support import PrivateModule, fit, report_in, trainer_for

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.cli.main import main
from lightning_audit.record.report_directory import claim
from lightning_audit.record.store import read_observations
from lightning_audit.testing.faulty import HalfNoise

pytestmark = RESUMING


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    with trainings(tmp_path_factory.mktemp("one") / "log.txt") as started:
        yield started


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    with trainings(tmp_path_factory.mktemp("other") / "log.txt") as started:
        yield started


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.mark.heavy
@pytest.mark.parametrize("given", [False, True])
def test_a_violation_beside_a_slower_correct_training_is_not_hidden(
    tmp_path: Path, root: Path, one: Trainings, other: Trainings, given: bool
) -> None:
    folder = root / "given" if given else root / "audit"
    report_dir = str(folder) if given else None
    go = tmp_path / "go"
    one.start(Job(str(root), report_dir, half_noise=True, stay=str(go)))
    wait_for(root / "waits")
    other.start(Job(str(root), report_dir, steps=64))
    assert other.ended() == 0
    go.touch()
    assert one.ended() == 1  # PrivacyViolation
    outcomes = {
        str(path.relative_to(folder)): AuditReport.load(path).verdict.outcome
        for path in folder.rglob("report.json")
    }
    assert outcomes == {"report.json": "VIOLATION", "run-2/report.json": "PASS"}
    assert main(["check", str(folder)]) == 1
    assert main(["check", str(root)]) == 1
    for directory, length in ((folder, 1), (folder / "run-2", 64)):  # the violation stops
        assert len(read_observations(directory / "observations.bin")[1]) == length
    notes = AuditReport.load(folder / "run-2" / "report.json").notes
    assert sum(f"{folder} belongs to another training" in note for note in notes) == 1
    assert "belongs to another training" in other.said()


@pytest.mark.heavy
def test_the_later_one_to_end_does_not_hide_the_earlier_ones_violation(
    tmp_path: Path, root: Path, one: Trainings, other: Trainings
) -> None:
    go = tmp_path / "go"
    one.start(Job(str(root), steps=64, stay=str(go)))
    wait_for(root / "waits")
    other.start(Job(str(root), half_noise=True))
    assert other.ended() == 1
    go.touch()
    assert one.ended() == 0
    assert report_in(root).verdict.outcome == "PASS"
    assert main(["check", str(root / "audit")]) == 1


@pytest.mark.heavy
@pytest.mark.parametrize("workers", staged(quick=[0], heavy=[2]))
def test_a_killed_training_leaves_its_directory_to_the_next(
    tmp_path: Path, root: Path, one: Trainings, other: Trainings, workers: int
) -> None:
    number = one.start(Job(str(root), stay=str(tmp_path / "never"), workers=workers))
    wait_for(root / "waits")
    os.kill(number, signal.SIGKILL)
    assert one.ended() == -signal.SIGKILL
    other.start(Job(str(root), steps=40))
    assert other.ended() == 0
    assert report_in(root).steps == 40
    assert not (root / "audit" / "run-2").exists()
    assert AuditReport.load(root / "audit" / "previous-1" / "report.json").steps == 32


def test_trainings_one_after_the_other_in_a_process_share_the_directory(root: Path) -> None:
    for steps in (4, 5, 6):
        fit(root, PrivateModule(), PrivacyAudit(seed=1), max_steps=steps)
    assert [p.name for p in sorted((root / "audit").iterdir()) if p.is_dir()] == [
        "previous-1",
        "previous-2",
    ]


def test_a_training_that_broke_off_in_its_set_up_leaves_the_directory(root: Path) -> None:
    class Broken(PrivateModule):
        def configure_optimizers(self) -> None:
            raise ValueError("no optimizer today")

    for _ in range(2):
        with pytest.raises(ValueError, match="no optimizer today"):
            trainer_for(root, PrivacyAudit(seed=1), max_steps=4).fit(Broken())
    fit(root, PrivateModule(), PrivacyAudit(seed=1), max_steps=4)
    assert not (root / "audit" / "run-2").exists()


def test_two_trainings_in_threads_have_a_directory_each(root: Path) -> None:
    reports: dict[int, AuditReport | None] = {}
    both = threading.Barrier(2, timeout=60)

    class Together(PrivateModule):
        def on_train_start(self) -> None:
            both.wait()

    def train(number: int) -> None:
        audit = PrivacyAudit(seed=number, bounds=[])
        trainer_for(root, audit, max_steps=4 + number).fit(Together())
        reports[number] = audit.report

    # Opacus' hooks are torch's own, one thread after the other would do as well.
    threads = [threading.Thread(target=train, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(reports) == [1, 2]
    steps = {AuditReport.load(path).steps for path in (root / "audit").rglob("report.json")}
    assert steps == {5, 6}


# ------------------------------------------------------------------ going on after a stop


def checkpoint(root: Path, step: int) -> str:
    (found,) = (root / "saved").glob(f"*step={step}.ckpt")
    return str(found)


@pytest.mark.heavy
def test_a_resumed_run_keeps_the_directory_of_its_beginning(
    tmp_path: Path, root: Path, one: Trainings, other: Trainings
) -> None:
    go = tmp_path / "go"
    one.start(Job(str(root), half_noise=True, stay=str(go)))
    wait_for(root / "waits")
    (root / "waits").unlink()
    number = other.start(Job(str(root), every=10, stay=str(tmp_path / "never")))
    wait_for(root / "waits")
    os.kill(number, signal.SIGKILL)
    other.ended()
    go.touch()
    assert one.ended() == 1
    # The first directory is free again, and stays the violated training's.
    other.start(Job(str(root), ckpt=checkpoint(root, 30), seed=4))
    assert other.ended() == 0, other.said()
    assert report_in(root).verdict.outcome == "VIOLATION"
    again = AuditReport.load(root / "audit" / "run-2" / "report.json")
    assert (again.steps, again.verdict.outcome, again.settings["seed"]) == (96, "PASS", 3)
    _, entries = read_observations(root / "audit" / "run-2" / "observations.bin")
    assert entries["step"].tolist() == list(range(96))
    assert not any("is not in" in note for note in again.notes)
    assert not (root / "audit" / "run-3").exists()
    assert main(["check", str(root / "audit")]) == 1


@pytest.mark.heavy
def test_a_run_whose_directory_is_held_goes_on_elsewhere_and_says_so(
    tmp_path: Path, root: Path, one: Trainings, other: Trainings
) -> None:
    one.start(Job(str(root), every=10, stay=str(tmp_path / "go")))
    wait_for(root / "waits")
    other.start(Job(str(root), ckpt=checkpoint(root, 30)))  # of a run that has not stopped
    assert other.ended() == 0, other.said()
    (tmp_path / "go").touch()
    assert one.ended() == 0
    first, second = report_in(root), AuditReport.load(root / "audit" / "run-2" / "report.json")
    assert (first.steps, second.steps) == (96, 96)
    assert any("belongs to another training" in note for note in second.notes)
    assert any("the record of the first 30 steps is not in" in note for note in second.notes)
    _, entries = read_observations(root / "audit" / "observations.bin")
    assert entries["step"].tolist() == list(range(96))


def test_a_resumed_training_that_breaks_off_in_its_set_up_leaves_no_earlier_report(
    root: Path,
) -> None:
    trainer = trainer_for(root, PrivacyAudit(seed=1), max_epochs=1)
    trainer.fit(StepwiseModule())
    trainer.save_checkpoint(root / "last.ckpt")

    class Broken(StepwiseModule):
        def configure_optimizers(self) -> None:
            raise ValueError("no optimizer today")

    with pytest.raises(ValueError, match="no optimizer today"):
        trainer_for(root, PrivacyAudit(), max_epochs=2).fit(
            Broken(), ckpt_path=root / "last.ckpt", weights_only=True
        )
    assert not (root / "audit" / "report.json").exists()
    assert main(["check", str(root / "audit")]) == 2


# ------------------------------------------------------------------ several processes, no locks


@pytest.mark.heavy
def test_all_processes_of_a_training_hear_that_the_directory_is_taken(tmp_path: Path) -> None:
    held = claim(tmp_path / "taken" / "audit")
    try:
        codes, said = run_both(tmp_path, "taken")
    finally:
        held.release()
    assert codes == [0, 0], said
    own = AuditReport.load(tmp_path / "taken" / "audit" / "run-2" / "report.json")
    told = [AuditReport.load(tmp_path / "taken" / f"report-{rank}.json") for rank in range(2)]
    assert told == [own, own]
    assert not (tmp_path / "taken" / "audit" / "report.json").exists()


def test_a_directory_whose_owner_was_removed_with_it_is_not_shared(root: Path) -> None:
    class Removes(PrivateModule):
        def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
            if self.global_step == 20:
                shutil.rmtree(root / "audit")
                fit(root, PrivateModule(), PrivacyAudit(seed=2), max_steps=5)

    audit = PrivacyAudit(seed=1, on_violation="warn", bounds=[])
    trainer_for(root, audit, max_steps=40).fit(Removes(optimizer_class=HalfNoise))
    assert main(["check", str(root / "audit")]) == 1
    between = AuditReport.load(root / "audit" / "previous-1" / "report.json")
    assert (between.steps, between.settings["seed"]) == (5, 2)


def test_the_lock_is_let_go_when_the_callback_is_forgotten(root: Path) -> None:
    fit(root, PrivateModule(), PrivacyAudit(seed=1), max_steps=2)
    again = claim(root / "audit")
    assert again.directory == root / "audit"
    again.release()
