"""`lightning-audit selftest`: trains every known fault and sees whether the audit names it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from lightning_audit.results.audit_report import EXIT_CODES
from lightning_audit.selftest.pool import run_all
from lightning_audit.selftest.result import Result
from lightning_audit.selftest.rows import planned
from lightning_audit.selftest.table import as_json, show


class SelftestError(Exception):
    """The selftest cannot run; the message says why and what to do."""


def run(options: argparse.Namespace) -> int:
    """Run the selftest and print what came of it.

    Args:
        options: the parsed arguments.

    Returns:
        0 if every fault was found and named, and nothing healthy was accused; else 1.

    Raises:
        SelftestError: an argument is wrong, or no process can be started.
    """
    try:
        rows = planned(options.fault or (), quick=options.quick)
    except ValueError as error:
        raise SelftestError(str(error)) from error
    started = time.perf_counter()
    try:
        results = run_all(rows, options.jobs, _Progress(len(rows)))
    except OSError as error:
        raise SelftestError(f"no process can be started: {error}") from error
    seconds = time.perf_counter() - started
    code = exit_code(results)
    if options.json:
        print(as_json(results, seconds, code))
    else:
        show(results, seconds)
    return code


def exit_code(results: Sequence[Result]) -> int:
    """0 if no row fails, else 1."""
    failed = any(result.failed for result in results)
    return EXIT_CODES["VIOLATION"] if failed else EXIT_CODES["PASS"]


class _Progress:
    """Counts rows on a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, result: Result) -> None:
        self._done += 1
        if sys.stderr.isatty():
            told = f"{self._done}/{self._total} {result.fault}, {result.configuration}"
            print(f"{told}: {result.status}", file=sys.stderr)
