"""The verdict of a report in plain words, its checks by topic, and the training's facts."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from lightning_audit.checks.check import DECLARED, QUESTIONS, REGISTRY, Check
from lightning_audit.files import visible
from lightning_audit.report.page_parts import (
    DASH,
    PERCENT,
    MethodRow,
    inner,
    level,
    listed,
    marked,
    number,
    plural,
    power_of_ten,
    power_words,
    sentence,
)
from lightning_audit.report.text import (
    NOT_TRIED,
    Fact,
    accountant_of,
    as_shown,
    by_accountant,
    counted,
    headline,
    headline_of,
    powers,
    records_of,
    refutes_mechanism,
    result_of,
    significance_of,
    title_of,
)
from lightning_audit.results.audit_report import (
    AuditReport,
    CheckResult,
    EpsilonBound,
    LikelyFault,
    Place,
    TrainingsSeen,
    first_of,
    section_of,
)
from lightning_audit.results.report_details import CodePlace
from lightning_audit.results.report_json import plain

Pair = tuple[str, str]

# --- What the page says of an audit over many trainings.

_FROM = "error rate of the guessed coins"
#: By the name of a bound: its name and its method in the table of numbers.
METHODS = {
    "coins": ("Proved ε, at least", f"{_FROM}, in the form of the claim"),
    "coins_scores": ("Proved ε, at least", "scores and guessed coins, for Gaussian outputs"),
    "coins_any": ("Proved ε, any mechanism", _FROM),
    "coins_one_run": ("Proved ε, any mechanism", "all coins of all canaries at the planned end"),
    "coins_one_run_mu": ("Proved ε, at least", "all coins of all canaries at the planned end"),
}


def meaning(report: AuditReport, seen: TrainingsSeen) -> str:
    """Return what the verdict means, in one or two sentences below it."""
    verdict = report.verdict
    if verdict.outcome == "PASS":
        return sentence(verdict.summary)
    if verdict.outcome == "INCONCLUSIVE":
        return "The claim is neither confirmed nor refuted. What a pass needs is listed below."
    return (
        "Do not rely on the claimed epsilon. A claim that is true is refuted with probability "
        f"{number(seen.significance)} at most. {sentence(verdict.advice)}"
    )


def facts_of_trainings(seen: TrainingsSeen) -> list[Fact]:
    """Return the numbers below the verdict, each with a remark."""
    found = counted(seen)
    if seen.canaries > 1:
        found.append(("Canaries", f"{seen.canaries:,}", "in each training"))
    if seen.refuted_after is not None:
        found.append(("Refuted", f"after {seen.refuted_after:,}", "trainings"))
    return [*found, _false_alarm(seen.significance, "over all looks at the trainings")]


def _false_alarm(significance: float, over: str) -> Fact:
    return "False alarm", f"≤ {100 * significance:g}{PERCENT}", over


def bound_row(bound: EpsilonBound) -> tuple[str, str]:
    """Return the name and the meaning of a bound among the epsilons."""
    anytime = bound.looks == "anytime"
    name = "Proved at least" if anytime else "At the planned end"
    name += ", any mechanism" if bound.name in ("coins_any", "coins_one_run") else ""
    looks = "no matter how often one looks" if anytime else "for one look at the planned end"
    proved = "this much leaks at least" if bound.epsilon_lower else "nothing is proved"
    remark = "" if bound.epsilon_lower else " 0 is no sign of privacy."
    return name, (
        f"Measured by the guessed coins, with {level(bound.significance)} confidence, {looks}: "
        f"{proved}. Valid for: {visible(bound.assumptions[-1])}.{remark}"
    )


def numbers(report: AuditReport, seen: TrainingsSeen) -> Iterator[MethodRow]:
    """Yield the rows of the table of numbers that no other report has."""
    how = f"least error rate of guesses with {visible(seen.claim)}"
    yield "Error rate, claimed", f"≥ {number(seen.least_error)}", how, "computed", ()
    if anytime := [bound for bound in report.bounds if bound.looks == "anytime"]:
        holds = f"{level(anytime[0].significance)} confidence, at all looks together"
        assumed = anytime[0].assumptions[:-1]
        how = "confidence sequence of the wrong guesses"
        yield "Error rate, measured", f"≤ {number(seen.error_upper)}", how, holds, assumed
        by_scores = any(bound.name == "coins_scores" for bound in anytime)
        how = METHODS["coins_scores"][1] if by_scores else f"{_FROM}, for Gaussian outputs"
        yield "Proved μ, at least", number(seen.mu_lower), how, holds, assumed
        if seen.ratio_lower is not None:
            how = how.replace("for Gaussian outputs", "if leakage over claim is constant")
            yield "Leakage over claim", f"≥ {number(seen.ratio_lower)}", how, holds, assumed
    how = "e-value of the guesses (Ville's inequality)"
    alarm = f"≤ {number(seen.significance)}"
    yield "False alarm", alarm, how, "any number of looks", ("fair private coins",)


# --- The training that a report is about: facts, claim, circumstances, repeated steps, code.

#: Lines of a place in the code that the page shows.
_MOST_LINES = 12
#: Examinations that the page lists.
_MOST_EXAMINATIONS = 20
#: How a training ended, in words.
_ENDED = {
    "planned": "as planned",
    "violation": "stopped by the violation",
    "budget": "stopped before the claim was exceeded",
    "stopped": "stopped early",
    "broke off": "broke off with an exception",
    "failed": "the audit failed",
}
_CLAIMS = {
    "noise_multiplier": "noise multiplier",
    "max_grad_norm": "clipping norm",
    "expected_batch_size": "expected batch size",
    "sample_rate": "sampling rate",
}


def facts(report: AuditReport) -> list[Fact]:
    """Return the numbers below the verdict, each with a remark."""
    if report.trainings is not None:
        return facts_of_trainings(report.trainings)
    planned = report.planned_steps
    of = f"of {planned:,} planned" if planned and planned != report.steps else ""
    name = "Claimed ε"
    claimed = "-" if report.claimed_epsilon is None else number(report.claimed_epsilon)
    holds = report.claimed_epsilon in (None, report.epsilon_that_holds)
    doubt = "" if holds else ", not known to hold"
    by = f"by the {accountant_of(report)}, " if by_accountant(report) else ""
    at = f"{by}at δ = {number(report.delta)}{report.of_items}{doubt}"
    if (one := report.epsilon_measured) and not one.planned and report.epsilon_spent is not None:
        at = f"over {plural(one.steps, 'step')}; {claimed} is claimed for the training"
        name, claimed = "Computed ε", number(report.epsilon_spent)
    found: list[Fact] = [
        (name, claimed, at),
        _found_in_words(report),
        ("Steps audited", f"{report.steps:,}", of),
    ]
    if len(report.optimizers) > 1:
        found.append(("Private optimizers", f"{len(report.optimizers)}", ""))
    if report.run and report.run.processes > 1:
        found.append(("Processes", f"{report.run.processes}", ""))
    asked = [check.evidence.get("examined") for check in report.checks]
    counts = [count for count in asked if isinstance(count, int) and not isinstance(count, bool)]
    if examined := len(report.examinations) or max(counts, default=0):
        found.append(("Steps run again", f"{examined}", "with and without a record"))
    if report.settings.get("significance") is not None:
        found.append(_false_alarm(significance_of(report), "over the whole run"))
    if report.ended:
        reason = _ENDED.get(report.ended.reason, report.ended.reason)
        found.append(("Training", visible(reason), ""))
    elif not report.complete:
        found.append(("Training", "not ended", "when this was written"))
    return found


def _found_in_words(report: AuditReport) -> Fact:
    """Return the epsilon of what ran, as measured or computed, as far as the audit knows it."""
    name = "Found ε"
    one, proved = report.epsilon_measured, report.epsilon_lower
    over = f"over {one.steps:,} {'planned ' * one.planned}steps" if one else ""
    if one is not None and one.lower > 100.0:
        return name, "above 100", over
    if one is not None and one.about is not None and one.upper is not None:
        between = f"{number(one.lower)} to {number(one.upper)}"
        return name, f"about {number(one.about, 2)}", f"{between}, {over}"
    if one is not None:
        return name, f"at least {number(one.lower)}", over
    if (found := report.epsilon_spent) is None or refutes_mechanism(report):
        known = f"at least {number(proved)} is proved" if proved else "none is proved"
        return name, "unknown", known
    return "Computed ε", number(found), "for these steps and the stated noise"


def subject(report: AuditReport) -> str:
    """Return what was trained on what: classes, the size if the claim states it, the commit."""
    run = report.run
    if run is None:
        return ""
    records = records_of(report)
    size = f" of about {float(f'{records:.2g}'):,.0f} records" if records and run.data else ""
    data = f"{run.data}{size}"
    commit = f"commit {run.commit[:12]}" if run.commit else ""
    trained = " on ".join(filter(None, (run.name, data)))
    return visible(", ".join(filter(None, (trained, commit))))


def claim_rows(report: AuditReport) -> list[Pair]:
    """Return the parts of the claim that was audited, with the source of each."""
    if report.trainings is not None:
        return [("claim", visible(report.trainings.claim))]
    known = ((name, part) for name, part in report.claim.items() if part.value is not None)
    return [
        (_CLAIMS.get(name, visible(name.replace("_", " "))), f"{_value(one.value)} ({one.source})")
        for name, one in known
    ]


def circumstances(report: AuditReport) -> list[Pair]:
    """Return where and how the training ran."""
    run = report.run
    if run is None:
        return []
    several = plural(run.processes, "process").replace("processs", "processes")
    rows = {
        "module": run.name,
        "started": run.started.replace("T", " "),
        "duration": f"{run.seconds:,.3g} s" if run.seconds else "",
        "device": run.device,
        "precision": run.precision,
        "strategy": f"{run.strategy}, {several}" if run.strategy else several,
        "commit": run.commit or "",
    }
    return [(name, visible(text)) for name, text in rows.items() if text]


def examinations(report: AuditReport) -> list[str]:
    """Return what was tested of each step that was run again, in a sentence."""
    shown = []
    for one in report.examinations:
        found = listed(_titles(one.findings, failed=True)) if one.findings else "nothing was found"
        asked = f"in {number(one.seconds, 2)} s: {listed(_titles(one.questions))}"
        shown.append(f"Step {one.step + 1:,}, {asked}; {found}.")
    rest = len(shown) - _MOST_EXAMINATIONS
    return shown[:_MOST_EXAMINATIONS] + ([f"{rest} more steps."] if rest > 0 else [])


def _lines_of(place: CodePlace) -> dict[str, Any]:
    """Return a part of the user's code with its number and text of each line, for the template."""
    lines = place.source.rstrip().split("\n")[:_MOST_LINES]
    indent = min((len(s) - len(s.lstrip()) for s in lines if s.strip()), default=0)
    return {
        "file": visible(place.file),
        "line": place.line,
        "name": visible(place.name),
        "lines": [(place.line + i, visible(s[indent:].rstrip())) for i, s in enumerate(lines)],
    }


