"""What the audit cannot write is said, and changes nothing of the training."""

import contextlib
import errno
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from both_processes import run_both
from made_report import made_report
from page_reports import of_outcome
from resume_support import RESUMING, StepwiseModule
from trained import failing, weights
from training_process import Job, Trainings, trainings, wait_for
from training_support import PrivateModule, fit, refusal_of, report_in, trainer_for

from lightning_audit import AuditReport, InconclusiveAudit, PrivacyAudit, PrivacyViolation
from lightning_audit.cli.main import main
from lightning_audit.record.report_directory import (
    ARCHIVE_NAME,
    FIGURE_NAME,
    PAGE_NAME,
    RECORD_NAME,
    REPORT_NAME,
    claim,
)
from lightning_audit.record.store import read_observations
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.testing.faulty import HalfNoise

pytestmark = RESUMING

# --- What the audit cannot write is said, and changes nothing of the training.

EPOCHS, STEPS = 2, 64


class At(pl.Callback):
    """Does something before a step."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.step, self.act = step, act

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            self.act()


def train(
    directory: Path, audit: PrivacyAudit, *callbacks: pl.Callback, **module: Any
) -> torch.Tensor:
    """The weights that a training ends with."""
    trained = StepwiseModule(**module)
    trainer_for(directory, audit, *callbacks, max_epochs=EPOCHS).fit(trained)
    return weights(trained)


def replacing(folder: Path) -> Callable[[], None]:
    """What puts a file in the place of a directory."""

    def replace() -> None:
        shutil.rmtree(folder)
        folder.write_text("mine")

    return replace


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("undisturbed")
    ends = train(folder, PrivacyAudit(seed=3, bounds=[], examinations=0))
    assert report_in(folder).verdict.outcome == "PASS"
    return ends


def told(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    own = [r.getMessage() for r in caplog.records if r.name.startswith("lightning_audit")]
    return [message for message in own if part in message]


#: Bytes of a file within which a report fits.
LIMIT = 40_000


def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    with trainings(tmp_path_factory.mktemp("started") / "log.txt") as started:
        yield started


one, other = (pytest.fixture(scope="module", name=name)(_started) for name in ("one", "other"))


# ------------------------------------------------------------------ what users do meanwhile


def test_a_removed_directory_costs_the_record_and_the_pass(tmp_path, undisturbed, caplog):
    folder = tmp_path / "audit"
    ends = train(tmp_path, PrivacyAudit(seed=3), At(40, lambda: shutil.rmtree(folder)))
    assert torch.equal(ends, undisturbed)
    report = report_in(tmp_path)
    assert (report.complete, report.steps) == (True, STEPS)
    assert report.verdict.outcome == "INCONCLUSIVE"
    (lack,) = report.verdict.pass_blockers
    assert f"the record {folder / RECORD_NAME} ends before entry" in lack
    assert "was removed" in lack
    assert len(told(caplog, "was removed")) == 1
    assert main(["check", str(folder)]) == 2


def test_a_file_in_the_directorys_place_is_left_alone(tmp_path, undisturbed, caplog, capsys):
    folder, audit = tmp_path / "audit", PrivacyAudit(seed=3)
    assert torch.equal(train(tmp_path, audit, At(40, replacing(folder))), undisturbed)
    assert folder.read_text() == "mine"
    verdict = audit.report.verdict
    assert (verdict.outcome, len(verdict.pass_blockers)) == ("INCONCLUSIVE", 2)
    assert f"{folder / REPORT_NAME} could not be written" in verdict.pass_blockers[1]
    assert len(told(caplog, REPORT_NAME)) == 1  # once, and there were two epochs and the end
    shown = capsys.readouterr().out
    assert "could not be written" in " ".join(shown.split())
    assert "Report " not in shown


def test_what_is_missing_fails_a_run_that_shall_not_be_inconclusive(tmp_path):
    audit = PrivacyAudit(seed=3, on_inconclusive="raise")
    with pytest.raises(InconclusiveAudit, match=r"observations\.bin ends before entry"):
        train(tmp_path, audit, At(10, (tmp_path / "audit" / RECORD_NAME).unlink))
    assert report_in(tmp_path).verdict.outcome == "INCONCLUSIVE"


def test_a_violation_stays_one_where_nothing_can_be_written(tmp_path):
    folder, audit = tmp_path / "audit", PrivacyAudit(seed=3)
    with pytest.raises(PrivacyViolation):
        train(tmp_path, audit, At(0, replacing(folder)), optimizer_class=HalfNoise)
    assert audit.report.verdict.outcome == "VIOLATION"
    assert sum("could not be written" in note for note in audit.report.notes) == 1
    assert folder.read_text() == "mine"


@pytest.mark.parametrize(
    ("given", "removed"), [(None, True), ("here", False)], ids=["default_root_dir", "report_dir"]
)
@pytest.mark.one_in(2)
def test_another_working_directory_moves_no_file(
    tmp_path, undisturbed, monkeypatch, given, removed
):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(first)

    def leave() -> None:
        os.chdir(second)
        if removed:
            second.rmdir()  # a process may be in a directory that is no more

    ends = train(Path("root"), PrivacyAudit(seed=3, report_dir=given), At(40, leave))
    monkeypatch.chdir(first)
    assert torch.equal(ends, undisturbed)
    folder = first / (given or "root/audit")
    assert AuditReport.load(folder / REPORT_NAME).verdict.outcome == "PASS"
    assert len(read_observations(folder / RECORD_NAME)[1]) == STEPS
    assert (folder / ARCHIVE_NAME).exists()
    assert removed or not list(second.iterdir())


# ------------------------------------------------------------------ disks


@pytest.mark.heavy
def test_a_limit_on_file_sizes_costs_the_pass_and_nothing_of_the_training(
    tmp_path, undisturbed, other
):
    before = len(other.said())
    other.start(Job(str(tmp_path), limit=LIMIT, steps=STEPS))
    assert other.ended() == 0, other.said()
    said = "".join(other.said()[before:].split())  # lines of the report may break anywhere
    assert torch.equal(torch.from_numpy(np.load(tmp_path / "weights.npy")), undisturbed)
    assert said.count("endsbeforeentry") == 2  # at once, and at the end
    assert "INCONCLUSIVE" in said
    _, entries = read_observations(tmp_path / "audit" / RECORD_NAME)
    assert 0 < len(entries) < STEPS
    assert entries["step"].tolist() == list(range(len(entries)))
    report = report_in(tmp_path)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert "File too large" in report.verdict.pass_blockers[0]
    assert main(["check", str(tmp_path)]) == 2


def test_an_output_that_takes_nothing_ends_no_training(tmp_path, undisturbed, monkeypatch):
    closes = contextlib.suppress(OSError)
    with closes, open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        ends = train(tmp_path, PrivacyAudit(seed=3))
    assert torch.equal(ends, undisturbed)
    assert report_in(tmp_path).verdict.outcome == "PASS"


# ------------------------------------------------------------------ links in the way


NAMES = [
    *(f".{REPORT_NAME}.partial", f".{FIGURE_NAME}.partial", f".{ARCHIVE_NAME}.partial.npz"),
    *(REPORT_NAME, FIGURE_NAME, RECORD_NAME, ARCHIVE_NAME),
]


@pytest.mark.whole_report
@pytest.mark.parametrize(
    ("names", "there", "when"),
    [
        *((NAMES, there, None) for there in (True, False)),
        *(([name for name in NAMES if name != RECORD_NAME], there, 20) for there in (True, False)),
        ([RECORD_NAME], True, 20),
    ],
    ids=["files before", "nothing before", "files", "nothing", "record"],
)
@pytest.mark.one_in(4)
@pytest.mark.heavy_one_in(3)
def test_no_link_in_the_directory_is_written_through(tmp_path, audited, names, there, when):
    """With a file behind the links or without, laid before the training or before a step."""
    links = {tmp_path / f"target {name}": audited.directory / name for name in names}
    for target in links if there else ():
        target.write_text("mine")

    def lay() -> None:
        audited.directory.mkdir(exist_ok=True)
        for target, link in links.items():
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    acts = [] if when is None else [At(when, lay)]
    if when is None:
        lay()
    # Without examinations: the module's records are in no batch.
    given = {"seed": 3, "bounds": [], "examinations": 0}
    report = audited(StepwiseModule(), *acts, steps=40, **given)
    assert {target.exists() for target in links} == {there}
    assert not there or {target.read_text() for target in links} == {"mine"}
    replaced = names == [RECORD_NAME]
    assert report.verdict.outcome == ("INCONCLUSIVE" if replaced else "PASS")
    assert not (audited.directory / REPORT_NAME).is_symlink()
    if not replaced:
        assert len(np.load(audited.directory / ARCHIVE_NAME)["step"]) == 40


# --- A report directory belongs to one training at a time, in processes of their own.


@pytest.fixture
def root(tmp_path):
    made = tmp_path / "root"
    made.mkdir()
    return made


def steps_in(directory: Path) -> list[int]:
    return read_observations(directory / RECORD_NAME)[1]["step"].tolist()


class Broken(StepwiseModule):
    """Breaks off in its set-up."""

    def configure_optimizers(self) -> None:
        raise ValueError("no optimizer today")


@pytest.mark.heavy
def test_a_killed_training_leaves_its_directory_to_the_next(tmp_path, root, one, other):
    number = one.start(Job(str(root), stay=str(tmp_path / "never"), workers=2))
    wait_for(root / "waits")
    os.kill(number, signal.SIGKILL)
    assert one.ended() == -signal.SIGKILL
    other.start(Job(str(root), steps=8))
    assert other.ended() == 0
    assert report_in(root).steps == 8
    assert not (root / "audit" / "run-2").exists()
    assert AuditReport.load(root / "audit" / "previous-1" / "report.json").steps == 32


def test_a_training_that_broke_off_in_its_set_up_leaves_the_directory(root):
    for _ in range(2):
        with pytest.raises(ValueError, match="no optimizer today"):
            trainer_for(root, PrivacyAudit(seed=1), max_steps=4).fit(Broken())
    fit(root, PrivateModule(), PrivacyAudit(seed=1), max_steps=4)
    assert not (root / "audit" / "run-2").exists()


def test_two_trainings_in_threads_have_a_directory_each(root):
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
def test_a_violation_beside_a_correct_training_is_not_hidden_and_each_keeps_its_directory(
    tmp_path, root, one, other
):
    go = tmp_path / "go"
    one.start(Job(str(root), half_noise=True, stay=str(go)))
    wait_for(root / "waits")
    (root / "waits").unlink()
    before = len(other.said())
    number = other.start(Job(str(root), steps=STEPS, every=10, stay=str(tmp_path / "never")))
    wait_for(root / "waits")
    os.kill(number, signal.SIGKILL)
    other.ended()
    assert "belongs to another training" in other.said()[before:]
    go.touch()
    assert one.ended() == 1  # PrivacyViolation
    # The first directory is free again, and stays the violated training's.
    other.start(Job(str(root), steps=STEPS, ckpt=checkpoint(root, 30), seed=4))
    assert other.ended() == 0, other.said()
    assert report_in(root).verdict.outcome == "VIOLATION"
    assert steps_in(root / "audit") == [0]  # the violation stops
    again = AuditReport.load(root / "audit" / "run-2" / "report.json")
    assert (again.steps, again.verdict.outcome, again.settings["seed"]) == (STEPS, "PASS", 3)
    assert steps_in(root / "audit" / "run-2") == list(range(STEPS))
    assert not any("is not in" in note for note in again.notes)
    assert not (root / "audit" / "run-3").exists()
    assert main(["check", str(root / "audit")]) == main(["check", str(root)]) == 1


@pytest.mark.heavy
def test_a_run_whose_directory_is_held_goes_on_elsewhere_and_says_so(tmp_path, root, one, other):
    one.start(Job(str(root), steps=STEPS, every=10, stay=str(tmp_path / "go")))
    wait_for(root / "waits")
    # Of a run that has not stopped.
    other.start(Job(str(root), steps=STEPS, ckpt=checkpoint(root, 30)))
    assert other.ended() == 0, other.said()
    (tmp_path / "go").touch()
    assert one.ended() == 0
    first, second = report_in(root), AuditReport.load(root / "audit" / "run-2" / "report.json")
    assert (first.steps, second.steps) == (STEPS, STEPS)
    assert any("belongs to another training" in note for note in second.notes)
    assert any("the record of the first 30 steps is not in" in note for note in second.notes)
    assert steps_in(root / "audit") == list(range(STEPS))


def test_a_resumed_training_that_breaks_off_in_its_set_up_leaves_no_earlier_report(root):
    trainer = trainer_for(root, PrivacyAudit(seed=1), max_steps=4)
    trainer.fit(StepwiseModule())
    trainer.save_checkpoint(root / "last.ckpt")
    trainer = trainer_for(root, PrivacyAudit(), max_steps=8)
    with pytest.raises(ValueError, match="no optimizer today"):
        trainer.fit(Broken(), ckpt_path=root / "last.ckpt", weights_only=True)
    assert not (root / "audit" / "report.json").exists()
    assert main(["check", str(root / "audit")]) == 2


# ------------------------------------------------------------------ several processes, no locks


@pytest.mark.heavy
def test_all_processes_of_a_training_hear_that_the_directory_is_taken(tmp_path):
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


def test_a_directory_whose_owner_was_removed_with_it_is_not_shared(root):
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


# --- A training's page is next to its report; what prevents it is logged and nothing else.


@pytest.fixture
def files(tmp_path):
    """Of a training whose report is written."""
    made = ReportFiles(tmp_path / "digits" / "audit")
    made.acquire()
    made.write(REPORT_NAME, made_report().save, beside=True)
    yield made
    made.release()


@pytest.mark.whole_report
def test_the_page_of_a_training_is_written_and_by_the_command_again(files):
    files.write_page(made_report())
    page = files.directory / PAGE_NAME
    written = page.read_bytes()
    assert b"<title>PASS: digits" in written
    page.unlink()
    assert main(["report", str(files.directory / REPORT_NAME)]) == 0
    assert page.read_bytes() == written
    files.write_page(of_outcome("VIOLATION"))
    assert page.read_bytes() != written


@pytest.mark.whole_report
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a bug")])
def test_a_page_that_cannot_be_written_is_a_line_in_the_log(files, error, monkeypatch, caplog):
    monkeypatch.setattr("lightning_audit.report.page.write_page", failing(error))
    files.write_page(made_report())
    assert "report.html could not be written" in caplog.text
    assert type(error).__name__ in caplog.text
    assert "`lightning-audit report` writes it from the report" in caplog.text
    assert files.unwritten == {}
    assert not (files.directory / PAGE_NAME).exists()


@pytest.mark.whole_report
def test_no_page_is_written_without_its_report_or_before_the_directory_is_taken(tmp_path, files):
    files.write(REPORT_NAME, failing(OSError("disk full")), beside=True)
    files.write_page(made_report())
    assert not (files.directory / PAGE_NAME).exists()
    ReportFiles(tmp_path / "audit").write_page(made_report())
    assert not (tmp_path / "audit").exists()


def test_a_file_in_the_reports_place_is_refused_before_the_training(tmp_path):
    taken, lost = tmp_path / "taken", tmp_path / "lost"
    taken.write_text("mine")
    lost.symlink_to(tmp_path / "nowhere")
    for directory in (taken, taken / "audit", lost, tmp_path / ("long" * 100)):
        message = refusal_of(tmp_path, PrivateModule(), PrivacyAudit(report_dir=directory))
        assert f"cannot write its report to {str(directory)!r}" in message
        assert "report_dir" in message
    assert taken.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "new" / "audit"
    with monkeypatch.context() as patched:
        # Root may write everywhere, so the system's answer is given here.
        denied = PermissionError(errno.EACCES, "Permission denied", str(tmp_path))
        patched.setattr(tempfile, "TemporaryFile", failing(denied))
        with pytest.raises(UnauditableTraining, match="Permission denied"):
            ReportFiles(folder).acquire()
    files = ReportFiles(folder)
    files.acquire()
    assert files.directory == folder  # the refused one does not hold it
    files.release()
