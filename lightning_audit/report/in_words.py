"""A verdict in a line, and its names and numbers in a few characters."""

from __future__ import annotations

import functools
import math

from lightning_audit.checks.base.registry import headlines
from lightning_audit.files.printable import visible
from lightning_audit.report.guessed_coins import DECLARED
from lightning_audit.results.audit_report import AuditReport, LikelyFault
from lightning_audit.results.trainings_seen import TrainingsSeen
from lightning_audit.results.verdict import outcome_in_words

#: Characters of a name.
_NAME = 28
_LN10 = math.log(10.0)
#: What an audit over many trainings does not cover.
NOT_TRIED = "other canaries, scores, initial weights and data sets"


def headline(report: AuditReport) -> str:
    """Return what an audit found, in a few words."""
    verdict, seen = report.verdict, report.trainings
    if seen is not None:
        found = "refute" if verdict.outcome == "VIOLATION" else "do not refute"
        return f"{length(report)} {found} {seen.claim}"
    if verdict.outcome == "PASS":
        other = "other " if verdict.allowed else ""
        return f"no {other}fault found in {length(report)}"
    return lower(headline_of(verdict.root)) if verdict.root else verdict.summary


def length(report: AuditReport) -> str:
    """Return how much was audited: the steps of a training, or many trainings."""
    if report.trainings is not None:
        return plural(report.trainings.trainings, "training")
    return plural(report.steps, "step")


def counted(seen: TrainingsSeen) -> list[tuple[str, str, str]]:
    """Return what an audit over many trainings counted, each as name, value and remark."""
    failed = f", {seen.failures:,} failed" if seen.failures else ""
    return [
        ("Trainings", f"{seen.trainings:,}", f"of {seen.planned:,} planned{failed}"),
        ("Coins", f"{seen.errors:,}", f"of {seen.guesses:,} guessed wrong"),
        (
            "Error rate",
            f"at most {seen.error_upper:.3g}",
            f"where {seen.least_error:.3g} or more is claimed",
        ),
    ]


def counts_line(seen: TrainingsSeen) -> str:
    """Return what an audit over many trainings counted, in a line."""
    return "; ".join(f"{lower(name)}: {value} {remark}" for name, value, remark in counted(seen))


def headline_of(fault: LikelyFault) -> str:
    """Return a fault in a few words; its sentence in an earlier report that names none."""
    return fault.headline or _headlines().get(fault.name, fault.sentence)


@functools.cache
def _headlines() -> dict[str, str]:
    return headlines()


def status_line(report: AuditReport) -> str:
    """Return a verdict in one line of a log.

    Example:
        VIOLATION: too little noise is added (noise), first seen in step 2, HalfNoise at a.py:90
    """
    words = [f"{outcome_in_words(report.verdict)}: {headline(report)}"]
    if root := report.verdict.root:
        words[0] += f" ({root.finding})"
        words += [] if root.place.step is None else [f"first seen in step {root.place.step + 1}"]
        words += code_of(root)[:1]
    return visible(", ".join(words))


def progress(report: AuditReport) -> str:
    """Return a verdict in the characters that a progress bar has room for.

    Example:
        ok | eps>=0.41
    """
    verdict = report.verdict
    if verdict.outcome == "VIOLATION":
        return f"VIOLATION | {verdict.root.finding}" if verdict.root else "VIOLATION"
    unclear = any(check.status == "undecided" for check in report.checks)
    proved = f" | eps>={report.epsilon_lower:.2g}" if report.epsilon_lower else ""
    return f"{'unclear' if unclear else 'ok'}{proved}"


def code_of(fault: LikelyFault) -> list[str]:
    """Return the places of the user's code that a fault points to, the likeliest first."""
    return [f"{place.file}:{place.line} {place.name}" for place in fault.place.code]


def power_of_ten(log_value: float) -> str:
    """Return a number by its natural logarithm as a power of ten.

    Example:
        >>> power_of_ten(math.log(4e4)), power_of_ten(math.log(10.0) * 750.2)
        ('10^4.6', '10^750')
    """
    power = log_value / _LN10
    return f"10^{power:.0f}" if abs(power) >= 10 else f"10^{round(power, 1):g}"


def short_name(name: str) -> str:
    """Return a name without its middle if it is long.

    Example:
        >>> short_name("model.encoder.layers.11.attention.output.dense.weight")
        'model.encoder...dense.weight'
    """
    if len(name) <= _NAME:
        return name
    first = _NAME // 2 - 1
    return f"{name[:first]}...{name[first + 3 - _NAME :]}"


def title_of(name: str, *, failed: bool = False) -> str:
    """Return the title of a check; its name if this release has no such check."""
    known = DECLARED.get(name)
    return known.heading(failed=failed) if known else name


def lower(text: str) -> str:
    """Return text that begins in lower case, unless its first word is an abbreviation."""
    return text if text[1:2].isupper() else f"{text[:1].lower()}{text[1:]}"


def plural(count: int, word: str) -> str:
    """Return a number of things.

    Example:
        >>> plural(1, "step"), plural(2272, "reading")
        ('1 step', '2,272 readings')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"
