"""The privacy card of a training: Markdown, HTML, and the block of a model card."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from lightning_audit._validate import did_you_mean, shown
from lightning_audit._version import __version__
from lightning_audit.files import in_markdown, read_text, visible
from lightning_audit.report.page import digest_of, rendered
from lightning_audit.report.page_parts import (
    inner,
    level,
    listed,
    marked,
    number,
    plural,
    power_words,
)
from lightning_audit.report.page_tables import POISSON, adjacency_words, sampling_words
from lightning_audit.report.page_verdict import (
    STATUSES,
    CheckGroup,
    check_groups,
    never,
    not_examined,
    verdict_meaning,
    verdict_sentence,
)
from lightning_audit.report.text import (
    accountant_of,
    by_accountant,
    counts_line,
    powers,
    refutes_mechanism,
    warnings_of,
)
from lightning_audit.results.audit_report import AuditReport, Outcome, measured_words
from lightning_audit.results.report_json import plain

# --- What only people know of a training: the keys of card.yaml, and its reader.

#: Who asks for a row of the card.
NIST, ISO, OPENDP = "NIST SP 800-226", "ISO/IEC 27559", "OpenDP registry"
Section = Literal["guarantee", "context", "governance"]
_MOST_BYTES = 2**20


@dataclass(frozen=True)
class Fact:
    """A statement of the owner.

    Args:
        title: in the card.
        section: of the card.
        asked_by: the standards that ask for it.
    """

    title: str
    section: Section
    asked_by: tuple[str, ...]


#: By the key in card.yaml, in the order of the card.
FACTS: Mapping[str, Fact] = {
    "product": Fact("What is released", "guarantee", (NIST, OPENDP)),
    "intended_use": Fact("Intended use", "guarantee", (ISO, OPENDP)),
    "unit": Fact("What one record is, and how many one person has", "guarantee", (NIST, OPENDP)),
    "justification": Fact("Why this epsilon", "guarantee", (NIST, OPENDP)),
    "actors": Fact("Who sees data or gradients without noise", "guarantee", (NIST, OPENDP)),
    "unprotected": Fact("Published without noise", "guarantee", (NIST, OPENDP)),
    "data": Fact("Data and their sensitivity", "context", (ISO,)),
    "collection": Fact("Collection of the data", "context", (NIST, ISO)),
    "preprocessing": Fact(
        "Preprocessing, and choice of hyperparameters", "context", (NIST, OPENDP)
    ),
    "security": Fact("Security of data and training", "context", (NIST, ISO)),
    "recipients": Fact("Recipients and access", "context", (ISO,)),
    "other_releases": Fact("Other releases of these data", "context", (NIST, ISO)),
    "threats": Fact("Attacks that were considered", "context", (ISO,)),
    "utility": Fact("Utility and bias", "context", (NIST,)),
    "harm": Fact("Harm if epsilon were wrong", "context", (ISO,)),
    "curator": Fact("Data curator", "governance", (ISO, OPENDP)),
    "responsible": Fact("Responsible person", "governance", (ISO,)),
    "transparency": Fact("Information for the people in the data", "governance", (ISO,)),
    "response": Fact("Monitoring and response to incidents", "governance", (ISO,)),
    "review": Fact("Next review", "governance", (ISO,)),
}


class BadFacts(ValueError):
    """A file of facts cannot be used; the message names the key and says what to do."""


def read_facts(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read card.yaml.

    Args:
        path: a YAML file of at most 1 MiB; its keys are those of `FACTS`, and each value is a text
            or a list of texts.

    Returns:
        The statements by key, without empty ones; a list is joined by semicolons.

    Raises:
        BadFacts: the file is absent or not YAML, has another key, or a value of another kind.
    """
    name = os.fspath(path)
    try:
        # Every scalar is text: a date or a "no" needs no quotes.
        found = yaml.load(read_text(path, _MOST_BYTES), Loader=yaml.BaseLoader)
    except (OSError, ValueError) as error:
        raise BadFacts(f"cannot read the facts {name!r}: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "it is nested too deep"
        raise BadFacts(f"the facts {name!r} are not YAML: {reason}") from error
    if found in (None, ""):
        return {}
    if not isinstance(found, dict):
        raise BadFacts(
            f"the facts {name!r} must be a mapping, with lines such as `product: the weights of a "
            f"classifier`, and are a {'list' if isinstance(found, list) else 'text'}."
        )
    if unknown := [key for key in found if key not in FACTS]:
        parts = (f"{shown(key)}: {did_you_mean(str(key), FACTS)}" for key in unknown)
        raise BadFacts(f"unknown keys in the facts {name!r}: {' '.join(parts)}")
    texts = {key: _text(key, value) for key, value in found.items()}
    return {key: texts[key] for key in FACTS if texts.get(key)}


def _text(key: str, value: object) -> str:
    parts = value if isinstance(value, list) else [value]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise BadFacts(f"{key} must be a text or a list of texts; write {key}: one line of text.")
    return "; ".join(visible(" ".join(text.split())) for text in texts if text)


# --- The content of a privacy card, for every format.

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
        text: the answer; empty if the owner did not state it.
        asked_by: the standards that ask.
        stated: whether the owner states it; the audit cannot measure that.
    """

    title: str
    text: str
    asked_by: tuple[str, ...]
    stated: bool = False


def privacy_card(report: AuditReport, facts: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return what the card of a training says, for every format.

    Its ``rows`` are by section; each of its ``answers`` is the question of a group of checks, a
    sign, the answer in a few words, and how certain it is: the checks that ran, and what they would
    have seen.

    Args:
        report: its report.
        facts: what `read_facts` returned.
        name: of the training.
    """
    rows: dict[Section, list[CardRow]] = {
        "guarantee": list(_measured(report)),
        "context": [],
        "governance": [],
    }
    for key, fact in FACTS.items():
        rows[fact.section].append(_stated(report, key, fact, facts.get(key, "")))
    return {
        "name": visible(name),
        "outcome": report.verdict.outcome,
        "verdict": verdict_sentence(report),
        "meaning": verdict_meaning(report),
        "rows": rows,
        "answers": [_answer(report, group) for group in check_groups(report)],
        "epsilons": list(_epsilons(report)),
        "never": never(report),
        "not_examined": [
            f"Not examined: {inner(titles)} ({inner(str(marked(reason).striptags()))})."
            for titles, reason in not_examined(report)
        ],
        "evidence": list(_evidence(report)),
    }


def _stated(report: AuditReport, key: str, fact: Fact, text: str) -> CardRow:
    """Return the row of a statement; what the audit saw logged is published without noise."""
    seen = ", ".join(f"`{visible(name)}`" for name in report.published)
    if key == "unprotected" and seen:
        logged = f"the training logs {seen} (by the audit)"
        both = f"{text}; {logged}" if text else logged
        return CardRow(fact.title, both, fact.asked_by, stated=bool(text))
    return CardRow(fact.title, text, fact.asked_by, stated=True)


def standing(report: AuditReport) -> str:
    """Return what the verdict makes of the guarantee, after the findings that are accepted."""
    if report.trainings is not None and report.verdict.outcome == "PASS":
        return "claimed and not refuted"
    held, accepted = STANDING[report.verdict.outcome], report.verdict.allowed
    if not accepted:
        return held
    other = held.replace("no fault", "no other fault")
    return f"except {listed(accepted)}, which the owner accepts: {other}"


def claimed(report: AuditReport, part: str) -> Any:
    """Return a part of the claim; None if the report does not hold it."""
    value = report.claim.get(part)
    return None if value is None else value.value


def mechanism(report: AuditReport) -> str:
    """Return the mechanism in words: noise, clipping, sampling and steps, as claimed."""
    if report.trainings is not None:
        return visible(report.trainings.claim)
    noise, rate = claimed(report, "noise_multiplier"), claimed(report, "sample_rate")
    if noise is None and report.history:
        noise = _one(phase[0] for phase in report.history)
    if rate is None and report.history:
        rate = _one(phase[1] for phase in report.history)
    norm = claimed(report, "max_grad_norm")
    parts = [f"Gaussian noise of {_shown(noise)} times the clipping norm"]
    if norm is not None:
        parts[0] += f" {_shown(norm)}"
    sampling = sampling_words(report)
    if rate is not None and sampling == POISSON:
        sampling = f"Poisson sampling at rate {_shown(rate)}"
    return f"DP-SGD: {', '.join([*parts, sampling, plural(report.steps, 'step')])}"


def _measured(report: AuditReport) -> Iterator[CardRow]:
    """Yield what the report knows."""
    both, epsilon, refuted = (NIST, OPENDP), report.epsilon_that_holds, report.epsilon_refuted_by
    claim = "no epsilon is known to hold" if refuted else "no epsilon is claimed"
    if epsilon is not None:
        claim = f"(ε, δ)-differential privacy, ε = {number(epsilon)}, δ = {number(report.delta)}"
        claim += report.of_items
    if report.claimed_epsilon is not None and epsilon != report.claimed_epsilon:
        stated = number(report.claimed_epsilon)
        claim += f"; the claimed ε = {stated} is not known to hold with {', '.join(refuted)}"
    yield CardRow(f"Guarantee, {standing(report)}", claim, both)
    yield CardRow("Neighboring data sets", adjacency_words(report), both)
    yield CardRow(
        "Trust model", "central: the party that trains sees data and gradients without noise", both
    )
    yield CardRow("Mechanism", mechanism(report), both)
    yield CardRow("Accounting", _accounting(report), both)
    if measured := measured_words(report, source=True):
        yield CardRow("As measured, an estimate", measured, both)
    if warnings := warnings_of(report):
        yield CardRow("Warnings", "; ".join(text for _, text in warnings), both)
    yield CardRow("Audit", _audit(report), (NIST, ISO))


def _accounting(report: AuditReport) -> str:
    by = f"; the claim is by the {accountant_of(report)}" if by_accountant(report) else ""
    if report.trainings is not None:
        return "the claim's own epsilon; what ran is judged by guesses alone"
    if report.epsilon_spent is None:
        return f"epsilon of the steps is unknown{by}"
    only = ", for the stated noise and clipping, which did not run"
    return (
        f"privacy loss distributions: ε = {number(report.epsilon_spent)} at δ = "
        f"{number(report.delta)}{report.of_items}{only if refutes_mechanism(report) else ''}{by}"
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


def _answer(report: AuditReport, group: CheckGroup) -> tuple[str, str, str, str]:
    """Return question, sign, answer and certainty of a group; what did not run has no answer."""
    ran = [check for check in group.checks if check.result.status != "not_run"]
    own = [check for check in ran if check.word == STATUSES[group.status][1]]
    titles, sign = listed(inner(check.title) for check in own), group.sign
    if not ran:
        answer = "not examined"
    elif group.status == "violated":
        answer = f"no: {titles}" if own else "no: it follows from the fault that was found"
    elif group.status in ("undecided", "allowed"):
        answer = f"{'undecided' if group.status == 'undecided' else 'accepted'}: {titles}"
    elif group.name == "Total epsilon" and refutes_mechanism(report):
        answer, sign = "only for the stated noise and clipping, which did not run", "?"
    elif group.name == "Total epsilon" and report.epsilon_that_holds != report.claimed_epsilon:
        answer = f"only without {listed(report.epsilon_refuted_by)}, which the owner accepts"
        sign = "?"
    elif report.trainings is not None:
        passed = report.verdict.outcome == "PASS"
        answer, sign = ("not refuted", sign) if passed else ("not confirmed", "?")
    else:
        answer = "no fault found"
    return group.question, sign, answer, _certainty(report, group, len(ran))


def _certainty(report: AuditReport, group: CheckGroup, ran: int) -> str:
    left = len(group.checks) - ran
    parts = [plural(ran, "check")] if ran else []
    parts += [f"{left} not examined"] if left and ran else []
    part, words = _POWER.get(group.name, ("", ""))
    if ran and (seen := powers(report).get(part)):
        parts.append(words.format(number(seen[0]), power_words(seen[1])))
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


# --- The privacy block and section of a model card.


def privacy_block(report: AuditReport, facts: Mapping[str, str] = {}) -> dict[str, Any]:
    """Return the value of ``privacy`` in the YAML of a model card.

    Args:
        report: of the training.
        facts: statements of the owner, from `card_facts.read_facts`.

    Returns:
        Plain values, without those that are unknown.

    Example:
        >>> from huggingface_hub import ModelCardData  # doctest: +SKIP
        >>> data = ModelCardData(license="mit", privacy=privacy_block(report))  # doctest: +SKIP
    """
    root, seen = report.verdict.root, report.trainings
    block = {
        "guarantee": standing(report),
        "audit_outcome": report.verdict.outcome,
        "finding": root.finding if root else None,
        "accepted_findings": list(report.verdict.allowed) or None,
        "epsilon_that_holds": report.epsilon_that_holds if report.epsilon_refuted_by else None,
        "epsilon_claimed": report.claimed_epsilon,
        "epsilon_spent": None if refutes_mechanism(report) else report.epsilon_spent,
        "accounting": _accounting(report),
        "epsilon_proved_at_least": report.epsilon_lower,
        "epsilon_proved_at_planned_end": report.epsilon_lower_at_end,
        "epsilon_not_excluded": report.epsilon_not_excluded,
        "epsilon_as_measured": measured_words(report) or None,
        "logged_without_noise": list(report.published) or None,
        "delta": report.delta,
        "neighboring_data_sets": adjacency_words(report),
        "mechanism": mechanism(report),
        "noise_multiplier": claimed(report, "noise_multiplier"),
        "clipping_norm": claimed(report, "max_grad_norm"),
        "steps": report.steps if seen is None else None,
        "trainings": None if seen is None else seen.trainings,
        "audited_by": f"lightning-audit {report.environment.get('lightning-audit', __version__)}",
        "report_sha256": digest_of(report),
        "stated_by_the_owner": dict(facts) or None,
    }
    return {name: plain(value) for name, value in block.items() if value is not None}


def privacy_section(
    report: AuditReport,
    facts: Mapping[str, str] = {},
    name: str = "this model",
) -> str:
    """Return the section "Privacy" of a model card as Markdown.

    Args:
        report: of the training.
        facts: statements of the owner, from `card_facts.read_facts`.
        name: of the model.
    """
    return "## Privacy\n\n" + body(privacy_card(report, facts, name), level=3)


# --- A privacy card as Markdown, with the YAML of a model card at its start.

#: Before a text that the owner states.
STATED = "▢"
_LEGEND = (
    f"{STATED} is stated by the owner and cannot be measured. All else is from the report of the "
    "audit."
)


def as_markdown(report: AuditReport, facts: Mapping[str, str], name: str) -> str:
    """Return the card: YAML with the key ``privacy``, then text."""
    card = privacy_card(report, facts, name)
    block = {"privacy": privacy_block(report, facts)}
    front = yaml.safe_dump(block, sort_keys=False, allow_unicode=True, width=100)
    title = f"# Privacy card: {in_markdown(name)}"
    return f"---\n{front}---\n\n{title}\n\n{body(card, level=2)}"


def body(card: Mapping[str, Any], level: int) -> str:
    """Return the text of a card, see `privacy_card`, with headings of a level and below."""
    sections: dict[str, Iterable[str]] = {
        "Is the claim true?": (
            "| question | answer | certainty |",
            "|---|---|---|",
            *(
                f"| {question} | {sign} {in_markdown(answer)} | {in_markdown(certainty)} |"
                for question, sign, answer, certainty in card["answers"]
            ),
            "",
            " ".join(map(in_markdown, card["epsilons"])),
        ),
        "What this does not cover": (
            f"- {in_markdown(item)}" for item in (*card["never"], *card["not_examined"])
        ),
        "Context": _table(card["rows"]["context"]),
        "Governance": _table(card["rows"]["governance"]),
        "Evidence": (
            *(f"- {title}: {in_markdown(text)}" for title, text in card["evidence"]),
            "- Check it again: `lightning-audit check report.json`",
        ),
    }
    said = f"**{card['outcome']}.** {in_markdown(card['verdict'])} {in_markdown(card['meaning'])}"
    lines = [said, "", _LEGEND, "", *_table(card["rows"]["guarantee"])]
    for title, rows in sections.items():
        lines += ["", f"{'#' * level} {title}", "", *rows]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[CardRow]) -> Iterator[str]:
    yield "| | | asked by |"
    yield "|---|---|---|"
    for row in rows:
        sign = f"{STATED} " if row.stated and row.text else ""
        text = in_markdown(row.text) if row.text else f"*{NOT_STATED}*"
        yield f"| **{in_markdown(row.title)}** | {sign}{text} | {', '.join(row.asked_by)} |"


# --- A privacy card as an HTML page without script or request.


def as_page(report: AuditReport, facts: Mapping[str, str], name: str) -> str:
    """Return the card as a page of one file.

    Args:
        report: of the training.
        facts: what `read_facts` returned.
        name: of the training.
    """
    signs = {"stated": STATED, "not_stated": NOT_STATED}
    return rendered("card.html.j2", False, card=privacy_card(report, facts, name), **signs)
