from dataclasses import replace
from pathlib import Path

import pytest
from faulty_trainings import Dies, row
from places import SUPPORT

from lightning_audit.record.store import read_observations
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.runs import train, train_together

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("short_report")]


@pytest.mark.heavy
def test_processes_that_break_off_are_an_error_with_their_codes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=":")
    fault = replace(row(Dies).fault, processes=2)
    with pytest.raises(RuntimeError, match=r"the processes ended with exit codes \[.*11"):
        train_together(fault, tmp_path / "audit")


FAULT = replace(FAULTS["half_noise"], steps=6)


def record(directory: Path, seed: int) -> bytes:
    train(FAULT, directory / "audit", seed)
    return read_observations(directory / "audit" / "observations.bin")[1].tobytes()


def test_a_run_depends_on_nothing_but_the_fault_and_the_seed(tmp_path):
    first, again, other = (
        record(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first == again != other


def test_a_training_that_resumes_is_saved_half_way_and_ends_after_all_steps(tmp_path):
    report = train(replace(FAULTS["noise_repeated_on_resume"], steps=6), tmp_path / "audit")
    assert report.steps == 6
    assert (tmp_path / "stopped.ckpt").exists()


def test_a_violation_ends_no_training(tmp_path):
    report = train(replace(FAULTS["no_noise"], steps=6), tmp_path / "audit")
    assert (report.verdict.outcome, report.steps) == ("VIOLATION", 6)
