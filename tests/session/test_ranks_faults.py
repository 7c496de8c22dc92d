"""The audit fails in one of two processes: both train on, agree, and report it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from both_processes import run_both
from filelock import FileLock

#: The function that fails, and at which of its calls; in each of the processes unless it says so.
SET_UP = ("goes_on:1", "of:1", "take_directory:1", "_group:1", "go_on_in_its_directory:1")
START = ("follow:1", "begin_session:1", "watch:1")
BEFORE_CLIPPING = ("flip:4", "prepare:3", "inject:5", "count_batch:3", "agree:4", "_told:9")
BEHIND_THE_NOISE = ("divisor_at_cut:3", "_read:4", "take_out:4", "amounts:4", "_observe:4")
EPOCH_END = ("compare:1", "gathered:1", "hear:2", "is_due:5", "from_first:4", "shared:5", "meet:1")
END = ("look_behind:1", "_end:1", "end:1", "tell:1", "_unhook:1")
OF_THE_FIRST = ("acquire:1", "_close_epoch:1", "_write:2", "build_report:2")

CASES = [
    *(f"0:{fault}" for fault in OF_THE_FIRST),
    *(
        f"{rank}:{fault}"
        for rank in range(2)
        for fault in (*SET_UP, *START, *BEFORE_CLIPPING, *BEHIND_THE_NOISE, *EPOCH_END, *END)
    ),
]
RANDOM = [f"{seed % 2}:random:{seed}" for seed in range(60)]


def both_trained(factory: pytest.TempPathFactory, worker: str, cases: list[str]) -> Path:
    """Trainings with these faults, once for all workers of the tests."""
    own = factory.getbasetemp()
    name = f"faults-{cases[0].replace(':', '-')}-{len(cases)}"
    folder = (own if worker == "master" else own.parent) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            codes, said = run_both(folder, *cases, script="faults_in_one.py")
            assert codes == [0, 0], said
    return folder


def wrong_in(folder: Path, case: str) -> list[str]:
    """What of a training with a fault in one process is not as it must be."""
    found, failed, own = [], int(case[0]), folder / case.replace(":", "-")
    at_fault = json.loads((own / f"told-{failed}.json").read_text())
    place, notes = at_fault["place"], at_fault["notes"]
    # A view that fails leaves the verdict.
    of_a_view = any(" failed (" in note and place in note for note in notes)
    plain = np.load(folder / "plain" / "weights-0.npy")
    for rank in range(2):
        told = json.loads((own / f"told-{rank}.json").read_text())
        weights = np.load(own / f"weights-{rank}.npy")
        off = np.linalg.norm(weights - plain)
        if not off <= 1e-6 * np.linalg.norm(plain):
            found.append(f"rank {rank}: weights are off by {off:g}")
        found += told["hooks"]
        if not place:
            found.append("no fault was raised")
        where = "" if rank == failed else f", in the process of rank {failed}"
        summary = told["summary"]
        if of_a_view:
            continue
        if told["outcome"] != "INCONCLUSIVE" or not summary.startswith("the audit failed: "):
            found.append(f"rank {rank}: {told['outcome']}: {summary}")
        elif not summary.endswith(f"{place}{where}"):
            found.append(f"rank {rank} names another place than {place}{where}: {summary}")
    return found


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    return both_trained(tmp_path_factory, worker_id, CASES)


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
@pytest.mark.heavy_one_in(6)
def test_a_fault_in_one_process_ends_the_audit_in_both_and_the_training_in_none(
    trained: Path, case: str
) -> None:
    assert wrong_in(trained, case) == []


@pytest.mark.nightly
def test_faults_at_random_calls_in_one_process_end_no_training(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> None:
    folder = both_trained(tmp_path_factory, worker_id, RANDOM)
    wrong = {case: found for case in RANDOM if (found := wrong_in(folder, case))}
    assert wrong == {}
