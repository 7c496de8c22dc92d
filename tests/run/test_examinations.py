"""A run examines steps by replay: what it finds, what a pass says, and what it leaves as it was."""

import contextvars
import functools
import os
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import cpu_count, get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from stages import staged
from torch import nn
from torch.nn import functional
from trained import check, on_digits, weights
from training_support import PrivateModule, digits, mlp, status, trainer_for
from two_nets import TwoNets

from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.canaries import Mislabeled
from lightning_audit.replay import examiner
from lightning_audit.replay.examiner import NEVER
from lightning_audit.run.examinations import Examinations
from lightning_audit.run.facts import RunCourse
from lightning_audit.session.planner import Ranks
from lightning_audit.testing.faulty import FirstRowNotClipped

#: Counts its calls, and tells how many there were; made in an empty folder.
Count = Callable[[], float]


COUNTED = contextvars.ContextVar("COUNTED", default=0)


TOTAL = 0


def _context(_: Path) -> Count:
    COUNTED.set(0)

    def count() -> float:
        COUNTED.set(COUNTED.get() + 1)
        return COUNTED.get()

    return count


def _global(_: Path) -> Count:
    global TOTAL
    TOTAL = 0

    def count() -> float:
        global TOTAL
        TOTAL += 1
        return TOTAL

    return count


#: Kinds of state by name.
def _mutable_default(_: Path) -> Count:
    def counts(calls: list[int] = [0]) -> float:  # noqa: B006
        calls[0] += 1
        return calls[0]

    return functools.partial(counts)


KINDS: dict[str, Callable[[Path], Count]] = {
    "mutable default": _mutable_default,
    "ContextVar": _context,
    "global variable": _global,
}


class Counting(PrivateModule):
    """Its inputs grow with the calls that are counted.

    Args:
        count: of `KINDS`.
    """

    def __init__(self, count: Count) -> None:
        super().__init__(mlp(64), dataset=digits())
        self.count = count
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = super().training_step((x * (1.0 + 0.01 * self.count()), y), batch_idx)
        self.losses.append(float(loss.detach()))
        return loss


NAMES = ("replay.sensitivity", "replay.clipping", "replay.release", "coupling")


def private(kind: type[PrivateModule] = PrivateModule, **kwargs: Any) -> PrivateModule:
    return on_digits(kind=kind, **kwargs)


EXAMINED = {"examinations": 1}


def test_what_only_the_examination_sees_leads_the_report_with_two_digits(accused):
    report = accused(on_digits(FirstRowNotClipped), **EXAMINED, steps=2)
    fault = report.verdict.faults[0]
    assert (fault.name, fault.place.step) == ("one_record_moves_too_much", 0)
    assert "replay.clipping" in fault.consequences
    size = check(report, "replay.sensitivity").evidence["size"]
    assert size == float(f"{size:.2g}") > 1.0


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("examinations", "begins"),
    [
        (
            2,
            "examined by replay: records, crafted gradients, the state after a step, draws of the "
            "noise, coupling of records; no check failed",
        ),
        (
            0,
            "by canaries and noise; not examined: sensitivity, clipping, release, noise, coupling "
            "(examinations=0); ",
        ),
    ],
)
@pytest.mark.heavy_one_in(1)
def test_a_pass_begins_with_what_was_examined_and_says_why_not(audited, examinations, begins):
    report = audited(private(), examinations=examinations, steps=300)
    assert report.verdict.outcome == "PASS"
    assert report.verdict.summary.startswith(begins)
    assert examinations or {status(report, name) for name in NAMES} == {"not_run"}


@pytest.mark.parametrize(("steps", "blocked"), [(1, True), (40, False)])
def test_a_question_that_no_step_had_replays_for_blocks_a_pass_until_one_has(
    audited, monkeypatch, steps, blocked
):
    monkeypatch.setattr(examiner, "FIRST_REPLAYS", 60)
    report = audited(private(), examinations="auto", steps=steps)
    waiting = [b for b in report.verdict.pass_blockers if "no replays were left" in b]
    assert [b.partition(":")[0] for b in waiting] == ["replay.noise"] * blocked
    assert status(report, "replay.noise") == ("not_run" if blocked else "ok")


