"""`check` and `show`: the gate on reports, and all their numbers; no torch."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from lightning_audit.accounting.composition import exceeds
from lightning_audit.checks.accounting import ACCOUNTING
from lightning_audit.cli.formats import Checked, Remark, exit_code, named
from lightning_audit.cli.main import Command, Refused, non_negative, positive
from lightning_audit.files import visible
from lightning_audit.many import verdict
from lightning_audit.record.report_directory import REPORT_NAME, holds_training, trainings_in
from lightning_audit.report.text import plural, print_report, print_summary
from lightning_audit.results.audit_report import (
    EXIT_CODES,
    AuditReport,
    Outcome,
    ReportError,
)
from lightning_audit.verdict import gate

# --- Comparison of the reports of two runs of one training: what became worse.

#: Statuses of a check that failed. A failure that the user allows is one.
_FAILED = ("violated", "undecided", "allowed")
#: Epsilons that must not increase.
_EPSILONS = ("epsilon_spent", "epsilon_lower")


def another_training(old: AuditReport, new: AuditReport) -> str:
    """Return why two reports are of different trainings, as text; empty if they may be of one.

    A report does not name its training. Those of one training have the same delta, private
    optimizers, adjacency and tensors; what else differs between them, such as noise, steps and
    seed, is compared.
    """
    facts = {
        "delta": (old.delta, new.delta),
        "private optimizers": (_labels(old), _labels(new)),
        "adjacency": (_adjacency(old) + old.of_items, _adjacency(new) + new.of_items),
        "data sets of many trainings": (_pair(old), _pair(new)),
    }
    tensors = _tensors(old), _tensors(new)
    if all(tensors):
        facts["tensors"] = tensors
    for name, (before, now) in facts.items():
        if before != now:
            return f"its {name}: {_shown_beside(before, now)}, here {_shown_beside(now, before)}"
    return ""


def regressions(old: AuditReport, new: AuditReport, most: float) -> list[tuple[Outcome, str]]:
    """Return what became worse from one report to another.

    Args:
        old: the baseline.
        new: of the same training.
        most: increase of an epsilon that is accepted, >= 0.

    Returns:
        (VIOLATION, a sentence) of each increase of an epsilon and each newly failed check;
        (INCONCLUSIVE, a sentence) of each epsilon that is no longer known.
    """
    found: list[tuple[Outcome, str]] = []
    for name in _EPSILONS:
        before, now = getattr(old, name), getattr(new, name)
        if before is not None and now is None:
            found.append(("INCONCLUSIVE", f"{name} was {before:.4g} and is unknown now"))
        elif before is not None and now > before + most:  # an infinite one exceeds no other
            limit = f", by more than --max-regression {most:g}" if most else ""
            found.append(("VIOLATION", f"{name} rose from {before:.4g} to {now:.4g}{limit}"))
    return [*found, *(("VIOLATION", text) for text in _newly_failed(old, new))]


def _newly_failed(old: AuditReport, new: AuditReport) -> Iterator[str]:
    """Yield a sentence for each newly failed check; those that follow from it are counted."""
    names = failed(new) - failed(old)
    newly = [check for check in new.checks if (check.name, check.optimizer) in names]
    roots = {check.name for check in newly if not check.follows_from}
    for check in newly:
        if check.follows_from in roots:
            continue
        number = sum(other.follows_from == check.name for other in newly)
        follow = f", and {number} that follow{'s' * (number == 1)} from it" if number else ""
        yield f"newly failed: {' of '.join(filter(None, (check.name, check.optimizer)))}{follow}"


def failed(report: AuditReport) -> set[tuple[str, str]]:
    """Return the failed checks, each as (name, label of the optimizer)."""
    return {(c.name, c.optimizer) for c in report.checks if c.status in _FAILED}


def _labels(report: AuditReport) -> tuple[str, ...]:
    return tuple(sorted(one.label for one in report.optimizers))


def _adjacency(report: AuditReport) -> Any:
    claim = report.settings.get("claim")
    return (claim.get("adjacency") if isinstance(claim, Mapping) else None) or "add_remove"


def _pair(report: AuditReport) -> str:
    """Return how the data sets of many trainings differ; that there is one training, if not."""
    return "one training" if report.trainings is None else report.trainings.pair


def _tensors(report: AuditReport) -> tuple[str, ...]:
    """Return the names of the tensors whose noise was measured."""
    ratios = (check.evidence.get("ratio") for check in report.checks)
    return tuple(sorted({name for ratio in ratios if isinstance(ratio, Mapping) for name in ratio}))


def _shown_beside(value: Any, beside: Any) -> str:
    """Return a value; of names, the first that the other value does not have."""
    if not isinstance(value, tuple):
        return f"{value:g}" if isinstance(value, float) else str(value)
    own = [name for name in value if name and name not in beside]
    return f"{len(value)}" + (f" ({own[0]}{', ...' if len(own) > 1 else ''})" if own else "")


# --- `lightning-audit check`: the gate on reports, without torch.

#: Contradictions that are shown.
_SHOWN = 10
#: Formats of the output, each a function of the reports in its module of `cli.formats`.
FORMATS = {
    "text": "as_lines",
    "json": "as_json_summary",
    "junit": "as_junit",
    "sarif": "as_sarif",
    "github": "as_github",
    "markdown": "as_markdown",
}


def add_check_arguments(parser: Command) -> None:
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
    parser.option("[--format]", "default: text", FORMATS, "text")
    parser.option(
        "[--max-epsilon X]",
        "fail also if the proved or the spent epsilon exceeds X (default: the claim, "
        "where allowed findings refute it)",
        positive,
    )
    parser.option(
        "[--baseline REPORT]",
        "fail also if epsilon_spent or epsilon_lower rose since this report of the same "
        "training, or a check newly failed",
    )
    parser.option(
        "[--max-regression X]",
        "with --baseline: accept a rise of an epsilon by at most X (default: 0)",
        non_negative,
    )


def run_check(options: argparse.Namespace) -> int:
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
        function = FORMATS[options.format]
        show = getattr(import_module("lightning_audit.cli.formats"), function)
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
    judge = gate if report.trainings is None else verdict
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
        max_epsilon: what neither the proved nor the spent epsilon may exceed; None for the claim,
            where an allowed finding refutes it.
        error: why the report cannot be found; None to read it.
    """
    try:
        if error is not None:
            raise ReportError(error)
        report = load(path)
        judge = gate if report.trainings is None else verdict
        if max_epsilon is not None and (found := judge.contradiction_of_epsilon(report)):
            raise ReportError(_refusal(report, [found]))
    except ReportError as unreadable:
        remark = Remark("unreadable", "INCONCLUSIVE", str(unreadable))
        return Checked(path, training, place, None, (remark,))
    remarks = _above_claim(report) if max_epsilon is None else _above_budget(report, max_epsilon)
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
    """Print the gate's verdict with its reasons, then the report; what holds as well comes last."""
    own = report.verdict.outcome
    leads = [r for r in one.remarks if r.outcome == one.outcome and one.outcome != own]
    for remark in leads:
        print(visible(remark.text))
    if leads:
        print(f"{one.outcome} is the gate's verdict; that of the audit alone:")
    print_summary(report, one.path, blank=False)
    if days := _days_since(report.created):
        print(f"this report was written {plural(days, 'day')} ago")
    rules = {remark.rule for remark in one.remarks}
    for remark in one.remarks:
        if remark not in leads:
            print(visible(remark.text))
    if options.max_epsilon is not None and "max-epsilon" not in rules:
        wrong = own == "VIOLATION" and report.verdict.kind == "mechanism"
        stated = ", as stated," if wrong else ""
        limit = options.max_epsilon
        print(f"the epsilons proved and spent{stated} are within --max-epsilon {limit:g}")
    if options.baseline is not None and "baseline" not in rules:
        print(f"nothing became worse since --baseline {visible(options.baseline)}")


