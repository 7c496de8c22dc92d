"""`lightning-audit report`: reports as HTML pages, without torch."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lightning_audit.cli.check_command import load, reports_of
from lightning_audit.cli.formats.checked import named
from lightning_audit.cli.output import Refused
from lightning_audit.files.printable import visible
from lightning_audit.files.replacing import reason_of
from lightning_audit.page.page_files import Source, training_of, write_page, write_pages
from lightning_audit.record.report_directory import PAGE_NAME
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Write a report.json as an HTML page (report.html next to it): one file without scripts "
        "that loads nothing. Of a folder, each report gets its page, and index.html lists them. "
        "Exit with 0, or with 2 if a report cannot be read or a page cannot be written."
    )
    parser.add_argument("report", help="a report.json, or a folder of trainings")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="write the page to this file; of a folder, the index and all pages into this folder",
    )
    parser.add_argument(
        "--css",
        choices=("inline", "beside"),
        default="inline",
        help="`beside`: write the style sheet into report.css next to the page, for servers that "
        "forbid inline styles (default: inline)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the pages, and print the path of the page to open."""
    try:
        if os.path.isdir(options.report):
            return _write_all(options)
        page = _write_one(options)
    except OSError as error:
        raise Refused(f"cannot write {error.filename or 'the page'}: {reason_of(error)}") from error
    print(visible(str(page)))
    return EXIT_CODES["PASS"]


def _write_one(options: argparse.Namespace) -> Path:
    report = _read(options.report)
    target = Path(options.output or Path(options.report).with_name(PAGE_NAME))
    if target.is_dir():
        target /= PAGE_NAME
    training = training_of(Path(options.report))
    return write_page(report, target, training, beside=options.css == "beside")


def _read(path: str) -> AuditReport:
    try:
        return load(path)
    except ReportError as error:
        raise Refused(f"{path}: {error}".replace("\n", " ")) from error


def _write_all(options: argparse.Namespace) -> int:
    """Write the pages of a folder; a report that cannot be read is listed in the index."""
    paths, errors = reports_of([options.report])
    if errors:
        raise Refused("\n".join(errors.values()))
    sources = [_source(path, training) for path, training, _ in named(paths)]
    folder = Path(options.output or options.report)
    folder.mkdir(parents=True, exist_ok=True)
    into = options.output is not None
    index = write_pages(sources, folder, PAGE_NAME, into=into, beside=options.css == "beside")
    print(visible(str(index)))
    return EXIT_CODES["INCONCLUSIVE" if any(s.report is None for s in sources) else "PASS"]


def _source(path: str, training: str) -> Source:
    folder = Path(path).parent
    try:
        return Source(training, folder, load(path))
    except ReportError as error:
        text = str(error).replace("\n", " ")
        print(visible(f"lightning-audit: {path}: {text}"), file=sys.stderr)
        return Source(training, folder, None, text)
