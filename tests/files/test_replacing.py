from __future__ import annotations

from pathlib import Path

import pytest

from lightning_audit.files import remove_partials, replacing


def test_a_file_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def broken_off() -> None:
        with replacing(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert target.read_text() == "old"
    with replacing(target) as file:
        file.write(b"new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "one"):
        (tmp_path / "other").touch()
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_only_what_was_left_half_written_is_removed(tmp_path: Path) -> None:
    kept = [".report.json.partial", "x.0123456789abcdef.partial", ".a.0123456789abcdeg.partial"]
    for name in [*kept, ".report.json.0123456789abcdef.partial"]:
        (tmp_path / name).touch()
    remove_partials(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)
