"""A fork runs a function and changes nothing of its parent."""

import logging
import multiprocessing
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_audit.hooks.boundary import FailedElsewhere
from lightning_audit.replay.fork import CannotSeparate, ForkFailed, Stalled, in_a_fork, may_fork

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
def _others(monkeypatch):
    """Processes that earlier tests left, such as the tracker of multiprocessing."""
    monkeypatch.setattr(sys.modules[__name__], "others", children())


def no_children() -> bool:
    return children() <= others


def test_a_result_comes_back_and_nothing_is_changed():
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


def test_a_large_result_comes_back():
    assert len(in_a_fork(lambda beat: bytes(2**24), 10.0)) == 2**24


def test_operations_that_several_threads_ran_before_run_in_the_fork():
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


def test_a_fork_that_is_interrupted_before_it_begins_does_not_train_on(monkeypatch):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lightning_audit.replay.fork._run", interrupted)
    with pytest.raises(CannotSeparate, match="ended before it began"):
        in_a_fork(lambda beat: 1, 10.0)
    assert no_children()


def _hangs(beat: Beat) -> None:
    beat()
    time.sleep(60.0)


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (_hangs, "no replay ended within 1 s"),
        (lambda beat: int("wrong"), "ValueError in"),
        (lambda beat: sys.exit(3), "SystemExit in"),
        (lambda beat: signal.raise_signal(signal.SIGSEGV), "ended by signal 11"),
        (lambda beat: os.kill(os.getpid(), signal.SIGKILL), "ReachesOut in"),
        (lambda beat: lambda: None, r"Error in replay\.fork\.send"),  # cannot be sent
    ],
)
def test_no_result_says_why_and_leaves_no_process(work, why):
    begun = time.monotonic()
    with pytest.raises((ForkFailed, FailedElsewhere), match=why):
        in_a_fork(work, 1.0)
    assert time.monotonic() - begun < 10.0
    assert no_children()


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Another thread holds a lock."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


OWN = threading.Lock()


def _locks(beat: Beat) -> None:
    with OWN:
        beat()


@pytest.mark.parametrize(
    ("lock", "work", "why"),
    [
        (logging._lock, lambda beat: None, "has held the lock of `logging`"),  # type: ignore[attr-defined]
        (OWN, _locks, "another thread may hold a lock that it needs"),
    ],
)
def test_a_lock_that_another_thread_holds_ends_the_wait_for_the_first_replay(lock, work, why):
    begun = time.monotonic()
    with held_elsewhere(lock), pytest.raises(Stalled, match=why):
        in_a_fork(work, 60.0, 0.5)
    assert time.monotonic() - begun < 10.0
    assert no_children()
    with lock:  # it is free again
        in_a_fork(lambda beat: None, 60.0)


def test_a_replay_that_began_has_longer():
    def work(beat: Beat) -> int:
        beat()
        time.sleep(1.0)
        return 1

    assert in_a_fork(work, 30.0, 0.5) == 1


def test_an_interrupted_training_ends_the_fork():
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


def test_where_the_exit_codes_are_taken_by_the_program_the_result_still_comes():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert in_a_fork(lambda beat: 3, 10.0) == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_no_handler_and_no_buffer_of_the_training_runs_in_the_fork(tmp_path):
    with (tmp_path / "log").open("w") as file:
        file.write("once")
        in_a_fork(lambda beat: None, 10.0)
    assert (tmp_path / "log").read_text() == "once"


def test_a_fork_among_threads_warns_of_nothing(monkeypatch):
    fork = os.fork

    def warns() -> int:
        warnings.warn("fork among threads", DeprecationWarning, stacklevel=2)
        return fork()

    monkeypatch.setattr(os, "fork", warns)
    assert in_a_fork(lambda beat: 1, 10.0) == 1


def test_what_cannot_be_separated_runs_nothing(monkeypatch):
    monkeypatch.setattr("lightning_audit.replay.fork._MOST", 0)
    shared = torch.zeros(10).share_memory_()
    with pytest.raises(CannotSeparate, match="shared memory"):
        in_a_fork(lambda beat: shared.add_(1.0), 10.0)
    assert not shared.any()


def test_only_tensors_on_the_cpu_are_trained_in_a_fork(monkeypatch):
    assert may_fork([torch.zeros(1)])
    assert not may_fork([torch.zeros(1, device="meta")])
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not may_fork([torch.zeros(1)])


# --- A process that keeps to itself reads what it could, and changes nothing outside of itself.


def apart(work: Callable[[], Any]) -> Any:
    return in_a_fork(lambda beat: work(), 10.0)


@pytest.mark.parametrize("mode", ["rb", "r+b", "ab", "a+b"])
def test_a_file_keeps_its_position_and_content(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with path.open(mode, buffering=0) as file:
        file.seek(4)

        def work() -> tuple[int, bytes, int]:
            first = file.tell()
            read = file.read(3) if file.readable() else b""
            if file.writable():
                file.write(b"more")
            return first, read, file.tell()

        first, read, last = apart(work)
        assert (first, read) == (4, b"456" if file.readable() else b"")
        assert last > first
        assert file.tell() == 4
    assert path.read_bytes() == b"0123456789"


def test_shared_memory_is_read_and_stays(tmp_path):
    tensor = torch.arange(4.0).share_memory_()
    number = multiprocessing.Value("i", 7)

    def work() -> tuple[list[float], int]:
        tensor.add_(1.0)
        with number.get_lock():
            number.value += 1
        return tensor.tolist(), number.value

    assert apart(work) == ([1.0, 2.0, 3.0, 4.0], 8)
    assert (tensor.tolist(), number.value) == ([0.0, 1.0, 2.0, 3.0], 7)


def test_pipes_and_sockets_lead_nowhere():
    ends, sockets = os.pipe(), socket.socketpair()

    def work() -> bytes:
        os.write(ends[1], b"out")
        os.write(sockets[0].fileno(), b"out")
        return os.read(ends[0], 3)

    os.write(ends[1], b"in")
    assert apart(work) == b""
    os.set_blocking(ends[0], False)
    assert os.read(ends[0], 10) == b"in"
    sockets[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        sockets[1].recv(3)
    for end in (*ends, *(each.detach() for each in sockets)):
        os.close(end)


@pytest.mark.parametrize("name", ["write", "touch", "remove", "rename", "mkdir", "run", "connect"])
def test_what_reaches_out_is_refused(tmp_path, name):
    (tmp_path / "there").write_text("1")

    def work() -> None:
        match name:
            case "write":
                (tmp_path / "new").write_text("x")
            case "touch":
                (tmp_path / "new").touch()
            case "remove":
                (tmp_path / "there").unlink()
            case "rename":
                (tmp_path / "there").rename(tmp_path / "new")
            case "mkdir":
                (tmp_path / "new").mkdir()
            case "run":
                subprocess.run(["touch", str(tmp_path / "new")], check=True)
            case "connect":
                sqlite3.connect(tmp_path / "new")

    with pytest.raises(FailedElsewhere, match="ReachesOut in"):
        apart(work)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_what_stays_inside_is_allowed(tmp_path):
    (tmp_path / "there").write_text("1")

    def work() -> str:
        sqlite3.connect(":memory:").close()
        with open(os.devnull, "w") as file:
            file.write("x")
        return (tmp_path / "there").read_text()

    assert apart(work) == "1"


def test_what_is_printed_is_dropped(capfd):
    apart(lambda: os.write(1, b"words"))
    assert capfd.readouterr().out == ""
