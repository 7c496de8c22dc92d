"""The checks of a report by topic, and what was not examined."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from lightning_audit.checks.base.check import QUESTIONS
from lightning_audit.files.printable import visible
from lightning_audit.page.shown_text import (
    DASH,
    inner,
    listed,
    marked,
    plural,
    power_of_ten,
    sentence,
)
from lightning_audit.report.guessed_coins import DECLARED
from lightning_audit.report.in_words import NOT_TRIED
from lightning_audit.results.audit_report import AuditReport, CheckResult

#: Sign and word of each status, the worst first. The signs differ in shape.
STATUSES: Mapping[str, tuple[str, str]] = {
    "violated": ("✕", "fails"),
    "undecided": ("?", "undecided"),
    "warned": ("!", "warning"),
    "allowed": ("○", "fails, allowed"),
    "ok": ("✓", "fine"),
    "not_run": (DASH, "not examined"),
}
_WORST = tuple(STATUSES)
#: Checks of other packages that belong to no topic.
_OTHER = "Other checks"
#: The topic of the total over all steps.
_TOTAL = list(QUESTIONS)[-1]
#: The question of an audit over many trainings.
_OF_TRAININGS = "Are the guesses consistent with the claim?"
#: Levels of an alarm from this on are shown as a power of ten.
_LARGE = 1e7
#: What no audit of one training looks at; the first is about its steps.
NEVER = (
    "Steps before or after this training, and what is released in addition to the model: metrics, "
    "logs, other models.",
    "The choice of settings by looking at the same data, and preprocessing that uses the data.",
    "Several records of one person: the guarantee is per record.",
    "Code that detects that it is examined, and behaves in another way then.",
)


@dataclass(frozen=True)
class CheckShown:
    """One check in its group.

    Args:
        status: of the result.
        sign: of the status.
        word: the status in words, or what the check follows from.
        name: the finding's name.
        title: its title, and whose it is.
        message: what was seen.
        evidence: its e-value.
        means: what a failure means.
        look_at: where to look after a failure.
    """

    status: str
    sign: str
    word: str
    name: str
    title: str
    message: Markup
    evidence: str
    means: Markup
    look_at: Markup


@dataclass(frozen=True)
class CheckGroup:
    """The checks of one topic.

    Args:
        name: the topic.
        question: what its checks answer.
        status: the worst of its checks.
        sign: of the status.
        says: how many are fine, fail, or did not run.
        checks: the worst first.
    """

    name: str
    question: str
    status: str
    sign: str
    says: str
    checks: tuple[CheckShown, ...]


def never(report: AuditReport) -> tuple[str, ...]:
    """Return what no audit of this kind looks at."""
    return NEVER if report.trainings is None else (sentence(NOT_TRIED), *NEVER[1:])


def check_groups(report: AuditReport) -> list[CheckGroup]:
    """Return the groups of a report; each optimizer's result of a check has its own line."""
    by_topic: dict[str, list[CheckResult]] = {name: [] for name in (*QUESTIONS, _OTHER)}
    for check in report.checks:
        known = DECLARED.get(check.name)
        by_topic[(known and known.topic) or _OTHER].append(check)
    significance = float(report.settings.get("significance", 1e-3))
    groups = [_group(name, checks, significance) for name, checks in by_topic.items() if checks]
    verdict = report.verdict
    if report.trainings is not None:
        groups = [dataclasses.replace(group, question=_OF_TRAININGS) for group in groups]
    if verdict.outcome == "VIOLATION" and verdict.kind == "mechanism":
        groups = [_without_mechanism(group) if group.name == _TOTAL else group for group in groups]
    return groups


