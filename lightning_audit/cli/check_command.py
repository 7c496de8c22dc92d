"""`lightning-audit check`: the gate on reports, without torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable

from lightning_audit.cli.options import positive
from lightning_audit.files.printable import visible
from lightning_audit.record.report_directory import REPORT_NAME, holds_training, trainings_in
from lightning_audit.report.console import print_report
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError
from lightning_audit.verdict.gate import contradiction_of_epsilon, contradictions

#: Contradictions that are shown.
_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Show a report and exit with its verdict: 0 for PASS, 1 for VIOLATION, "
        "2 for INCONCLUSIVE or a report that cannot be read."
    )
    parser.add_argument(
        "report", help="a report.json, or a folder of trainings: the worst verdict counts"
    )
    parser.add_argument(
        "--max-epsilon",
        type=positive,
        metavar="X",
        help="fail also if the proved or the spent epsilon exceeds X",
    )


def run(options: argparse.Namespace) -> int:
    """Show every report that is meant; the exit code is that of the worst verdict or budget."""
    try:
        paths = _reports_of(options.report)
    except ReportError as error:
        return _unreadable(error)
    codes = {path: _check(path, options.max_epsilon) for path in paths}
    worst = _worst(codes.values())
    if len(paths) > 1:
        names = {code: outcome for outcome, code in EXIT_CODES.items()}
        where = next(path for path in paths if codes[path] == worst)
        print(f"{names[worst]} is the worst verdict of {len(paths)} trainings: {where}")
    return worst


def _check(path: str, max_epsilon: float | None) -> int:
    """Show one report, and give the exit code of its verdict and of the budget."""
    try:
        if not os.path.lexists(path) and holds_training(folder := os.path.dirname(path)):
            raise ReportError(
                f"{folder!r} holds the record of a training and no report.json: the training is "
                "still running, was killed, or could not write it; wait for its end, or train "
                "again."
            )
        report = AuditReport.load(path)
        found = contradictions(report)
        if max_epsilon is not None and not found:
            found = list(filter(None, [contradiction_of_epsilon(report)]))
        if found:
            raise ReportError(_refusal(report, found))
    except ReportError as error:
        return _unreadable(error)
    print_report(report, path)
    code = report.verdict.exit_code
    if max_epsilon is not None:
        code = _worst([code, _check_budget(report, max_epsilon)])
    return code


def _refusal(report: AuditReport, found: list[str]) -> str:
    """Return why the gate refuses a report that contradicts itself."""
    lines = [f"  {visible(sentence)}" for sentence in found[:_SHOWN]]
    lines += [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    said = f"the report says {report.verdict.outcome} and contradicts itself:"
    close = (
        "It was edited or damaged, or another release or other packages of checks wrote it. Run "
        "the training again."
    )
    return "\n".join([f"INCONCLUSIVE: {said}", *lines, close])


def _unreadable(error: ReportError) -> int:
    lines = str(error).split("\n")  # text from a file has no line ends left
    print("\n".join(map(visible, [f"lightning-audit: {lines[0]}", *lines[1:]])), file=sys.stderr)
    return EXIT_CODES["INCONCLUSIVE"]


def _reports_of(name: str) -> list[str]:
    """The report that is meant by its own name, or those of all trainings in a folder."""
    if not os.path.isdir(name):
        return [name]
    try:
        paths = [os.path.join(directory, REPORT_NAME) for directory in trainings_in(name)]
    except OSError as error:
        raise ReportError(f"cannot list the trainings in {name!r}: {error}") from error
    if not any(os.path.lexists(path) for path in paths):
        raise ReportError(
            f"report={name!r} is a directory without a report.json; name the report that the "
            "audit wrote, or its directory (report_dir, `audit` by default)."
        )
    return paths


def _check_budget(report: AuditReport, limit: float) -> int:
    """Exit code of the comparison of the report's epsilons with a budget."""
    numbers = {"proved": report.epsilon_lower, "spent": report.epsilon_spent}
    above = [f"{n} {v:.4g}" for n, v in numbers.items() if v is not None and v > limit]
    if above:
        print(f"VIOLATION of --max-epsilon {limit:g}: epsilon {', '.join(above)}")
        return EXIT_CODES["VIOLATION"]
    if report.epsilon_spent is None:
        print("INCONCLUSIVE: the report holds no epsilon to compare with --max-epsilon")
        return EXIT_CODES["INCONCLUSIVE"]
    print(f"the epsilons proved and spent are within --max-epsilon {limit:g}")
    return EXIT_CODES["PASS"]


def _worst(codes: Iterable[int]) -> int:
    """A violation outweighs an inconclusive report, which outweighs a pass."""
    order = [EXIT_CODES["PASS"], EXIT_CODES["INCONCLUSIVE"], EXIT_CODES["VIOLATION"]]
    return max(codes, key=order.index)
