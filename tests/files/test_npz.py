from __future__ import annotations

import zipfile
from pathlib import Path

import mutated_files as files
import numpy as np
from command_worker import Command

from lightning_audit.record.scores import CanaryScores


def bomb(path: Path, values: int) -> None:
    """An archive of few bytes whose one array has so many values."""
    header = files.with_header(files.npy(np.zeros(0, np.uint8)), shape=(values,))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("scores_in.npy", "w") as member:
            member.write(header)
            for _ in range(values // 10**6):
                member.write(bytes(10**6))
        archive.writestr("scores_out.npy", files.npy(np.ones(3)))


def test_an_array_beyond_the_limit_is_refused_before_it_is_read(
    command: Command, tmp_path: Path
) -> None:
    bomb(tmp_path / "s.npz", 150_000_000)
    assert (tmp_path / "s.npz").stat().st_size < 200_000
    told = command("bound", tmp_path / "s.npz", "--method=eps_cp", "--delta=1e-5")
    assert told["code"] == 2
    assert "scores_in has shape (150000000,), and all arrays that are read may have" in told["err"]
    assert "max_values=100000000 numbers; raise max_values (--max-values)" in told["err"]
    assert told["gigabytes"] < 0.5


def test_arrays_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    members = {name: files.npy(np.arange(3.0)) for name in ("scores_in", "scores_out")}
    pickled = files.npy(np.array([object()]))
    (tmp_path / "s.npz").write_bytes(
        files.archive({**members, "notes": pickled, "more": b"no array"})
    )
    assert len(CanaryScores.from_npz(tmp_path / "s.npz").in_scores) == 3


def test_a_size_that_the_archive_cannot_hold_takes_no_memory(
    command: Command, tmp_path: Path
) -> None:
    """Shape and declared size agree: 90 million floats in a member of a kilobyte."""
    plain = files.npy(np.arange(100.0))
    data = files.with_header(plain, shape=(90_000_000,))
    whole = bytearray(files.archive({"scores_in": data, "scores_out": plain}, zipfile.ZIP_STORED))
    needed = len(data) - 800 + 8 * 90_000_000
    at = whole.index(b"PK\x01\x02")
    for size in (20, 24):  # compressed and plain, in the list of members
        whole[at + size : at + size + 4] = needed.to_bytes(4, "little")
    (tmp_path / "s.npz").write_bytes(whole)
    told = command("bound", tmp_path / "s.npz", "--method=eps_cp", "--delta=1e-5")
    assert told["code"] == 2
    assert f"scores_in needs {needed} bytes by its dtype and shape" in told["err"]
    assert told["gigabytes"] < 0.5


def test_a_list_of_members_that_is_long_is_refused(command: Command, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        for i in range(25_000):
            archive.writestr(f"{i}.npy", b"")
    told = command("bound", tmp_path / "s.npz", "--method=eps_cp", "--delta=1e-5")
    assert told["code"] == 2
    assert "its list of members takes" in told["err"]
