"""`lightning-audit check`: the gate on reports, without torch."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from importlib import import_module

from lightning_audit.cli.formats.checked import Checked, Remark, exit_code, named
from lightning_audit.cli.options import non_negative, positive
from lightning_audit.cli.output import Refused
from lightning_audit.cli.regression import another_training, regressions
from lightning_audit.files.printable import visible
from lightning_audit.many import trainings_verdict
from lightning_audit.record.report_directory import REPORT_NAME, holds_training, trainings_in
from lightning_audit.report.console import print_summary
from lightning_audit.results.audit_report import AuditReport, ReportError
from lightning_audit.verdict import gate

#: Contradictions that are shown.
_SHOWN = 10
#: Formats of the output, each a function of the reports in its module of `cli.formats`.
FORMATS = {
    "text": "lines:as_lines",
    "json": "json_summary:as_json_summary",
    "junit": "junit:as_junit",
    "sarif": "sarif:as_sarif",
    "github": "github:as_github",
    "markdown": "markdown:as_markdown",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Show reports and exit with the worst verdict: 0 for PASS, 1 for VIOLATION, "
        "2 for INCONCLUSIVE or a report that cannot be read."
    )
    parser.add_argument(
        "report",
        nargs="+",
        help="a report.json, or a folder of trainings; one report gets a summary, several a line "
        "each",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "--max-epsilon",
        type=positive,
        metavar="X",
        help="fail also if the proved or the spent epsilon exceeds X",
    )
    parser.add_argument(
        "--baseline",
        metavar="REPORT",
        help="fail also if epsilon_spent or epsilon_lower rose since this report of the same "
        "training, or a check newly failed",
    )
    parser.add_argument(
        "--max-regression",
        type=non_negative,
        metavar="X",
        help="with --baseline: accept a rise of an epsilon by at most X (default: 0)",
    )


def run(options: argparse.Namespace) -> int:
    """Show every report; the exit code is that of the worst verdict, budget or comparison."""
    if options.max_regression is not None and options.baseline is None:
        raise Refused("--max-regression compares with a baseline; add --baseline report.json")
    paths, errors = reports_of(options.report)
    every = named([*paths, *errors])
    if options.baseline is not None and len(every) > 1:
        raise Refused(
            f"--baseline is the report of one training, and {len(every)} are given; check each "
            "with its own baseline"
        )
    found = [_compared(*names, options, errors.get(names[0])) for names in every]
    for one in found:
        for remark in one.remarks if one.report is None else ():
            print_unreadable(remark.text)
    if options.format != "text" or len(found) > 1:
        module, _, function = FORMATS[options.format].partition(":")
        show = getattr(import_module(f"lightning_audit.cli.formats.{module}"), function)
        try:
            print(show(found))
        except OSError as error:
            raise Refused(f"cannot write the step summary: {error}") from error
    elif (report := found[0].report) is not None:
        _print_one(found[0], report, options)
    return exit_code(found)


def load(path: str) -> AuditReport:
    """Read a report that does not contradict itself.

    Raises:
        ReportError: it is absent or unreadable, or contradicts itself.
    """
    if not os.path.lexists(path) and holds_training(folder := os.path.dirname(path)):
        raise ReportError(
            f"{folder!r} holds the record of a training and no report.json: the training is "
            "still running, was killed, or could not write it; wait for its end, or train "
            "again."
        )
    report = AuditReport.load(path)
    judge = gate if report.trainings is None else trainings_verdict
    if found := judge.contradictions(report):
        raise ReportError(_refusal(report, found))
    return report


def checked(
    path: str, training: str, place: str, max_epsilon: float | None = None, error: str | None = None
) -> Checked:
    """Judge one report.

    Args:
        path: of the report.
        training: see `Checked`.
        place: see `Checked`.
        max_epsilon: what neither the proved nor the spent epsilon may exceed; None for no limit.
        error: why the report cannot be found; None to read it.
    """
    try:
        if error is not None:
            raise ReportError(error)
        report = load(path)
        judge = gate if report.trainings is None else trainings_verdict
        if max_epsilon is not None and (found := judge.contradiction_of_epsilon(report)):
            raise ReportError(_refusal(report, [found]))
    except ReportError as unreadable:
        remark = Remark("unreadable", "INCONCLUSIVE", str(unreadable))
        return Checked(path, training, place, None, (remark,))
    remarks = [] if max_epsilon is None else _above_budget(report, max_epsilon)
    return Checked(path, training, place, report, tuple(remarks))


def _compared(
    path: str, training: str, place: str, options: argparse.Namespace, error: str | None
) -> Checked:
    """Judge one report, and compare it with the baseline."""
    one = checked(path, training, place, options.max_epsilon, error)
    if options.baseline is None or one.report is None:
        return one
    found = _against_baseline(one.report, options.baseline, options.max_regression or 0.0)
    return dataclasses.replace(one, remarks=(*one.remarks, *found))


def _print_one(one: Checked, report: AuditReport, options: argparse.Namespace) -> None:
    """Print a report after the reasons of the gate, or before what the gate compared."""
    for remark in one.remarks:
        print(visible(remark.text))
    print_summary(report, one.path)
    rules = {remark.rule for remark in one.remarks}
    if options.max_epsilon is not None and "max-epsilon" not in rules:
        limit = options.max_epsilon
        print(f"the epsilons proved and spent are within --max-epsilon {limit:g}")
    if options.baseline is not None and "baseline" not in rules:
        print(f"nothing became worse since --baseline {visible(options.baseline)}")


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


def print_unreadable(text: str) -> None:
    """Print why a report cannot be read on standard error."""
    lines = text.split("\n")  # text from a file has no line ends left
    print("\n".join(map(visible, [f"lightning-audit: {lines[0]}", *lines[1:]])), file=sys.stderr)


def reports_of(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the reports that are named, each once, and why others cannot be found, by name."""
    paths: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name in names:
        try:
            for path in _reports_in(name):
                paths.setdefault(os.path.realpath(path), path)
        except ReportError as error:
            errors[name] = str(error)
    return list(paths.values()), errors