def _burn() -> None:
    while True:
        sum(range(1000))


@pytest.mark.heavy
def test_a_busy_machine_comes_to_the_same_verdict_by_the_same_questions(audited):
    def train(folder: str) -> AuditReport:
        torch.manual_seed(0)
        return audited(private(), examinations="auto", folder=folder, steps=200)

    quiet = train("quiet")
    context = get_context("spawn")
    others = [context.Process(target=_burn, daemon=True) for _ in range(2 * (cpu_count() or 1))]
    for other in others:
        other.start()
    try:
        busy = train("busy")
    finally:
        for other in others:
            other.kill()
    asked = [{n: status(report, n) for n in (*NAMES, "replay.noise")} for report in (quiet, busy)]
    assert set(asked[0].values()) == {"ok"}
    assert asked[0] == asked[1]
    assert quiet.verdict == busy.verdict


def test_nothing_that_was_measured_leaves_a_correct_training(audited):
    report = audited(private(), **EXAMINED, steps=4)
    assert [dict(check(report, name).evidence) for name in NAMES] == [{}] * len(NAMES)


class Logs(PrivateModule):
    """Logs its loss at each step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("fit_loss", loss, on_step=True)
        self.log_dict({"lr": 0.1, "sigma": torch.ones(())})
        return loss


def test_metrics_that_records_decide_are_published_and_settings_are_not(audited):
    assert audited(private(Logs), **EXAMINED, steps=2).published == ("fit_loss",)


class Remembering(PrivateModule):
    """What a training step may change beside the weights, and what it makes of random numbers."""

    def __init__(self, **kwargs: Any) -> None:
        net = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10))
        super().__init__(net, **kwargs)
        self.own = torch.Generator().manual_seed(5)
        self.numpy = np.random.default_rng(5)
        self.total = torch.zeros(())
        self.seen: dict[str, list[int]] = {"sizes": []}
        self.count = 0
        self.average = [p.detach().clone() for p in self.net.parameters()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        self.count += 1
        self.total += x.sum()
        self.seen["sizes"].append(len(x))
        for mean, p in zip(self.average, self.net.parameters(), strict=True):
            mean.lerp_(p.detach(), 0.1)
        x += torch.rand(x.shape, generator=self.own) * self.numpy.random()
        self.log("noise", torch.rand(()), on_step=True)
        return functional.cross_entropy(self.net(x), y)


class Drawn(pl.Callback):
    """The state of the generator at the end of the training, before anything is shown."""

    state: torch.Tensor

    def on_train_end(self, *_: Any) -> None:
        self.state = torch.get_rng_state()


def ended(directory: Path, make: Any, **kwargs: Any) -> tuple[Any, torch.Tensor, AuditReport]:
    """A module that has been trained, the generator's state, and the report."""
    torch.manual_seed(2)
    module, drawn, audit = make(), Drawn(), PrivacyAudit(seed=1, **kwargs)
    torch.manual_seed(3)
    trainer_for(directory, audit, drawn, max_steps=12).fit(module)
    return module, drawn.state, audit.report


@pytest.mark.parametrize(
    "kwargs", staged(quick=[{}], heavy=[{"canaries": [Mislabeled()]}]), ids=["rows", "input"]
)
@pytest.mark.usefixtures("all_numbers")
def test_examinations_leave_the_training_as_it_would_be(tmp_path, kwargs):
    def make() -> Remembering:
        return Remembering(dataset=digits())

    plain, after, report = ended(tmp_path / "plain", make, examinations=0, **kwargs)
    other, now, examined = ended(tmp_path / "examined", make, examinations=3, **kwargs)
    assert torch.equal(after, now)
    assert all(map(torch.equal, plain.state_dict().values(), other.state_dict().values()))
    assert all(map(torch.equal, plain.average, other.average))
    assert plain.seen == other.seen
    assert (plain.count, float(plain.total)) == (other.count, float(other.total))
    assert torch.equal(plain.own.get_state(), other.own.get_state())
    assert plain.numpy.bit_generator.state == other.numpy.bit_generator.state
    assert check(examined, "replay.sensitivity").evidence["examined"] == 3
    assert examined.epsilon_spent == report.epsilon_spent
    own, found = (
        {c.name: c.log_e_value for c in each.checks if c.name != "replay.noise"}
        for each in (report, examined)
    )
    assert found == own