def _days_since(created: str) -> int:
    """Return the whole days since a time in ISO 8601; 0 for another text, or without a zone."""
    try:
        return max(0, (datetime.now(UTC) - datetime.fromisoformat(created)).days)
    except (ValueError, TypeError):
        return 0


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
    if name.endswith((".npz", ".bin")):
        raise ReportError(
            f"{name!r} is no report; name the {REPORT_NAME} next to it. `lightning-audit bound` "
            "reads the readings of an observations.npz"
        )
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


def _above_claim(report: AuditReport) -> list[Remark]:
    """Return that the epsilon that holds exceeds the claim, unless the user allows just that."""
    claimed, spent = report.claimed_epsilon, report.epsilon_spent
    refuted = report.epsilon_refuted_by
    if not refuted or ACCOUNTING.name in refuted or claimed is None or spent is None:
        return []
    if not exceeds(spent, claimed):
        return []
    text = (
        f"VIOLATION of the claimed epsilon {claimed:g}: with {', '.join(refuted)} allowed, epsilon "
        f"{spent:.4g} is spent; claim that, or state what you accept by --max-epsilon"
    )
    return [Remark("max-epsilon", "VIOLATION", text)]


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


# --- `lightning-audit show`: every check and all numbers of a report, without torch.


def add_show_arguments(parser: Command) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Show the verdict, every check and all numbers of reports. Exit with 0, or with 2 if a "
        "report cannot be read; `lightning-audit check` is the gate."
    )
    parser.add_argument("report", nargs="+", help="a report.json, or a folder of trainings")


def run_show(options: argparse.Namespace) -> int:
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