def not_examined(report: AuditReport) -> list[tuple[str, Markup]]:
    """Return the titles of checks that did not run, with the reason that they share."""
    reasons: dict[str, list[str]] = {}
    for check in report.checks:
        if check.status == "not_run":
            reason = check.message.removeprefix("not tested: ").removeprefix("not asked: ")
            titles = reasons.setdefault(reason, [])
            title = _with_owner(heading(check), check)
            titles.append(inner(title) if titles else title)
    return [(listed(titles), marked(sentence(reason))) for reason, titles in reasons.items()]


def heading(check: CheckResult, *, failed: bool = False) -> str:
    """Return the title of a check; the name of one that this release does not know."""
    known = DECLARED.get(check.name)
    return visible(known.heading(failed=failed) if known else check.name)


def alarm_words(check: CheckResult, significance: float) -> str:
    """Return a failed check's evidence, and the level of its alarm."""
    if check.log_e_value is None or not check.share:
        return "It was seen directly, without statistics."
    value = power_of_ten(check.log_e_value)
    return f"Evidence e = {value}; the alarm is at {_alarm(check, significance)}."


def _alarm(check: CheckResult, significance: float) -> str:
    level = 1.0 / (check.share * significance)
    return power_of_ten(math.log(level)) if level >= _LARGE else f"{float(f'{level:.2g}'):,.0f}"


def _group(name: str, results: Sequence[CheckResult], significance: float) -> CheckGroup:
    ordered = sorted(results, key=lambda c: (_WORST.index(c.status), bool(c.follows_from)))
    status = ordered[0].status
    return CheckGroup(
        name=name,
        question=QUESTIONS.get(name, "What checks of other packages found."),  # type: ignore[call-overload]
        status=status,
        sign=STATUSES[status][0],
        says=_says(results),
        checks=tuple(_shown(check, significance) for check in ordered),
    )


def _without_mechanism(group: CheckGroup) -> CheckGroup:
    """Return the group of the total if the mechanism, for which it is computed, did not run."""
    if group.status != "ok":
        return group
    says = f"{group.says}, for the stated mechanism only"
    return dataclasses.replace(group, status="not_run", sign=DASH, says=says)


def _says(results: Sequence[CheckResult]) -> str:
    tally: Counter[str] = Counter(check.status for check in results)
    ran = len(results) - tally["not_run"]
    parts = []
    if failed := tally["violated"]:
        follow = all(c.follows_from for c in results if c.status == "violated")
        parts.append(f"{failed} of {ran} {'fails' if failed == 1 else 'fail'}")
        parts += ["explained by another"] if follow else []
    elif ran:
        parts.append(f"{tally['ok']} of {ran} fine")
    for status, word in (("undecided", "undecided"), ("allowed", "allowed")):
        parts += [f"{tally[status]} {word}"] if tally[status] else []
    parts += [plural(tally["warned"], "warning")] if tally["warned"] else []
    parts += [f"{tally['not_run']} not examined"] if tally["not_run"] else []
    return ", ".join(parts)


def _shown(check: CheckResult, significance: float) -> CheckShown:
    sign, word = STATUSES[check.status]
    known = DECLARED.get(check.name)
    failed = check.status in ("violated", "undecided", "warned", "allowed")
    if check.follows_from:
        cause = DECLARED.get(check.follows_from)
        title = cause.heading(failed=True) if cause else check.follows_from
        word = f"follows from “{inner(title)}”"
    explain = failed and not check.follows_from and known is not None
    ran = check.status != "not_run" and check.log_e_value is not None and check.share > 0
    value = power_of_ten(check.log_e_value or 0.0)
    return CheckShown(
        status=check.status,
        sign=sign,
        word=word,
        name=visible(check.name),
        title=_with_owner(heading(check, failed=failed), check),
        message=marked(sentence(check.message)),
        evidence=f"e = {value}, alarm at {_alarm(check, significance)}" if ran else "",
        means=marked(known.meaning if explain and known else ""),
        look_at=marked(known.look_at if explain and known else ""),
    )


def _with_owner(title: str, check: CheckResult) -> str:
    return f"{title} ({visible(check.optimizer)})" if check.optimizer else title
