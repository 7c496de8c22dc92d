"""Directories of reports: one claim at a time, trainings below, and what is set aside."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_audit.record.report_directory import (
    LOCK_NAME,
    MARK_NAME,
    REPORT_NAME,
    all_beside,
    claim,
    lock_of,
    put_back,
    set_aside,
    trainings_in,
)


def test_a_directory_is_one_claims_at_a_time_and_a_claim_that_is_forgotten_is_let_go(tmp_path):
    base = tmp_path / "a" / "b"
    first, second, third = (claim(base) for _ in range(3))
    places = [lock.directory for lock in (first, second, third)]
    assert places == [base, base / "run-2", base / "run-3"]
    assert all(lock.holds and lock.by_lock for lock in (first, second, third))
    second.release()
    assert not second.holds
    assert claim(base).directory == base / "run-2"
    first.release()
    first.release()
    claim(base)
    last = claim(base)
    assert last.directory == base
    assert lock_of(base) is None


def test_an_interrupt_leaves_no_directory_locked(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lightning_audit.record.report_directory.DirectoryLock", interrupt)
        with pytest.raises(KeyboardInterrupt):
            claim(tmp_path)
    lock = claim(tmp_path)
    assert lock.directory == tmp_path
    lock._end.detach()
    lock._end = interrupt
    with pytest.raises(KeyboardInterrupt):
        lock.release()
    assert claim(tmp_path).directory == tmp_path


def test_a_forked_process_neither_holds_the_claim_nor_lets_it_go(tmp_path):
    lock = claim(tmp_path)
    read, write = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        lock.release()
        os.write(tell, b"x")
        os.read(read, 1)  # until the parent has looked
        os._exit(0)
    os.close(read)
    os.read(told, 1)  # until the child has let go
    held = lock_of(tmp_path) is None
    lock.release()
    freed = lock_of(tmp_path)
    os.close(write)
    os.waitpid(child, 0)
    assert held
    assert freed is not None


def test_who_made_a_directory_anew_has_it(tmp_path):
    lock = claim(tmp_path / "audit")
    (tmp_path / "audit").rename(tmp_path / "moved")
    assert not lock.holds
    other = claim(tmp_path / "audit")
    assert other.directory == tmp_path / "audit"
    assert other.holds
    assert not lock.holds


def test_a_claim_whose_directory_is_gone_leaves_nothing_open(tmp_path):
    lock = claim(tmp_path / "audit")
    before = len(os.listdir("/dev/fd"))
    shutil.rmtree(tmp_path / "audit")
    lock.release()
    assert len(os.listdir("/dev/fd")) == before - 1


def test_a_file_or_a_link_beside_is_passed_over(tmp_path):
    first = claim(tmp_path)
    (tmp_path / "run-2").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run-3").symlink_to(tmp_path / "elsewhere")
    assert claim(tmp_path).directory == tmp_path / "run-4"
    assert first.directory == tmp_path
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_link_in_the_locks_place_is_not_followed(tmp_path):
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / LOCK_NAME).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"\.lock"):
        claim(tmp_path / "audit")
    assert not (tmp_path / "target").exists()


@pytest.fixture(params=[errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def _no_locks(request, monkeypatch):
    """A file system as Lustre is without its option: stood in for, since none can be had here."""

    def flock(*_: Any) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("_no_locks")
def test_without_locks_a_directory_is_held_by_a_file_that_is_made_exclusively(tmp_path):
    first, second = claim(tmp_path), claim(tmp_path)
    assert [lock.directory for lock in (first, second)] == [tmp_path, tmp_path / "run-2"]
    assert not first.by_lock
    assert first.holds
    assert (tmp_path / MARK_NAME).exists()
    first.release()
    assert not (tmp_path / MARK_NAME).exists()
    assert not first.holds
    again = claim(tmp_path)
    assert again.directory == tmp_path
    (tmp_path / MARK_NAME).unlink()
    (tmp_path / MARK_NAME).touch()  # another training's, after the directory was cleared
    assert not again.holds
    again.release()
    assert (tmp_path / MARK_NAME).exists()


@pytest.mark.usefixtures("_no_locks")
def test_a_mark_that_a_killed_training_left_keeps_its_directory(tmp_path):
    (tmp_path / MARK_NAME).touch()
    assert claim(tmp_path).directory == tmp_path / "run-2"


CLAIMS = """
import sys, time
from pathlib import Path
from lightning_audit.record.report_directory import claim
sys.stdin.readline()
lock = claim(Path(sys.argv[1]))
print(lock.directory, flush=True)
sys.stdin.readline()
"""


def test_processes_that_claim_at_once_have_a_directory_each(tmp_path):
    base = tmp_path / "audit"
    command, pipe = [sys.executable, "-c", CLAIMS, str(base)], subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for process in started:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    places = [process.stdout.readline().strip() for process in started if process.stdout]
    for process in started:
        process.communicate("end\n")
        assert process.returncode == 0
    expected = [base, *(base / f"run-{number}" for number in (2, 3))]
    assert sorted(places) == sorted(map(str, expected))


def training(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names or (REPORT_NAME,):
        (directory / name).write_text(str(directory))
    return directory


def found(folder: Path) -> set[str]:
    return {os.path.relpath(path, folder) for path in trainings_in(folder)}


def test_every_training_in_a_folder_is_found_but_for_what_was_set_aside(tmp_path):
    for folder in ("", "run-2", "run-2/previous-1", "previous-12", "previous-x"):
        training(tmp_path / folder)
    deep = "lightning_logs/version_0/deep"
    training(tmp_path / deep, "observations.bin")
    training(tmp_path / "second", "observations-2.bin")
    training(tmp_path / "not one", "other.json", "observations.npz")
    assert found(tmp_path) == {".", "run-2", deep, "second", "previous-x"}
    assert found(tmp_path / "previous-12") == {"."}  # asked for by its name


def test_links_are_looked_into_and_lead_nowhere_else(tmp_path):
    outside = training(tmp_path / "outside")
    training(outside / "below")
    folder = training(tmp_path / "folder")
    (folder / "linked").symlink_to(outside)
    (folder / "round").symlink_to(folder)
    (folder / "itself").symlink_to("itself")
    (folder / "nowhere").symlink_to("nothing")
    assert found(folder) == {".", "linked", "round"}


def test_directories_beside_come_in_the_order_of_their_numbers(tmp_path):
    for name in ("run-10", "run-2", "run-x", "other"):
        (tmp_path / name).mkdir()
    assert [p.name for p in all_beside(tmp_path)] == [tmp_path.name, "run-2", "run-10"]


def test_what_was_set_aside_can_be_put_back(tmp_path):
    training(tmp_path, REPORT_NAME, "observations.bin", "mine.txt")
    folder = set_aside(tmp_path, but_the_record=True)
    assert folder == tmp_path / "previous-1"
    put_back(folder)
    assert {p.name for p in tmp_path.iterdir()} == {REPORT_NAME, "observations.bin", "mine.txt"}


@pytest.mark.parametrize("name", [REPORT_NAME, "observations.bin"])
def test_a_link_that_leads_nowhere_is_set_aside_itself(tmp_path, name):
    (tmp_path / name).symlink_to(tmp_path / "nothing")
    (tmp_path / "previous-1").symlink_to(tmp_path / "nothing")
    assert set_aside(tmp_path) == tmp_path / "previous-2"
    assert (tmp_path / "previous-2" / name).is_symlink()
    assert not (tmp_path / "nothing").exists()


def test_a_record_joins_no_folder_that_is_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "previous-1").symlink_to(tmp_path / "elsewhere")
    training(tmp_path, "observations.bin")
    assert set_aside(tmp_path) == tmp_path / "previous-2"
    assert not list((tmp_path / "elsewhere").iterdir())
