"""`lightning-audit card`: the privacy card of a training, without torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from lightning_audit.cli.check_command import load
from lightning_audit.cli.output import Refused
from lightning_audit.files.replacing import reason_of, replacing
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError

_FORMATS = (".md", ".html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument(
        "--facts", metavar="FILE", help="YAML with what the owner states; see docs/privacy-card.md"
    )
    parser.add_argument(
        "--name", help="name of the training (default: that of the report's folder)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the card."""
    target = None if options.output is None else Path(options.output)
    if target is not None and target.suffix not in _FORMATS:
        raise Refused(f"--output {options.output!r} must end in {' or '.join(_FORMATS)}")
    path = options.report
    path = os.path.join(path, REPORT_NAME) if os.path.isdir(path) else path
    try:
        report = load(path)
    except ReportError as error:
        raise Refused(f"{path}: {error}".replace("\n", " ")) from error
    text = _writer(target)(report, _facts(options.facts), options.name or _name(path))
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


def _writer(target: Path | None) -> Callable[[AuditReport, Mapping[str, str], str], str]:
    if target is not None and target.suffix == ".html":
        from lightning_audit.card.card_page import as_page

        return as_page
    from lightning_audit.card.card_markdown import as_markdown

    return as_markdown


def _facts(path: str | None) -> dict[str, str]:
    from lightning_audit.card.card_facts import BadFacts, read_facts

    try:
        return {} if path is None else read_facts(path)
    except BadFacts as error:
        raise Refused(error) from error


def _name(path: str) -> str:
    from lightning_audit.page.page_files import training_of

    return training_of(Path(path))
