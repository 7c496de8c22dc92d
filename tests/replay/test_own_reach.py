"""A process that keeps to itself reads what it could, and changes nothing outside of itself."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_audit.hooks.boundary import FailedElsewhere
from lightning_audit.replay.examiner import in_a_fork


def apart(work: Callable[[], Any]) -> Any:
    return in_a_fork(lambda beat: work(), 10.0)


@pytest.mark.parametrize("mode", ["rb", "r+b", "ab", "a+b"])
def test_a_file_keeps_its_position_and_content(tmp_path: Path, mode: str) -> None:
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
        assert first == 4
        assert read == (b"456" if file.readable() else b"")
        assert last > first
        assert file.tell() == 4
    assert path.read_bytes() == b"0123456789"


def test_shared_memory_is_read_and_stays(tmp_path: Path) -> None:
    tensor = torch.arange(4.0).share_memory_()
    number = multiprocessing.Value("i", 7)

    def work() -> tuple[list[float], int]:
        tensor.add_(1.0)
        with number.get_lock():
            number.value += 1
        return tensor.tolist(), number.value

    assert apart(work) == ([1.0, 2.0, 3.0, 4.0], 8)
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert number.value == 7


def test_pipes_and_sockets_lead_nowhere() -> None:
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
def test_what_reaches_out_is_refused(tmp_path: Path, name: str) -> None:
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


def test_what_stays_inside_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("1")

    def work() -> str:
        sqlite3.connect(":memory:").close()
        with open(os.devnull, "w") as file:
            file.write("x")
        return (tmp_path / "there").read_text()

    assert apart(work) == "1"


def test_what_is_printed_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    apart(lambda: os.write(1, b"words"))
    assert capfd.readouterr().out == ""
