from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightning_audit.record.report_directory import (
    REPORT_NAME,
    all_beside,
    put_back,
    set_aside,
    trainings_in,
)


def training(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names or (REPORT_NAME,):
        (directory / name).write_text(str(directory))
    return directory


def found(folder: Path) -> set[str]:
    return {os.path.relpath(path, folder) for path in trainings_in(folder)}


def test_every_training_in_a_folder_is_found_but_for_what_was_set_aside(tmp_path: Path) -> None:
    training(tmp_path)
    training(tmp_path / "run-2")
    training(tmp_path / "run-2" / "previous-1")
    training(tmp_path / "previous-12")
    training(tmp_path / "lightning_logs" / "version_0" / "deep", "observations.bin")
    training(tmp_path / "second", "observations-2.bin")
    training(tmp_path / "not one", "other.json", "observations.npz")
    training(tmp_path / "previous-x")
    assert found(tmp_path) == {
        ".",
        "run-2",
        "lightning_logs/version_0/deep",
        "second",
        "previous-x",
    }
    assert found(tmp_path / "previous-12") == {"."}  # asked for by its name


def test_links_are_looked_into_and_lead_nowhere_else(tmp_path: Path) -> None:
    outside = training(tmp_path / "outside")
    training(outside / "below")
    folder = training(tmp_path / "folder")
    (folder / "linked").symlink_to(outside)
    (folder / "round").symlink_to(folder)
    (folder / "itself").symlink_to("itself")
    (folder / "nowhere").symlink_to("nothing")
    assert found(folder) == {".", "linked", "round"}


def test_directories_beside_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("run-10", "run-2", "run-x", "other"):
        (tmp_path / name).mkdir()
    assert [p.name for p in all_beside(tmp_path)] == [tmp_path.name, "run-2", "run-10"]


def test_what_was_set_aside_can_be_put_back(tmp_path: Path) -> None:
    training(tmp_path, REPORT_NAME, "observations.bin", "mine.txt")
    folder = set_aside(tmp_path, but_the_record=True)
    assert folder == tmp_path / "previous-1"
    put_back(folder)
    assert {p.name for p in tmp_path.iterdir()} == {REPORT_NAME, "observations.bin", "mine.txt"}


@pytest.mark.parametrize("name", [REPORT_NAME, "observations.bin"])
def test_a_link_that_leads_nowhere_is_set_aside_itself(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "nothing")
    (tmp_path / "previous-1").symlink_to(tmp_path / "nothing")
    assert set_aside(tmp_path) == tmp_path / "previous-2"
    assert (tmp_path / "previous-2" / name).is_symlink()
    assert not (tmp_path / "nothing").exists()


def test_a_record_joins_no_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "previous-1").symlink_to(tmp_path / "elsewhere")
    training(tmp_path, "observations.bin")
    assert set_aside(tmp_path) == tmp_path / "previous-2"
    assert not list((tmp_path / "elsewhere").iterdir())
