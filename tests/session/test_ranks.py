"""Two processes train one model: the audit of each sees the sum over both, and they agree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from both_processes import run_both
from filelock import FileLock
from training_matrix import PROCESSES

from lightning_audit import AuditReport
from lightning_audit.record.store import INJECTED, read_observations
from lightning_audit.session.planner import Ranks

pytestmark = pytest.mark.heavy


def both_trained(factory: pytest.TempPathFactory, worker: str, *scenarios: str) -> Path:
    """Trainings, one after the other in two processes, once for all workers of the tests."""
    own = factory.getbasetemp()
    folder = (own if worker == "master" else own.parent) / f"trained-{scenarios[0]}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            codes, said = run_both(folder, *scenarios)
            (folder / "ended.json").write_text(json.dumps([codes, said]))
    codes, said = json.loads((folder / "ended.json").read_text())
    raises = "half_noise" in scenarios  # the last one
    assert codes == [int(raises)] * 2, said
    for text in said:
        assert not raises or "PrivacyViolation: VIOLATION (mechanism)" in text, text
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    # The last one raises.
    scenarios = ("healthy", "clipping", "resumed", "mixed", "not_finite", "naive", "repeated")
    return both_trained(tmp_path_factory, worker_id, *scenarios, "half_noise")


def reports(folder: Path) -> list[AuditReport]:
    """The report of each process."""
    told = [AuditReport.load(folder / f"report-{rank}.json") for rank in range(2)]
    assert told[0] == AuditReport.load(folder / "audit" / "report.json")
    return told


ways = pytest.mark.parametrize("name", PROCESSES)


def entries_of_both(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    _, written = read_observations(folder / "audit" / "observations.bin")
    return written, np.load(folder / "entries-1.npy")


@ways
def test_both_processes_read_the_claimed_signal_and_noise(trained: Path, name: str) -> None:
    first, second = entries_of_both(trained / name)
    assert first.tobytes() == second.tobytes()
    assert len(first) >= 200
    # Later one step in twenty has none, in both processes.
    assert set(first["canaries"][:200]) == {INJECTED}
    first = first[first["canaries"] == INJECTED]
    assert set(first["scale"]) == {32.0}
    coins, readings = first["coins"].astype(bool), first["readings"]
    # Each process adds the canaries of every second step.
    for turn in (first["step"] % 2 == 0, first["step"] % 2 == 1):
        present, absent = readings[turn][coins[turn]], readings[turn][~coins[turn]]
        error = 4.0 / np.sqrt(min(len(present), len(absent)))
        assert abs(present.mean() - 1.0) < error
        assert abs(absent.mean()) < error
    # The quietest of eight: the noise of one process only would read 0.7, of both 1.4. Under
    # per-layer clipping every canary reads the small tensors' data too.
    residuals = (readings - coins).std(0)
    assert 1.0 - 4.0 / np.sqrt(2.0 * len(first)) < residuals.min() < 1.25
    one, other = reports(trained / name)
    assert one == other
    assert not any(check.status == "violated" for check in one.checks)


def test_a_sound_training_of_two_processes_passes(trained: Path) -> None:
    report = reports(trained / "audited")[0]
    assert report.verdict.outcome == "PASS"
    assert report.settings["seed"] == 0


def test_epsilon_is_that_of_the_whole_batch(trained: Path) -> None:
    report = reports(trained / "audited")[0]
    assert report.history == ((1.0, 1 / 256, 256),)
    assert report.epsilon_spent == pytest.approx(report.claimed_epsilon, rel=0.05)


def test_the_divisor_is_that_of_all_records_not_of_a_process(trained: Path) -> None:
    report = reports(trained / "audited")[0]
    (evidence,) = (c.evidence for c in report.checks if c.name == "expected_batch_size")
    assert (evidence["expected_batch_size"], evidence["of_neighbours"]) == (32, [31])


@ways
def test_the_weights_are_those_of_the_unaudited_training(trained: Path, name: str) -> None:
    audited, unaudited = (
        [np.load(trained / folder / f"weights-{rank}.npy") for rank in range(2)]
        for folder in (name, f"{name}-unaudited")
    )
    np.testing.assert_array_equal(*audited)
    difference = np.linalg.norm(audited[0] - unaudited[0])
    assert 0 <= difference < 1e-6 * np.linalg.norm(unaudited[0])


def test_a_resumed_training_has_each_observation_once(trained: Path) -> None:
    whole, broken = trained / "whole", trained / "broken"
    first = read_observations(whole / "audit" / "observations.bin")[1]
    again = read_observations(broken / "audit" / "observations.bin")[1]
    assert len(first) == 64
    assert first.tobytes() == again.tobytes()
    # The second process went on from the first one's checkpoint.
    assert np.load(broken / "entries-1.npy").tobytes() == again[30:].tobytes()
    for rank in range(2):
        name = f"weights-{rank}.npy"
        np.testing.assert_array_equal(np.load(whole / name), np.load(broken / name))
    names = ("verdict", "history", "bounds", "epochs", "epsilon_spent", "observations")
    one, other = reports(whole)[0], reports(broken)[0]
    assert [getattr(one, n) for n in names] == [getattr(other, n) for n in names]


def test_a_process_that_copies_rows_stays_with_one_that_does_not(trained: Path) -> None:
    first, second = entries_of_both(trained / "mixed")
    assert first.tobytes() == second.tobytes()
    assert (len(first), set(first["canaries"])) == (32, {1})
    checks = {check.name: check.status for check in reports(trained / "mixed")[0].checks}
    assert checks["unsynchronised"] == "ok"
    assert "violated" not in checks.values()
    readings = (first["readings"] - first["coins"])[first["step"] % 6 == 3]  # copied, and in
    assert abs(readings.mean()) < 4.0 / np.sqrt(readings.size)


@pytest.mark.parametrize(
    ("name", "finding", "kind", "advice"),
    [
        ("naive", "unsynchronised", "mechanism", "DifferentiallyPrivateDistributedDataParallel"),
        ("repeated", "sampling.repeated", "accounting", "distributed=True"),
    ],
)
def test_processes_that_do_not_share_a_step_are_found(
    trained: Path, name: str, finding: str, kind: str, advice: str
) -> None:
    one, other = reports(trained / name)
    assert one == other
    assert (one.verdict.outcome, one.verdict.kind) == ("VIOLATION", kind)
    assert [c.name for c in one.checks if c.status == "violated"] == [finding]
    assert one.verdict.summary.startswith(f"{finding}:")
    assert advice in one.verdict.advice


def test_records_of_one_process_are_counted_among_those_of_both(trained: Path) -> None:
    one, other = reports(trained / "not_finite")
    assert one == other
    assert one.verdict.fault.startswith("a record that is not finite")
    (evidence,) = (check.evidence for check in one.checks if check.name == "finite")
    assert (evidence["step"], evidence["lost_steps"]) == (2, 2)
    assert 0 < evidence["records"] < evidence["rows"]


def test_half_the_noise_is_found_in_both_processes_and_told_by_one(trained: Path) -> None:
    one, other = reports(trained / "half_noise")
    assert one == other
    assert one.verdict.fault.startswith("noise scale too small")
    found = one.verdict.root.place.step
    assert found < one.steps <= found + 5
    said = [(trained / f"out-{rank}.txt").read_text() for rank in range(2)]
    told = [[line for line in text.splitlines() if line.startswith("  Report  ")] for text in said]
    assert sum("half_noise" in line for line in told[0]) == 1
    assert told[1] == []


def test_the_end_of_one_process_is_the_end_of_both(tmp_path: Path) -> None:
    codes, said = run_both(tmp_path, "one_breaks_off")
    assert 0 not in codes
    assert "RuntimeError: power cut" in said[1]
    report = AuditReport.load(tmp_path / "one_breaks_off" / "audit" / "report.json")
    assert report.steps == 20
    assert "broke off" in report.verdict.pass_blockers[0]


def test_a_report_that_cannot_be_written_is_refused_in_both_processes(tmp_path: Path) -> None:
    codes, said = run_both(tmp_path, "no_room")
    assert codes == [1, 1], said
    assert "cannot write its report" in said[0]
    assert "MisconfigurationException: PrivacyAudit cannot write its report to" in said[1]


def test_each_step_is_one_processs_turn_and_all_have_its_coins() -> None:
    processes = [Ranks(rank, 3) for rank in range(3)]
    for step in range(7):
        assert [p.adds(step) for p in processes].count(True) == 1
        draws = [p.coins(5, step).integers(0, 2, 64).tolist() for p in processes]
        assert draws[0] == draws[1] == draws[2]
    assert draws[0] != processes[0].coins(5, 5).integers(0, 2, 64).tolist()
    assert Ranks(rank=0, count=1).adds(3)