def _titles(names: tuple[str, ...], *, failed: bool = False) -> list[str]:
    return [inner(title_of(name, failed=failed)) for name in names]


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_value(one) for one in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return visible(value if isinstance(value, str) else json.dumps(plain(value)))
    return number(value, 4)


# --- The checks of a report by topic, and what was not examined.

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
        result: of the check.
        sign: of its status.
        word: the status in words, or what the check follows from.
        title: its title, and whose it is.
        more: address of its section in the documentation; empty if it has none.
        evidence: its e-value.
        steps: how many of the steps it saw, if it saw a few of them only.
        explains: its declaration, if a failure is to be explained.
    """

    result: CheckResult
    sign: str
    word: str
    title: str
    more: str
    evidence: str
    steps: str
    explains: Check | None


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
    for check in as_shown(report):
        known = DECLARED.get(check.name)
        by_topic[(known and known.topic) or _OTHER].append(check)
    return [_group(report, name, checks) for name, checks in by_topic.items() if checks]


def not_examined(report: AuditReport) -> list[tuple[str, str]]:
    """Return the titles of checks that did not run, with the reason that they share."""
    reasons: dict[str, list[str]] = {}
    for check in report.checks:
        if check.status == "not_run":
            titles = reasons.setdefault(check.message, [])
            title = _heading(check)
            titles.append(inner(title) if titles else title)
    return [(listed(titles), sentence(reason)) for reason, titles in reasons.items()]


def _heading(check: CheckResult, *, failed: bool = False) -> str:
    """Return the title of a check, and whose it is; the name of one that is not known."""
    title = visible(title_of(check.name, failed=failed))
    return f"{title} ({visible(check.optimizer)})" if check.optimizer else title


def _alarm(check: CheckResult, significance: float) -> str:
    level = 1.0 / (check.share * significance)
    return power_of_ten(math.log(level)) if level >= _LARGE else f"{float(f'{level:.2g}'):,.0f}"


def _group(report: AuditReport, name: str, results: Sequence[CheckResult]) -> CheckGroup:
    ordered = sorted(results, key=lambda c: (_WORST.index(c.status), bool(c.follows_from)))
    status, says = ordered[0].status, _says(results)
    if name == _TOTAL and status == "ok" and refutes_mechanism(report):
        status, says = "not_run", f"{says}, for the stated mechanism only"
    question = QUESTIONS.get(name, "What checks of other packages found.")  # type: ignore[call-overload]
    if report.trainings is not None:
        question = _OF_TRAININGS
    shown = tuple(_check_shown(check, report) for check in ordered)
    return CheckGroup(name, question, status, STATUSES[status][0], says, shown)


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


def _check_shown(check: CheckResult, report: AuditReport) -> CheckShown:
    sign, word = STATUSES[check.status]
    known = DECLARED.get(check.name)
    failed = check.status in ("violated", "warned", "allowed")
    failed |= check.status == "undecided" and not check.follows_from
    if check.status == "violated" and check.follows_from:
        word = f"follows from “{inner(title_of(check.follows_from, failed=True))}”"
    evidence = ""
    if check.status != "not_run" and check.log_e_value is not None and check.share > 0:
        alarm = _alarm(check, significance_of(report))
        evidence = f"e = {power_of_ten(check.log_e_value)}, alarm at {alarm}"
    title = _heading(check, failed=failed)
    explains = known if failed and not check.follows_from else None
    again = len({one.step for one in report.examinations if check.name in one.questions})
    steps = f"{again:,} of {plural(report.steps, 'step')}" if again else ""
    return CheckShown(check, sign, word, title, _more(known), evidence, steps, explains)


def _more(known: Check | None) -> str:
    """Return the address of the section on a check; empty where the documentation has none."""
    return section_of(known.name) if known is not None and known.topic else ""


# --- The verdict of a report in plain words, made by rule, and its root finding.

#: How the sentence of a violation starts, and what it means for the epsilons.
_VIOLATIONS = {
    "mechanism": (
        "This training is less private than it says",
        "Its epsilon is computed for a mechanism that did not run, so do not rely on it.",
    ),
    "epsilon": ("More leaks than is claimed", "Do not rely on the claimed epsilon."),
    "accounting": (
        "The claimed epsilon does not hold",
        "The steps may be sound; the number that is claimed for them is not.",
    ),
}


def verdict_sentence(report: AuditReport) -> str:
    """Return the verdict in one sentence for a reader who is no expert."""
    if report.trainings is not None:
        return sentence(headline(report))
    verdict, steps = report.verdict, plural(report.steps, "step")
    found, holds = "no fault was found", ""
    if verdict.allowed:
        found = f"except {visible(listed(verdict.allowed))}, which is allowed, {found}"
        holds = f"; {visible(verdict.holds)}" if verdict.holds else ""
    if verdict.outcome == "PASS" and verdict.allowed:
        return f"{found[0].upper()}{found[1:]} in {steps}{holds}."
    if verdict.outcome == "PASS":
        return f"No fault was found: in {steps} this training did what {_claim(report)} rests on."
    if verdict.outcome == "INCONCLUSIVE":
        return f"No verdict: {found}, but {steps} did not show enough for a pass{holds}."
    start, _ = _VIOLATIONS[verdict.kind or "mechanism"]
    root = verdict.root
    return f"{start}: {inner(headline_of(root) if root else verdict.summary)}."


def verdict_meaning(report: AuditReport) -> str:
    """Return what the verdict means, in one or two sentences below it."""
    if report.trainings is not None:
        return meaning(report, report.trainings)
    verdict = report.verdict
    if verdict.outcome == "PASS":
        return f"{_resolution(report)}A pass is evidence, not a proof of privacy."
    if verdict.outcome == "INCONCLUSIVE":
        return (
            "The training is neither passed nor accused. What a pass still needs is listed below."
        )
    _, means = _VIOLATIONS[verdict.kind or "mechanism"]
    probability = number(significance_of(report))
    alarm = f"A correct training is accused with probability {probability} at most."
    return f"{means} {alarm}"


def _claim(report: AuditReport) -> str:
    if report.claimed_epsilon is None:
        return "its privacy"
    whose = "the accountant's" if by_accountant(report) else "its claim of"
    return f"{whose} ε = {number(report.claimed_epsilon)}"


def _resolution(report: AuditReport) -> str:
    """Return the faults that the run would have shown, with their power."""
    words = {
        "noise": "noise of {} times the stated",
        "sensitivity": "clipping at {} times the norm",
    }
    parts = [
        f"{words[part].format(number(size))} ({power_words(power)})"
        for part, (size, power) in powers(report).items()
    ]
    return f"It would have shown {listed(parts)}. " if parts else ""


# ------------------------------------------------------------------ the findings


def root_finding(report: AuditReport) -> dict[str, Any] | None:
    """Return the finding that the verdict leads with, for the template; None if there is none."""
    root = report.verdict.root
    if root is None:
        return None
    known = REGISTRY.get(root.finding)
    others = (fault for fault in report.verdict.faults[1:] if fault.shares_finding(root))
    return {
        **_finding_shown(report, root),
        "means": marked(known.meaning if known else ""),
        "more": _more(known),
        "code": [_lines_of(place) for place in root.place.code if place.source.rstrip()],
        "alternatives": [marked(inner(headline_of(fault))) for fault in others],
        "follows": [visible(title_of(name, failed=True)) for name in root.consequences],
    }


def further_findings(report: AuditReport) -> list[dict[str, Any]]:
    """Return the findings that the root does not explain, for the template."""
    return [_finding_shown(report, fault) for fault in report.verdict.further]


def _finding_shown(report: AuditReport, fault: LikelyFault) -> dict[str, Any]:
    result, known = result_of(report, fault), REGISTRY.get(fault.finding)
    evidence = sentence(result.message if result else fault.sentence)
    if result is not None and result.status == "violated":
        alarm = " It was seen directly, without statistics."
        if result.log_e_value is not None and result.share:
            level = _alarm(result, significance_of(report))
            alarm = f" Evidence e = {power_of_ten(result.log_e_value)}; the alarm is at {level}."
        evidence += alarm
    look_at = fault.look_at or report.verdict.advice or (known.look_at if known else "")
    return {
        "headline": marked(headline_of(fault)),
        "evidence": marked(evidence),
        "where": _where(fault.place),
        "look_at": marked(look_at),
    }


def _where(place: Place) -> Markup:
    """Return when and where a fault was first seen; steps count from 1."""
    parts = []
    if place.step is not None:
        parts.append(f"first seen in step {place.step + 1:,}")
    if place.optimizer:
        parts.append(f"in optimizer {place.optimizer}")
    if place.parameters:
        parts.append(f"in {first_of([f'`{name}`' for name in place.parameters])}")
    if place.process is not None:
        parts.append(f"in process {place.process}")
    return marked(sentence(", ".join(parts) or "unknown"))
