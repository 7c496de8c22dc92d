"""A PASS needs an answer to each question, or names why no user can have one."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import plain_loops
import pytest
import torch
from plain_loops import EPOCHS, PROCESS, STEPS, Made, made
from stages import staged
from torch.nn import functional

from lightning_audit import AuditReport, PrivacyViolation, attach
from lightning_audit.replay import examiner

Form = Callable[[Made], None]
QUESTIONS = {"replay.sensitivity", "replay.clipping", "replay.release", "replay.noise", "coupling"}


def audited(directory: Path, form: Form, **given: Any) -> AuditReport:
    training = made()
    try:
        with attach(
            *training.training, report_dir=directory, claimed_epsilon=50.0, seed=1, **given
        ) as audit:
            form(training)
    except PrivacyViolation as error:
        return error.report
    return audit.report


def left_out(report: AuditReport) -> set[str]:
    return {c.name for c in report.checks if c.name in QUESTIONS and c.status == "not_run"}


def trained(prepare: Callable[[torch.Tensor], torch.Tensor]) -> Form:
    """A plain loop that changes its inputs."""

    def form(training: Made) -> None:
        for _ in range(EPOCHS):
            for x, y in training.loader:
                training.optimizer.zero_grad()
                functional.cross_entropy(training.model(prepare(x)), y).backward()
                training.optimizer.step()

    return form


# --- Threads of the process.


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Another thread runs during the training."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name="mine", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def sleeps(ended: threading.Event) -> None:
    """Holds a tensor, and now and then computes."""
    held = torch.zeros(3)
    while not ended.wait(0.2):
        held = held + 1


def watches(ended: threading.Event) -> None:
    """As a poller of metrics, of the standard library alone."""
    while not ended.is_set():
        Path("/proc/self/statm").read_text()
        time.sleep(0.02)


def waits_for_a_lock(ended: threading.Event) -> None:
    lock = threading.Lock()
    lock.acquire()
    while not lock.acquire(timeout=0.1):
        if ended.is_set():
            return


def computes(ended: threading.Event) -> None:
    while not ended.is_set():
        torch.rand(1000).sort()


@pytest.mark.parametrize("work", staged([sleeps], nightly=[watches, waits_for_a_lock]))
def test_a_thread_that_waits_hides_no_fault(tmp_path, work):
    with beside(work):
        report = audited(tmp_path, plain_loops.coupled_form)
    assert report.verdict.fault.startswith("records are not independent")


@pytest.mark.parametrize("work", [sleeps, watches, waits_for_a_lock])
def test_a_thread_that_waits_costs_no_pass(tmp_path, work):
    with beside(work):
        report = audited(tmp_path, plain_loops.mnist_form)
    assert (report.verdict.outcome, left_out(report)) == ("PASS", set())


def test_a_thread_that_computes_all_the_time_is_named_in_the_first_line(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_audit.replay.other_threads._LOOKS", 5)
    with beside(computes):
        report = audited(tmp_path, plain_loops.mnist_form)
    assert (report.verdict.outcome, report.steps) == ("INCONCLUSIVE", STEPS)
    assert "thread 'mine' of this process computes" in report.verdict.summary
    (blocker,) = [item for item in report.verdict.pass_blockers if "'mine'" in item]
    assert set(blocker.partition(": ")[0].split(", ")) == QUESTIONS


OWN = threading.Lock()


def holds(ended: threading.Event) -> None:
    with OWN:
        ended.wait()


def locks(x: torch.Tensor) -> torch.Tensor:
    """Needs a lock; the training itself gets it at once."""
    if os.getpid() != PROCESS:
        with OWN:
            return x
    return x


def test_a_lock_that_stops_the_fork_is_the_reason_and_the_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(examiner, "_FIRST", 0.3)
    monkeypatch.setattr(examiner, "_SLOWER", 0.0)
    with beside(holds):
        report = audited(tmp_path, trained(locks))
    assert (report.verdict.outcome, report.steps) == ("INCONCLUSIVE", STEPS)
    assert "another thread may hold a lock" in report.verdict.summary
    assert left_out(report) == QUESTIONS


# --- The user's own choice.


def test_the_users_choice_passes_and_is_said(tmp_path):
    report = audited(tmp_path / "off", plain_loops.mnist_form, examinations=0)
    assert report.verdict.outcome == "PASS"
    assert "not examined: sensitivity, clipping, release, noise, coupling" in report.verdict.summary


# --- Draws whose number depends on the records.


def noised(x: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[where] += 0.3 * torch.randn(int(where.sum()))
    return x


@pytest.mark.parametrize(
    "prepare",
    staged(
        [lambda x: noised(x - x.mean(0), x > 0.5)],
        nightly=[
            lambda x: noised(x - x.mean(0), x - x.mean(0) > 0.5),
            lambda x: noised(x / (1.0 + x.std(0)), x > 0.5),
        ],
    ),
)
def test_a_mean_of_the_batch_is_found_beside_draws_on_a_mask(tmp_path, prepare):
    report = audited(tmp_path, trained(prepare))
    assert report.verdict.outcome != "PASS"
    assert report.verdict.outcome == "VIOLATION" or "coupling" in left_out(report)


@pytest.mark.parametrize("limit", staged([0.5], nightly=[1.5]))
def test_draws_on_a_mask_of_a_record_alone_are_not_accused(tmp_path, limit):
    report = audited(tmp_path, trained(lambda x: noised(x, x > limit)))
    assert report.verdict.outcome == "PASS"
    assert "coupling" not in left_out(report)
