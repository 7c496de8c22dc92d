"""The content of a privacy card, for every format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_audit.card.card_facts import FACTS, ISO, NIST, OPENDP, Section
from lightning_audit.files.printable import visible
from lightning_audit.page.check_groups import (
    STATUSES,
    CheckGroup,
    check_groups,
    never,
    not_examined,
)
from lightning_audit.page.epsilon_rows import adjacency_words, sampling_words
from lightning_audit.page.shown_text import (
    inner,
    level,
    listed,
    number,
    plural,
    power_words,
)
from lightning_audit.page.verdict_words import verdict_meaning, verdict_sentence
from lightning_audit.report.in_words import counts_line
from lightning_audit.results import report_json
from lightning_audit.results.audit_report import AuditReport, Outcome

#: Instead of a statement that the owner did not make.
NOT_STATED = "not stated"
#: What the verdict makes of the guarantee.
STANDING: Mapping[Outcome, str] = {
    "PASS": "claimed, and no fault was found",
    "VIOLATION": "claimed and refuted",
    "INCONCLUSIVE": "claimed and not confirmed",
}
#: How certain the answer to a question is, by topic and part of the resolution.
_POWER = {
    "Clipping": ("sensitivity", "{} times the clipping norm would be seen with {}"),
    "Noise": ("noise", "{} times the noise would be seen with {}"),
}
_VERSIONS = ("lightning-audit", "torch", "opacus")


@dataclass(frozen=True)
class CardRow:
    """A row of the card.

    Args:
        title: what is asked.
        text: the answer.
        asked_by: the standards that ask.
        stated: whether the owner states it; the audit cannot measure that.
    """

    title: str
    text: str
    asked_by: tuple[str, ...]
    stated: bool = False

    @property
    def known(self) -> bool:
        """Whether the card has an answer."""
        return self.text != NOT_STATED


@dataclass(frozen=True)
class CardAnswer:
    """The audit's answer to the question of one group of checks.

    Args:
        question: the question.
        sign: of the answer, which differs in shape.
        answer: in a few words.
        certainty: the checks that ran, and what they would have seen.
    """

    question: str
    sign: str
    answer: str
    certainty: str


@dataclass(frozen=True)
class PrivacyCard:
    """A privacy card.

    Args:
        name: of the training.
        outcome: of the verdict.
        verdict: in one sentence.
        meaning: of the verdict.
        rows: by section.
        answers: to the questions of all groups of checks.
        epsilons: what was proved, and what is not excluded, as text.
        never: what no audit covers.
        not_examined: checks that did not run, with the reason.
        evidence: the report and what wrote it, as (title, text).
    """

    name: str
    outcome: Outcome
    verdict: str
    meaning: str
    rows: Mapping[Section, tuple[CardRow, ...]]
    answers: tuple[CardAnswer, ...]
    epsilons: tuple[str, ...]
    never: tuple[str, ...]
    not_examined: tuple[str, ...]
    evidence: tuple[tuple[str, str], ...]


def privacy_card(report: AuditReport, facts: Mapping[str, str], name: str) -> PrivacyCard:
    """Return the card of a training.

    Args:
        report: its report.
        facts: what `read_facts` returned.
        name: of the training.
    """
    stated = {
        section: tuple(
            CardRow(fact.title, facts.get(key, NOT_STATED), fact.asked_by, stated=True)
            for key, fact in FACTS.items()
            if fact.section == section
        )
        for section in ("guarantee", "context", "governance")
    }
    return PrivacyCard(
        name=visible(name),
        outcome=report.verdict.outcome,
        verdict=verdict_sentence(report),
        meaning=verdict_meaning(report),
        rows={**stated, "guarantee": (*_measured(report), *stated["guarantee"])},  # type: ignore[dict-item]
        answers=tuple(_answer(report, group) for group in check_groups(report)),
        epsilons=tuple(_epsilons(report)),
        never=never(report),
        not_examined=tuple(
            f"Not examined: {inner(titles)} ({inner(str(reason.striptags()))})."
            for titles, reason in not_examined(report)
        ),
        evidence=tuple(_evidence(report)),
    )


def standing(report: AuditReport) -> str:
    """Return what the verdict makes of the guarantee."""
    if report.trainings is not None and report.verdict.outcome == "PASS":
        return "claimed and not refuted"
    return STANDING[report.verdict.outcome]


def claimed(report: AuditReport, part: str) -> Any:
    """Return a part of the claim; None if the report does not hold it."""
    value = report.claim.get(part)
    return None if value is None else value.value


def refuted_mechanism(report: AuditReport) -> bool:
    """Return whether the steps were not those whose epsilon is composed."""
    return report.verdict.outcome == "VIOLATION" and report.verdict.kind == "mechanism"


def mechanism(report: AuditReport) -> str:
    """Return the mechanism in words: noise, clipping, sampling and steps, as claimed."""
    if report.trainings is not None:
        return visible(report.trainings.claim)
    noise = claimed(report, "noise_multiplier")
    rate = claimed(report, "sample_rate")
    if noise is None and report.history:
        noise = _one(phase[0] for phase in report.history)
    if rate is None and report.history:
        rate = _one(phase[1] for phase in report.history)
    norm = claimed(report, "max_grad_norm")
    parts = [f"Gaussian noise of {_shown(noise)} times the clipping norm"]
    if norm is not None:
        parts[0] += f" {_shown(norm)}"
    sampling = sampling_words(report)
    if rate is not None and sampling.startswith("Poisson"):
        sampling = f"Poisson sampling at rate {_shown(rate)}"
    return f"DP-SGD: {', '.join([*parts, sampling, plural(report.steps, 'step')])}"


def digest_of(report: AuditReport) -> str:
    """Return the SHA-256 that the report's file holds of its content."""
    return report_json.digest(json.loads(report.to_json()))