def _reports_in(name: str) -> list[str]:
    """Return the report of this name, or those of all trainings in a folder.

    Raises:
        ReportError: the folder has none, or cannot be read.
    """
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


def _above_budget(report: AuditReport, limit: float) -> list[Remark]:
    """Return what a comparison of the report's epsilons with a budget found."""
    # Many trainings show no steps: what they claim is compared instead.
    many = report.trainings is not None
    spent = report.claimed_epsilon if many else report.epsilon_spent
    numbers = {"proved": report.epsilon_lower, "claimed" if many else "spent": spent}
    above = [f"{n} {v:.4g}" for n, v in numbers.items() if v is not None and v > limit]
    if above:
        text = f"VIOLATION of --max-epsilon {limit:g}: epsilon {', '.join(above)}"
        return [Remark("max-epsilon", "VIOLATION", text)]
    if spent is None:
        text = "INCONCLUSIVE: the report holds no epsilon to compare with --max-epsilon"
        return [Remark("max-epsilon", "INCONCLUSIVE", text)]
    return []


def _against_baseline(report: AuditReport, path: str, most: float) -> list[Remark]:
    """Return what became worse since a report of the same training."""
    try:
        old = load(path)
    except ReportError as error:
        text = f"INCONCLUSIVE: --baseline {path} is refused: {error}"
        return [Remark("baseline", "INCONCLUSIVE", text.replace("\n", " "))]
    if other := another_training(old, report):
        text = f"INCONCLUSIVE: --baseline {path} is the report of another training: {other}"
        return [Remark("baseline", "INCONCLUSIVE", text)]
    return [
        Remark("baseline", outcome, f"{outcome} against --baseline {path}: {text}")
        for outcome, text in regressions(old, report, most)
    ]
