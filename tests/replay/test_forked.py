"""What runs in a fork gives its result, and changes nothing here."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_audit.hooks.boundary import FailedElsewhere
from lightning_audit.replay.examiner import ForkFailed, in_a_fork, may_fork
from lightning_audit.replay.training_state import CannotSeparate

Beat = Callable[[], None]
#: Processes that were there before the test.
others: set[str] = set()


def children() -> set[str]:
    return {
        child
        for task in Path("/proc/self/task").glob("*/children")
        for child in task.read_text().split()
    }


@pytest.fixture(autouse=True)
def _others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that earlier tests left, such as the tracker of multiprocessing."""
    monkeypatch.setattr(sys.modules[__name__], "others", children())


def no_children() -> bool:
    return children() <= others


def test_a_result_comes_back_and_nothing_is_changed() -> None:
    held = torch.zeros(1000)

    def work(beat: Beat) -> torch.Tensor:
        beat()
        torch.manual_seed(1)
        return held.add_(1.0)

    before = torch.get_rng_state()
    assert torch.equal(in_a_fork(work, 10.0), torch.ones(1000))
    assert not held.any()
    assert torch.equal(torch.get_rng_state(), before)
    assert no_children()


def test_a_large_result_comes_back() -> None:
    assert len(in_a_fork(lambda beat: bytes(2**24), 10.0)) == 2**24


def test_operations_that_several_threads_ran_before_run_in_the_fork() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        weights = torch.randn(500, 500, requires_grad=True)

        def work(_: Beat = lambda: None) -> float:
            torch.set_num_threads(4)  # the user's own wish is not granted
            return float((weights @ weights).square().sum().backward() is None)

        work()
        assert in_a_fork(work, 20.0) == 1.0
    finally:
        torch.set_num_threads(threads)


def _hangs(beat: Beat) -> None:
    beat()
    time.sleep(60.0)


def _killed(beat: Beat) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raises(beat: Beat) -> None:
    raise ValueError("wrong")


def _exits(beat: Beat) -> None:
    raise SystemExit(3)


def _crashes(beat: Beat) -> None:
    signal.raise_signal(signal.SIGSEGV)


def _cannot_be_sent(beat: Beat) -> Any:
    return lambda: None


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (_hangs, "no replay ended within 1 s"),
        (_raises, "ValueError in"),
        (_exits, "SystemExit in"),
        (_crashes, "ended by signal 11"),
        (_killed, "ReachesOut in"),
        (_cannot_be_sent, r"Error in replay\.examiner\.send"),
    ],
)
def test_what_gives_no_result_says_why_and_leaves_no_process(
    work: Callable[[Beat], Any], why: str
) -> None:
    begun = time.monotonic()
    with pytest.raises((ForkFailed, FailedElsewhere), match=why):
        in_a_fork(work, 1.0)
    assert time.monotonic() - begun < 10.0
    assert no_children()


def test_an_interrupted_training_ends_the_fork() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_a_fork(_hangs, 30.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert no_children()


def test_where_the_exit_codes_are_taken_by_the_program_the_result_still_comes() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert in_a_fork(lambda beat: 3, 10.0) == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_no_handler_and_no_buffer_of_the_training_runs_in_the_fork(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        file.write("once")
        in_a_fork(lambda beat: None, 10.0)
    assert (tmp_path / "log").read_text() == "once"


def test_a_fork_among_threads_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = os.fork

    def warns() -> int:
        warnings.warn("fork among threads", DeprecationWarning, stacklevel=2)
        return fork()

    monkeypatch.setattr(os, "fork", warns)
    assert in_a_fork(lambda beat: 1, 10.0) == 1


def test_what_cannot_be_separated_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_audit.replay.training_state._MOST", 0)
    shared = torch.zeros(10).share_memory_()
    with pytest.raises(CannotSeparate, match="shared memory"):
        in_a_fork(lambda beat: shared.add_(1.0), 10.0)
    assert not shared.any()


def test_only_tensors_on_the_cpu_are_trained_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_fork([torch.zeros(1)])
    assert not may_fork([torch.zeros(1, device="meta")])
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not may_fork([torch.zeros(1)])
