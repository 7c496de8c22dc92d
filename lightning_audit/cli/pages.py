"""`report` and `card`: HTML pages of reports and the privacy card of a training, without torch."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lightning_audit.cli.check import load, reports_of
from lightning_audit.cli.formats import named
from lightning_audit.cli.main import Command, Refused, refused, refusing
from lightning_audit.files import reason_of, replacing, visible
from lightning_audit.record.report_directory import PAGE_NAME, REPORT_NAME
from lightning_audit.report.page import Source, training_of, write_page, write_pages
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError

# --- `lightning-audit report`: reports as HTML pages, without torch.


def add_report_arguments(parser: Command) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Write a report.json as an HTML page (report.html next to it): one file without scripts "
        "that loads nothing. Of a folder, each report gets its page, and index.html lists them. "
        "Exit with 0, or with 2 if a report cannot be read or a page cannot be written."
    )
    parser.add_argument(
        "report", nargs="+", help="a report.json, or a folder of trainings; several are allowed"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="write the page to this file; of a folder or of several reports, the index and all "
        "pages into this folder",
    )
    parser.option(
        "[--css]",
        "`beside`: write the style sheet into report.css next to the page, for servers that "
        "forbid inline styles",
        ("inline", "beside"),
        "inline",
    )


def run_report(options: argparse.Namespace) -> int:
    """Write the pages, and print the path of the page to open."""
    into, names = options.output, options.report
    together = [names] if into is not None else [[name] for name in names]
    return max(_write(each, into, beside=options.css == "beside") for each in together)


def _write(names: list[str], into: str | None, *, beside: bool) -> int:
    """Write the page of one report, or an index and the pages of several or of a folder."""
    try:
        if len(names) > 1 or os.path.isdir(names[0]):
            return _write_all(names, into, beside=beside)
        return _write_one(names[0], into, beside=beside)
    except OSError as error:
        return refused(f"cannot write {error.filename or 'the page'}: {reason_of(error)}")
    except Refused as error:
        return refused(error)


def _write_one(name: str, into: str | None, *, beside: bool) -> int:
    path, report = Path(name), _read(name)
    target = Path(into or path.with_name(PAGE_NAME))
    if target.is_dir():
        target /= PAGE_NAME
    print(visible(str(write_page(report, target, training_of(path), beside=beside))))
    return EXIT_CODES["PASS"]


def _read(path: str) -> AuditReport:
    try:
        return load(path)
    except ReportError as error:
        raise Refused(f"{path}: {error}".replace("\n", " ")) from error


def _write_all(names: list[str], into: str | None, *, beside: bool) -> int:
    """Write the pages of a folder; a report that cannot be read is listed in the index."""
    paths, errors = reports_of(names)
    if errors:
        raise Refused("\n".join(errors.values()))
    sources = [_source(path, training) for path, training, _ in named(paths)]
    folder = Path(into or names[0])
    folder.mkdir(parents=True, exist_ok=True)
    index = write_pages(sources, folder, PAGE_NAME, into=into is not None, beside=beside)
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


# --- `lightning-audit card`: the privacy card of a training, without torch.

_FORMATS = (".md", ".html")


def add_card_arguments(parser: Command) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Write the privacy card of a training: what NIST SP 800-226, ISO/IEC 27559 and the OpenDP "
        "deployments registry ask, from its report and from the facts that only its owner knows. "
        "Exit with 0, or with 2 if the report or the facts cannot be used."
    )
    parser.add_argument("report", help="a report.json, or the directory of one")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the card to this file: .md, with the YAML of a model card, or .html "
        "(default: Markdown to the standard output)",
    )
    parser.option("[--facts FILE]", "YAML with what the owner states; see docs/privacy-card.md")
    parser.option("[--name]", "name of the training (default: that of the report's folder)")


def run_card(options: argparse.Namespace) -> int:
    """Write the card."""
    from lightning_audit import card  # only now: it loads YAML

    target = None if options.output is None else Path(options.output)
    if target is not None and target.suffix not in _FORMATS:
        raise Refused(f"--output {options.output!r} must end in {' or '.join(_FORMATS)}")
    path = options.report
    path = os.path.join(path, REPORT_NAME) if os.path.isdir(path) else path
    report = _read(path)
    with refusing(card.BadFacts):
        facts = {} if options.facts is None else card.read_facts(options.facts)
    write = card.as_page if target is not None and target.suffix == ".html" else card.as_markdown
    text = write(report, facts, options.name or training_of(Path(path)))
    if target is None:
        print(text, end="")
        return EXIT_CODES["PASS"]
    try:
        with replacing(target) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise Refused(f"cannot write {options.output!r}: {reason_of(error)}") from error
    print(target)
    return EXIT_CODES["PASS"]
