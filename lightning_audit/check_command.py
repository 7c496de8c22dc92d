"""`lightning-audit check`: the gate on a report, without torch."""

from __future__ import annotations

import argparse
import sys

from lightning_audit.report.console import print_report
from lightning_audit.results import EXIT_CODES, AuditReport, ReportError


def run(options: argparse.Namespace) -> int:
    """Show the report, and return the exit code of its verdict and of the budget."""
    try:
        report = AuditReport.load(options.report)
    except ReportError as error:
        print(f"lightning-audit: {error}", file=sys.stderr)
        return EXIT_CODES["INCONCLUSIVE"]
    print_report(report, options.report)
    code = report.verdict.exit_code
    if options.max_epsilon is not None:
        code = _worse(code, _check_budget(report, options.max_epsilon))
    return code


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