def test_checkpoints_and_loggers_see_each_step_once(tmp_path):
    def files(examinations: int) -> tuple[list[str], str]:
        torch.manual_seed(0)
        folder = tmp_path / str(examinations)
        saver = pl.callbacks.ModelCheckpoint(folder / "kept", every_n_train_steps=1, save_top_k=-1)
        logger = pl.loggers.CSVLogger(folder, name="log")
        callbacks = (PrivacyAudit(seed=1, examinations=examinations), saver)
        each = {"logger": logger, "log_every_n_steps": 1, "enable_checkpointing": True}
        trainer_for(folder, *callbacks, max_steps=5, **each).fit(private(Logs))
        saved = sorted(path.name for path in (folder / "kept").glob("*.ckpt"))
        return saved, (Path(logger.log_dir) / "metrics.csv").read_text()

    assert files(0) == files(3)


@pytest.mark.filterwarnings("ignore:You're resuming")
@pytest.mark.usefixtures("all_numbers")
def test_a_resumed_training_is_examined_anew(tmp_path):
    ckpt = None
    for steps in (3, 6):
        # Wrapped before Lightning loads a checkpoint: the names of the weights are the same.
        module, audit = private(), PrivacyAudit(seed=1, **EXAMINED)
        module.net = GradSampleModule(module.net)
        trainer = trainer_for(tmp_path / str(steps), audit, max_steps=steps)
        trainer.fit(module, ckpt_path=ckpt, weights_only=True if ckpt else None)
        assert check(audit.report, "replay.sensitivity").evidence["examined"] == 1
        ckpt = tmp_path / "last.ckpt"
        trainer.save_checkpoint(ckpt)


@pytest.mark.usefixtures("all_numbers")
def test_a_trial_examines_its_step(tmp_path):
    audit = PrivacyAudit(seed=1, examinations="auto")
    trainer_for(tmp_path, audit, fast_dev_run=True).fit(private())
    assert check(audit.report, "replay.sensitivity").evidence["examined"] == 1


