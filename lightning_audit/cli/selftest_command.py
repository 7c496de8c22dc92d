"""`lightning-audit selftest`: trains every known fault and checks that the audit names it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from lightning_audit.cli.options import positive_int
from lightning_audit.cli.output import Refused
from lightning_audit.results.audit_report import EXIT_CODES

if TYPE_CHECKING:
    from lightning_audit.selftest.result import Result

#: Default number of concurrent trainings; each takes half a gigabyte.
_JOBS = 8
#: Exit code after Ctrl-C, as in shells.
_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Train known faults of DP-SGD and correct trainings under audit, each in its own "
        "process. Exits with 0 if every fault was found and named "
        "and no correct training was accused, with 1 if not, with 2 if it cannot run."
    )
    parser.add_argument(
        "--quick", action="store_true", help="two faults and one correct training only"
    )
    parser.add_argument(
        "--fault",
        action="append",
        metavar="NAME",
        help="this fault only; may be repeated (docs/faults.md lists them)",
    )
    parser.add_argument(
        "--jobs",
        type=positive_int,
        default=min(os.cpu_count() or 1, _JOBS),
        metavar="N",
        help=f"trainings at a time (default: the number of processors, {_JOBS} at most)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the selftest and print its results.

    Returns:
        0 if every fault was found and named, and no correct training was accused; 1 if not; 130
        after Ctrl-C.

    Raises:
        Refused: If an argument is wrong, a package is missing, or no process can be started.
    """
    try:  # loads torch and Lightning
        from lightning_audit.selftest import pool, rows, table
    except ImportError as error:
        raise Refused(f"selftest cannot run: {error}") from error
    try:
        wanted = rows.planned(options.fault or (), quick=options.quick)
    except ValueError as error:
        raise Refused(str(error)) from error
    started = time.perf_counter()
    try:
        results = pool.run_all(wanted, options.jobs, _Progress(len(wanted)))
    except OSError as error:
        raise Refused(f"no process can be started: {error}") from error
    except KeyboardInterrupt:
        print("lightning-audit: interrupted; every training was stopped", file=sys.stderr)
        return _INTERRUPTED
    seconds = time.perf_counter() - started
    code = EXIT_CODES["VIOLATION" if any(result.failed for result in results) else "PASS"]
    if options.json:
        print(table.as_json(results, seconds, code))
    else:
        table.show(results, seconds)
    return code


class _Progress:
    """Prints the number of finished rows on a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, result: Result) -> None:
        self._done += 1
        if sys.stderr.isatty():
            told = f"{self._done}/{self._total} {result.fault}, {result.configuration}"
            print(f"{told}: {result.status}", file=sys.stderr)
