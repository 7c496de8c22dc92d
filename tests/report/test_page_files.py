from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from made_report import made_report
from parsed_page import check_page

from lightning_audit.report.page import (
    Source,
    report_page,
    style_sheet,
    training_of,
    write_page,
    write_pages,
)


def addresses(index: Path) -> list[str]:
    parsed = check_page(index.read_text(encoding="utf-8"))
    return [href for href in parsed.values("href") if not href.startswith("#")]


def test_a_page_is_written_whole_and_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    page = tmp_path / "report.html"
    page.symlink_to(tmp_path / "other")
    report = made_report()
    assert write_page(report, page, "digits") == page
    assert page.read_text(encoding="utf-8") == report_page(report, "digits")
    assert (tmp_path / "other").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "report.html"]


def test_a_style_sheet_next_to_the_page(tmp_path: Path) -> None:
    page = write_page(made_report(), tmp_path / "report.html", beside=True)
    assert (tmp_path / "report.css").read_text() == style_sheet()
    check_page(page.read_text(encoding="utf-8"))


def test_pages_are_next_to_their_reports_and_the_index_links_them(tmp_path: Path) -> None:
    odd = tmp_path / 'a "b" <c> #d'
    odd.mkdir()
    sources = [
        Source("odd", odd, made_report()),
        Source("cut", tmp_path / "cut", None, "not complete"),
    ]
    index = write_pages(sources, tmp_path, "report.html", into=False)
    (address,) = addresses(index)
    assert (tmp_path / unquote(address)).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "not complete" in index.read_text(encoding="utf-8")


def test_pages_in_one_folder_have_names_of_their_own(tmp_path: Path) -> None:
    names = ["runs/a", "runs-a", "RUNS/A", "index", "../../etc/x", "ä" * 300, "."]
    sources = [Source(name, tmp_path / "x", made_report()) for name in names]
    index = write_pages(sources, tmp_path, "report.html", into=True)
    found = addresses(index)
    assert len({name.lower() for name in found}) == len(names)
    assert {path.name for path in tmp_path.iterdir()} == {*found, "index.html"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/x/digits/audit/report.html", "digits"),
        ("/x/half/report.html", "half"),
        ("/r.html", "training"),
    ],
)
def test_a_training_is_named_after_its_folder(path: str, name: str) -> None:
    assert training_of(Path(path)) == name
