"""`lightning-audit show`: every check and all numbers of a report, without torch."""

from __future__ import annotations

import argparse

from lightning_audit.cli.check_command import load, print_unreadable, reports_of
from lightning_audit.report.console import print_report
from lightning_audit.results.audit_report import EXIT_CODES, ReportError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Show the verdict, every check and all numbers of reports. Exit with 0, or with 2 if a "
        "report cannot be read; `lightning-audit check` is the gate."
    )
    parser.add_argument("report", nargs="+", help="a report.json, or a folder of trainings")


def run(options: argparse.Namespace) -> int:
    """Print each report in full; the exit code says whether all could be read."""
    paths, errors = reports_of(options.report)
    unreadable = list(errors.values())
    for path in paths:
        try:
            print_report(load(path), path)
        except ReportError as error:
            unreadable.append(str(error))
    for text in unreadable:
        print_unreadable(text)
    return EXIT_CODES["INCONCLUSIVE" if unreadable else "PASS"]
