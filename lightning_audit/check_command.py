"""`lightning-audit check`: the gate on a report, without torch."""

from __future__ import annotations

import argparse
import os
import sys

from lightning_audit.checks.consistency import contradictions
from lightning_audit.report.console import print_report
from lightning_audit.results import EXIT_CODES, AuditReport, ReportError

#: Contradictions that are shown.
_SHOWN = 10


def run(options: argparse.Namespace) -> int:
    """Show the report, and return the exit code of its verdict and of the budget."""
    try:
        path = _report_of(options.report)
        report = agreeing(AuditReport.load(path))
    except ReportError as error:
        print(f"lightning-audit: {error}", file=sys.stderr)
        return EXIT_CODES["INCONCLUSIVE"]
    print_report(report, path)
    code = report.verdict.exit_code
    if options.max_epsilon is not None:
        code = _worse(code, _check_budget(report, options.max_epsilon))
    return code


def agreeing(report: AuditReport) -> AuditReport:
    """The report, if its verdict is the one that its checks, counts and settings give.

    Raises:
        ReportError: it contradicts itself; the message says where.
    """
    found = contradictions(report)
    if found:
        lines = [f"  {sentence}" for sentence in found[:_SHOWN]]
        lines += [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise ReportError(
            "INCONCLUSIVE: the report contradicts itself, so its verdict counts for nothing:\n"
            + "\n".join(lines)
            + "\nIt was edited, or written by another release. Run the training again."
        )
    return report


def _report_of(name: str) -> str:
    """The report that is meant by its own name, or by that of its directory."""
    if not os.path.isdir(name):
        return name
    path = os.path.join(name, "report.json")
    if not os.path.exists(path):
        raise ReportError(
            f"report={name!r} is a directory without a report.json; name the report that the "
            "audit wrote, or its directory (report_dir, `audit` unless it is given)."
        )
    return path


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


def _worse(first: int, second: int) -> int:
    """A violation outweighs an inconclusive report, which outweighs a pass."""
    order = [EXIT_CODES["PASS"], EXIT_CODES["INCONCLUSIVE"], EXIT_CODES["VIOLATION"]]
    return max(first, second, key=order.index)