def _measured(report: AuditReport) -> Iterator[CardRow]:
    """Yield what the report knows."""
    held = standing(report)
    if report.verdict.allowed:
        held += f", except {listed(report.verdict.allowed)}, which the owner accepts"
    both = (NIST, OPENDP)
    claim = "no epsilon is claimed"
    if report.claimed_epsilon is not None:
        claim = (
            f"(ε, δ)-differential privacy, ε = {number(report.claimed_epsilon)}, δ = "
            f"{number(report.delta)}"
        )
        if report.epsilon_refuted_by:
            claim += f", not known to hold with {', '.join(report.epsilon_refuted_by)}"
    yield CardRow(f"Guarantee, {held}", claim, both)
    yield CardRow("Neighboring data sets", adjacency_words(report), both)
    yield CardRow(
        "Trust model", "central: the party that trains sees data and gradients without noise", both
    )
    yield CardRow("Mechanism", mechanism(report), both)
    yield CardRow("Accounting", _accounting(report), both)
    yield CardRow("Audit", _audit(report), (NIST, ISO))


def _accounting(report: AuditReport) -> str:
    accountant = claimed(report, "accountant")
    by = f"; the claim is by the accountant {_shown(accountant)}" if accountant else ""
    if report.trainings is not None:
        return "the claim's own epsilon; what ran is judged by guesses alone"
    if report.epsilon_spent is None:
        return f"epsilon of the steps is unknown{by}"
    only = ", for the stated noise and clipping, which did not run"
    return (
        f"privacy loss distributions: ε = {number(report.epsilon_spent)} at δ = "
        f"{number(report.delta)}{only if refuted_mechanism(report) else ''}{by}"
    )


def _audit(report: AuditReport) -> str:
    if report.trainings is not None:
        return counts_line(report.trainings)
    replayed = len(report.examinations)
    parts = [
        f"inside the training, {plural(report.steps, 'step')}",
        plural(report.observations, "canary reading"),
    ]
    if replayed:
        parts.append(f"{plural(replayed, 'step')} run again without a record")
    if not report.complete:
        parts.append("the training had not ended")
    return ", ".join(parts)


def _answer(report: AuditReport, group: CheckGroup) -> CardAnswer:
    """Return the answer of a group; what did not run is not examined, never without fault."""
    ran = [check for check in group.checks if check.status != "not_run"]
    own = [c for c in ran if c.status == group.status and c.word == STATUSES[c.status][1]]
    titles = listed(inner(check.title) for check in own)
    if not ran:
        answer = "not examined"
    elif group.status == "violated":
        answer = f"no: {titles}" if own else "no: it follows from the fault that was found"
    elif group.status in ("undecided", "allowed"):
        answer = f"{'undecided' if group.status == 'undecided' else 'accepted'}: {titles}"
    elif group.name == "Total epsilon" and refuted_mechanism(report):
        answer = "only for the stated noise and clipping, which did not run"
    elif report.trainings is not None:
        passed = report.verdict.outcome == "PASS"
        answer = "not refuted" if passed else "not confirmed"
    else:
        answer = "no fault found"
    sign = "?" if answer.startswith(("only", "not confirmed")) else group.sign
    return CardAnswer(group.question, sign, answer, _certainty(report, group, len(ran)))


def _certainty(report: AuditReport, group: CheckGroup, ran: int) -> str:
    left = len(group.checks) - ran
    parts = [plural(ran, "check")] if ran else []
    parts += [f"{left} not examined"] if left and ran else []
    part, words = _POWER.get(group.name, ("", ""))
    row = report.power.get(part)
    if ran and row and {"size", "power"} <= row.keys():
        parts.append(words.format(number(float(row["size"])), power_words(float(row["power"]))))
    return "; ".join(parts)


def _epsilons(report: AuditReport) -> Iterator[str]:
    anytime = [bound.significance for bound in report.bounds if bound.looks == "anytime"]
    sure = f"{level(max(anytime, default=0.05))} confidence at all looks"
    if report.epsilon_lower:
        yield f"Measured: at least ε = {number(report.epsilon_lower)} leaks ({sure})."
    else:
        read = "reading" if report.trainings is None else "guessed coin"
        yield f"Measured: no leak is proved by {plural(report.observations, read)}."
    if report.epsilon_not_excluded is not None:
        yield (
            "The largest fault that a run of this length can miss would leak ε = "
            f"{number(report.epsilon_not_excluded)}."
        )


def _evidence(report: AuditReport) -> Iterator[tuple[str, str]]:
    yield "Report", f"written {visible(report.created) or 'at an unknown time'}"
    versions = (f"{n} {v}" for n in _VERSIONS if (v := report.environment.get(n)))
    yield "Software", visible(", ".join(versions)) or "unknown"
    if report.run is not None and report.run.commit:
        yield "Commit", visible(report.run.commit)
    seed = report.settings.get("seed")
    if seed is not None:
        yield "Seed of the audit", visible(str(seed))
    yield "SHA-256 of the report's content", digest_of(report)


def _one(values: Any) -> Any:
    """Return the only value, or all in their order."""
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else found


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return listed(_shown(item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(float(value))
    return "unknown" if value is None else visible(str(value))