def test_what_the_users_code_raises_in_a_replay_is_recorded(audited):
    process = os.getpid()

    class Once(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if os.getpid() != process:
                raise RuntimeError("out of step")
            return super().training_step(batch, batch_idx)

    report = audited(private(Once), **EXAMINED, steps=3)
    assert report.steps == 3
    message = check(report, "replay.sensitivity").message.replace("tests/run/", "")
    assert f"cannot be replayed (RuntimeError, {Path(__file__).name}:" in message
    assert "out of step" not in message


def test_several_private_optimizers_are_not_examined_by_name(audited):
    report = audited(TwoNets(), **EXAMINED, steps=3)
    told = {check(report, name).message for name in NAMES}
    assert told == {"several private optimizers step together"}


def test_several_processes_are_not_examined_by_name():
    course = RunCourse()
    optimizers: Any = SimpleNamespace(sessions=[])
    config = PrivacyAudit(seed=1, **EXAMINED).config
    assert Examinations(config, optimizers, Ranks(0, 2), course).schedule.due == NEVER
    assert {found.message for found in course.examined.results(0.05)} == {
        "several processes train, and a step is replayed in one only"
    }


def test_a_claim_about_replaced_records_is_asked_of_replaced_records(audited):
    claim = PrivacyClaim(adjacency="replace_one")
    report = audited(private(), claim=claim, on_violation="warn", steps=2, **EXAMINED)
    assert status(report, "replay.sensitivity") == "ok"


#: Kinds that are the same in each replay; with the others the step gives other bits each time.
STEADY = {"global variable", "ContextVar"}


def left_by(folder: Path, kind: str, examinations: int) -> tuple[list[Any], Any]:
    """Everything that a training leaves, and its report."""
    folder.mkdir()
    pl.seed_everything(0, verbose=False)
    module = Counting(KINDS[kind](folder))
    audit = PrivacyAudit(seed=1, examinations=examinations, on_violation="warn")
    trainer_for(folder, audit, max_steps=8).fit(module)
    left = [module.losses, module.count(), torch.get_rng_state().tolist(), random.getstate()]
    left += [np.random.get_state()[1].tolist(), weights(module).tolist()]
    return left, audit.report


def reasons(report: Any) -> set[str]:
    return {c.message for c in report.checks if c.name.startswith("replay") and c.message}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_in(2)
@pytest.mark.heavy_one_in(2)
def test_a_training_ends_as_it_would_without_examinations(tmp_path, kind):
    without, _ = left_by(tmp_path / "without", kind, 0)
    examined, report = left_by(tmp_path / "with", kind, 2)
    assert examined == without
    assert report.verdict.outcome != "VIOLATION"
    replays = [check for check in report.checks if check.name.startswith("replay")]
    assert {check.status == "not_run" for check in replays} == {kind not in STEADY}


def test_where_no_fork_can_train_it_is_said_that_state_may_have_moved(tmp_path, monkeypatch):
    monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    _, report = left_by(tmp_path / "with", "mutable default", 3)
    assert all("gives other bits" in text for text in reasons(report))
    assert sum("state that a replay cannot restore" in note for note in report.notes) == 1


@pytest.mark.parametrize("kind", ["global variable", "ContextVar"])
def test_a_correct_training_is_examined_without_a_fork_too(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    without, _ = left_by(tmp_path / "without", kind, 0)
    examined, report = left_by(tmp_path / "with", kind, 2)
    assert examined == without
    assert {c.status for c in report.checks if c.name.startswith("replay")} == {"ok"}
    assert report.examination_cost["first"] > 0.0


NOISE: list[bytes] = []


class Recorded(DPOptimizer):
    """Keeps its noise."""

    def add_noise(self) -> None:
        super().add_noise()
        NOISE.append((self.params[0].grad - self.params[0].summed_grad).numpy().tobytes())


def in_thread(folder: Path, **kwargs: Any) -> Any:
    audit = PrivacyAudit(seed=1, on_violation="warn", **{"examinations": 3, **kwargs})
    trainer_for(folder, audit, max_steps=30).fit(private())
    return audit.report


def together(*trainings: Callable[[], Any]) -> list[Any]:
    """What trainings in a thread each return."""
    with ThreadPoolExecutor(len(trainings)) as threads:
        return [each.result() for each in [threads.submit(train) for train in trainings]]


def messages(report: Any) -> set[str]:
    return {c.message for c in report.checks if c.name.startswith("replay")}


def test_a_plain_training_beside_an_audited_one_never_uses_noise_twice(tmp_path):
    NOISE.clear()

    def plain() -> None:
        trainer_for(tmp_path / "plain", max_steps=100).fit(on_digits(Recorded))

    report, _ = together(lambda: in_thread(tmp_path / "audited"), plain)
    assert len(NOISE) == len(set(NOISE)) == 100
    assert report.verdict.outcome != "VIOLATION"
    # At a moment at which the other one waits, a step is replayed in a fork.
    assert report.verdict.outcome == "PASS" or report.verdict.pass_blockers


def test_two_audited_trainings_do_not_accuse_each_other(tmp_path):
    reports = together(*(lambda k=k: in_thread(tmp_path / str(k)) for k in range(2)))
    assert [report.verdict.outcome == "VIOLATION" for report in reports] == [False, False]


def test_an_examination_waits_for_another_one(tmp_path):
    with examiner._ONE_AT_A_TIME:
        report = in_thread(tmp_path)
    why = "another examination is under way in this process; train more steps"
    assert messages(report) == {why}
    assert any(why in blocker for blocker in report.verdict.pass_blockers)


def test_where_another_thread_draws_no_generator_is_put_back_and_nothing_more_is_asked(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(examiner, "training_thread", lambda **_: "")
    monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    ended = threading.Event()

    def draw() -> None:
        while not ended.wait(0.0001):
            torch.rand(1)

    thread, interval = threading.Thread(target=draw), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # so that it draws in each replay
    thread.start()
    try:
        report = in_thread(tmp_path)
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()
    assert all("another thread drew from the global generators" in m for m in messages(report))
    assert sum("they were not restored" in note for note in report.notes) == 1
    assert report.verdict.outcome != "VIOLATION"
