"""Two processes train one model: the audit of each sees the sum over both, and they agree."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bare_session import BareSession
from both_processes import run_both
from filelock import FileLock
from stages import staged
from training_matrix import PROCESSES

from lightning_audit import AuditReport, PrivacyClaim
from lightning_audit.canaries import Dirac
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.record.store import INJECTED, read_observations
from lightning_audit.session import planner
from lightning_audit.session.planner import Ranks

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


def both_trained(
    factory: pytest.TempPathFactory, worker: str, scenarios: Sequence[str], **how: str
) -> tuple[Path, list[int], list[str]]:
    """Trainings, one after the other in two processes, once for all workers of the tests."""
    own = factory.getbasetemp()
    name = f"trained-{scenarios[0].replace(':', '-')}-{len(scenarios)}"
    folder = (own if worker == "master" else own.parent) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            (folder / "ended.json").write_text(json.dumps(run_both(folder, *scenarios, **how)))
    return folder, *json.loads((folder / "ended.json").read_text())


@pytest.fixture(scope="session")
def trained(tmp_path_factory, worker_id):
    scenarios = ("healthy", "resumed", "mixed", "not_finite", "naive", "repeated")
    folder, codes, said = both_trained(tmp_path_factory, worker_id, (*scenarios, "half_noise"))
    assert codes == [1, 1], said  # the last one raises
    for text in said:
        assert "PrivacyViolation: VIOLATION (mechanism)" in text, text
    return folder


@pytest.fixture
def of_way(request, tmp_path_factory, worker_id, name):
    """The folder of the trainings that clip in this way."""
    if name == "audited":
        return request.getfixturevalue("trained")
    folder, codes, said = both_trained(tmp_path_factory, worker_id, ("clipping",))
    assert codes == [0, 0], said
    return folder


def reports(folder: Path) -> list[AuditReport]:
    """The report of each process."""
    told = [AuditReport.load(folder / f"report-{rank}.json") for rank in range(2)]
    assert told[0] == AuditReport.load(folder / "audit" / "report.json")
    return told


ways = pytest.mark.parametrize(
    "name", staged(["audited"], nightly=[name for name in PROCESSES if name != "audited"])
)


def entries_of_both(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    _, written = read_observations(folder / "audit" / "observations.bin")
    return written, np.load(folder / "entries-1.npy")


@pytest.mark.heavy
@ways
def test_both_processes_read_the_claimed_signal_and_noise(of_way, name):
    first, second = entries_of_both(of_way / name)
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
    one, other = reports(of_way / name)
    assert one == other
    assert not any(check.status == "violated" for check in one.checks)


@pytest.mark.heavy
def test_a_sound_training_passes_with_the_epsilon_and_divisor_of_the_whole(trained):
    report = reports(trained / "audited")[0]
    assert (report.verdict.outcome, report.settings["seed"]) == ("PASS", 0)
    assert report.history == ((1.0, 1 / 256, 256),)
    assert report.epsilon_spent == pytest.approx(report.claimed_epsilon, rel=0.05)
    (evidence,) = (c.evidence for c in report.checks if c.name == "expected_batch_size")
    assert (evidence["expected_batch_size"], evidence["of_neighbours"]) == (32, [31])


@pytest.mark.heavy
@ways
def test_the_weights_are_those_of_the_unaudited_training(of_way, name):
    audited, unaudited = (
        [np.load(of_way / folder / f"weights-{rank}.npy") for rank in range(2)]
        for folder in (name, f"{name}-unaudited")
    )
    np.testing.assert_array_equal(*audited)
    assert 0 <= np.linalg.norm(audited[0] - unaudited[0]) < 1e-6 * np.linalg.norm(unaudited[0])


@pytest.mark.heavy
def test_a_resumed_training_has_each_observation_once(trained):
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


@pytest.mark.heavy
def test_a_process_that_copies_rows_stays_with_one_that_does_not(trained):
    first, second = entries_of_both(trained / "mixed")
    assert first.tobytes() == second.tobytes()
    assert (len(first), set(first["canaries"])) == (32, {1})
    checks = {check.name: check.status for check in reports(trained / "mixed")[0].checks}
    assert checks["unsynchronised"] == "ok"
    assert "violated" not in checks.values()
    readings = (first["readings"] - first["coins"])[first["step"] % 6 == 3]  # copied, and in
    assert abs(readings.mean()) < 4.0 / np.sqrt(readings.size)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "finding", "kind", "advice"),
    [
        ("naive", "unsynchronised", "mechanism", "DifferentiallyPrivateDistributedDataParallel"),
        ("repeated", "sampling.repeated", "accounting", "distributed=True"),
    ],
)
def test_lone_steps_show(trained, name, finding, kind, advice):
    one, other = reports(trained / name)
    assert one == other
    assert (one.verdict.outcome, one.verdict.kind) == ("VIOLATION", kind)
    assert [c.name for c in one.checks if c.status == "violated"] == [finding]
    assert one.verdict.summary.startswith(f"{finding}:")
    assert advice in one.verdict.root.look_at


@pytest.mark.heavy
def test_records_of_one_process_are_counted_among_those_of_both(trained):
    one, other = reports(trained / "not_finite")
    assert one == other
    assert one.verdict.fault.startswith("a record that is not finite")
    (evidence,) = (check.evidence for check in one.checks if check.name == "finite")
    assert (evidence["step"], evidence["lost_steps"]) == (2, 2)
    assert 0 < evidence["records"] < evidence["rows"]


@pytest.mark.heavy
def test_half_the_noise_is_found_in_both_processes_which_print_no_block(trained):
    one, other = reports(trained / "half_noise")
    assert one == other
    assert one.verdict.fault.startswith("noise scale too small")
    found = one.verdict.root.place.step
    assert found < one.steps <= found + 5
    said = [(trained / f"out-{rank}.txt").read_text() for rank in range(2)]
    told = [[line for line in text.splitlines() if line.startswith("  Report  ")] for text in said]
    assert not [line for lines in told for line in lines if "half_noise" in line]


@pytest.mark.heavy
def test_the_end_of_one_process_is_the_end_of_both(tmp_path):
    codes, said = run_both(tmp_path, "one_breaks_off")
    assert 0 not in codes
    assert "RuntimeError: power cut" in said[1]
    report = AuditReport.load(tmp_path / "one_breaks_off" / "audit" / "report.json")
    assert report.steps == 20
    assert "broke off" in report.verdict.pass_blockers[0]


@pytest.mark.heavy
def test_a_report_that_cannot_be_written_is_refused_in_both_processes(tmp_path):
    codes, said = run_both(tmp_path, "no_room")
    assert codes == [1, 1], said
    assert "cannot write its report" in said[0]
    assert "MisconfigurationException: the audit cannot write its report to" in said[1]


def test_each_step_is_one_processs_turn_and_all_have_its_coins():
    processes = [Ranks(rank, 3) for rank in range(3)]
    for step in range(7):
        assert [p.adds(step) for p in processes].count(True) == 1
        draws = [p.coins(5, step).integers(0, 2, 64).tolist() for p in processes]
        assert draws[0] == draws[1] == draws[2]
    assert draws[0] != processes[0].coins(5, 5).integers(0, 2, 64).tolist()
    assert Ranks(rank=0, count=1).adds(3)


# --- The audit fails in one of two processes: both train on, agree, and report it.

#: The function that fails, and at which of its calls; in each of the processes unless it says so.
SET_UP = ("goes_on:1", "of:1", "take_directory:1", "_group:1", "go_on_in_its_directory:1")
START = ("follow:1", "begin_session:1", "watch:1")
BEFORE_CLIPPING = ("plan:4", "lay_out:3", "inject:5", "count_batch:3", "agreed:4", "_messages:9")
BEHIND_THE_NOISE = ("divisor_at_cut:3", "_read:4", "take_out:4", "amounts:4", "_observe:4")
EPOCH_END = ("compare:1", "gathered:1", "hear:2", "_has_news:5", "from_first:4", "shared:5")
EPOCH_END += ("meet:1",)
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


def faults_in_both(factory: pytest.TempPathFactory, worker: str, cases: list[str]) -> Path:
    folder, codes, said = both_trained(factory, worker, cases, script="faults_in_one.py")
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
        off = np.linalg.norm(np.load(own / f"weights-{rank}.npy") - plain)
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
def in_faults(request, tmp_path_factory, worker_id):
    """Trainings of the cases that this run asks for alone: each takes two processes."""
    of_items = (getattr(item, "callspec", None) for item in request.session.items)
    asked = [spec.params.get("case") for spec in of_items if spec is not None]
    cases = [case for case in asked if isinstance(case, str) and case in CASES]
    return faults_in_both(tmp_path_factory, worker_id, cases)


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
@pytest.mark.heavy_one_in(12)
def test_a_fault_in_one_process_ends_the_audit_in_both_and_the_training_in_none(in_faults, case):
    assert wrong_in(in_faults, case) == []


@pytest.mark.nightly
def test_faults_at_random_calls_in_one_process_end_no_training(tmp_path_factory, worker_id):
    folder = faults_in_both(tmp_path_factory, worker_id, RANDOM)
    assert {case: found for case in RANDOM if (found := wrong_in(folder, case))} == {}


# --- When canaries enter a step, and that none stays where no step is taken.

CLAIM = StepClaim(noise_multiplier=1.0, max_grad_norm=3.0, scale=8.0)


def entered(bare: BareSession) -> list[int]:
    """Numbers of the steps with canaries."""
    return np.flatnonzero(bare.column("canaries") == INJECTED).tolist()


@pytest.mark.parametrize("announced", [True, False])
def test_every_nth_step_has_canaries_laid_out_or_copied(announced):
    bare = BareSession(every_n_steps=3)
    bare.train(8, announced=announced)
    assert entered(bare) == [0, 3, 6]


def test_copied_rows_are_thinned_after_the_first_steps(monkeypatch):
    monkeypatch.setattr(planner, "FULL_STEPS", 4)
    monkeypatch.setattr(planner, "THINNED", 3)
    copied, laid_out = BareSession(every_n_steps=None), BareSession(every_n_steps=None)
    copied.train(10, announced=False)
    laid_out.train(10)
    assert entered(copied) == [0, 1, 2, 3, 6, 9]
    assert entered(laid_out) == list(range(10))


def test_later_one_step_in_so_many_has_no_canary(monkeypatch):
    monkeypatch.setattr(planner, "_FROM", 40)
    monkeypatch.setattr(planner, "_WITHOUT", 4)
    bare, again = BareSession(), BareSession()
    for each in (bare, again):
        each.train(200)
    without = sorted(set(range(200)) - set(entered(bare)))
    assert without[0] >= 40
    # 160 steps, a quarter of them: forty, give or take six.
    assert 20 < len(without) < 60
    assert entered(again) == entered(bare)


def test_one_canary_of_a_step_is_shorter_and_none_shorter_than_is_clipped():
    bare = BareSession(canaries=(Dirac(),) * 4)
    norms, firsts = [], set()
    for _ in range(60):
        plan = bare.session.planner.plan(CLAIM)
        lengths = [row.norm() * plan.norm / CLAIM.max_grad_norm for row in plan.rows]
        at = [
            d.parts[0].index[0] for coin, d in zip(plan.coins, plan.directions, strict=True) if coin
        ]
        rows = [row.parts[0].index[0] for row in plan.rows]
        # The rows are the canaries that are in, from any of them on.
        first = at.index(rows[0]) if rows else 0
        assert rows == at[first:] + at[:first]
        assert all(length == 1000.0 for i, length in enumerate(lengths) if i != len(lengths) // 2)
        if lengths:
            norms.append(lengths[len(lengths) // 2])
            firsts.add((len(rows), first))
        bare.train(1)
    assert min(norms) >= 1.5
    # Log-uniform: as many below the geometric mean as above.
    assert 15 < np.sum(np.array(norms) < (1.5 * 1000.0) ** 0.5) < 45
    assert {first for count, first in firsts if count == 3} == {0, 1, 2}


def test_canaries_as_long_as_the_clipping_norm_are_not_shortened():
    rows = BareSession(oversize=1.0).session.planner.plan(CLAIM).rows
    assert {row.norm() for row in rows} <= {1.0}


def test_a_batch_that_is_given_up_leaves_no_row_and_costs_no_step():
    bare = BareSession()
    bare.train(1)
    for put_in in (False, True):
        bare.backward()
        if put_in:
            bare.session.inject()
        bare.session.start_batch()
        for p in bare.net.parameters():
            assert len(p.grad_sample) == 5
            assert not p.grad_sample.any()
        bare.optimizer.zero_grad()
    bare.train(1)
    assert entered(bare) == [0, 1]


def test_another_set_of_trained_parameters_ends_the_canaries_and_is_said_once():
    bare = BareSession()
    bare.train(2)
    frozen: Any = bare.net._module[0].bias
    frozen.requires_grad_(False)
    bare.train(2)
    (sentence,) = bare.session.pass_blockers()
    assert sentence.startswith("the set of trained parameters changed in step 3")
    assert entered(bare) == [0, 1]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (None, StepClaim(0.0, 2.0, 16.0, 4)),
        ({"epsilon": 1.0, "delta": 1e-5}, StepClaim(0.0, 2.0, 16.0, 4)),
        ({"noise_multiplier": 3.0}, StepClaim(3.0, 2.0, 16.0, 4)),
        ({"max_grad_norm": 0.5}, StepClaim(0.0, 0.5, 16.0, 4)),
        # Of one batch: a step adds up several.
        ({"expected_batch_size": 16}, StepClaim(0.0, 2.0, 64.0, 4)),
    ],
)
def test_statements_precede_optimizers(stated, expected):
    claim = None if stated is None else PrivacyClaim(**stated)
    assert BareSession(claim=claim).session.planner.claim(accumulated=4) == expected
