"""Writes pages: of one report, or of all reports in a folder with an index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lightning_audit.files.replacing import replacing
from lightning_audit.page.report_page import (
    CSS_NAME,
    IndexRow,
    index_page,
    report_page,
    style_sheet,
)
from lightning_audit.results.audit_report import AuditReport

#: Name of the page of a folder of reports.
INDEX_NAME = "index.html"


@dataclass(frozen=True)
class Source:
    """A report of which a page is written.

    Args:
        training: its name.
        folder: where its report is.
        report: the report; None if it cannot be read.
        error: why it cannot be read.
    """

    training: str
    folder: Path
    report: AuditReport | None
    error: str = ""


def write_page(
    report: AuditReport, path: str | os.PathLike[str], training: str = "", *, beside: bool = False
) -> Path:
    """Write the page of a report, so that a reader sees the old file or the new one, never half.

    Args:
        report: the report.
        path: the file.
        training: name of the training; empty for the name of the folder.
        beside: whether to write the style sheet into a file next to it.

    Returns:
        The file.

    Raises:
        OSError: a file cannot be written.
    """
    target = Path(path)
    name = training or training_of(target)
    _write(target, report_page(report, name, css_beside=beside))
    if beside:
        _write(target.with_name(CSS_NAME), style_sheet())
    return target


def write_pages(
    sources: Sequence[Source], folder: Path, name: str, *, into: bool, beside: bool = False
) -> Path:
    """Write a page of each report, and their index.

    Args:
        sources: the reports.
        folder: of the index.
        name: file name of a page next to its report.
        into: whether the pages are written into the index's folder, under the names of their
            trainings; if not, each next to its report.
        beside: whether to write the style sheet into files next to the pages.

    Returns:
        The index.

    Raises:
        OSError: a file cannot be written.
    """
    rows = []
    taken: set[str] = {INDEX_NAME.lower()}
    for source in sources:
        address = ""
        if source.report is not None:
            place = folder / _free(source.training, taken) if into else source.folder / name
            training = training_of(source.folder / name)
            write_page(source.report, place, training, beside=beside)
            address = _address(place, folder)
        rows.append(IndexRow(source.training, address, source.report, source.error))
    index = folder / INDEX_NAME
    _write(index, index_page(rows, css_beside=beside))
    if beside:
        _write(folder / CSS_NAME, style_sheet())
    return index


def training_of(path: Path) -> str:
    """Return the name of the training whose files are in the folder of a path.

    That of the folder, or, for the default folder `audit`, that of the folder that holds it.
    """
    folder = Path(os.path.abspath(path)).parent
    return (folder.parent.name if folder.name == "audit" else folder.name) or "training"


def _free(training: str, taken: set[str]) -> str:
    """Return a file name for a training that no other one has, with plain characters only."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in training)
    stem = plain.strip("-.")[:100] or "training"
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.html" for number in range(1, 10**6))
    name = next(name for name in names if name.lower() not in taken)
    taken.add(name.lower())
    return name


def _address(place: Path, folder: Path) -> str:
    """Return the address of a page relative to the index's folder, with escaped characters."""
    relative = os.path.relpath(place, folder).replace(os.sep, "/")
    return quote(relative.encode("utf-8", "surrogateescape"), safe="/")


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
