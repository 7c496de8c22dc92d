"""A privacy card as Markdown, with the YAML of a model card at its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import yaml

from lightning_audit.card.card_content import CardRow, PrivacyCard, privacy_card
from lightning_audit.card.model_card import privacy_block, registry_entry
from lightning_audit.files.printable import in_markdown
from lightning_audit.results.audit_report import AuditReport

#: Before a text that the owner states.
STATED = "▢"
_LEGEND = (
    f"{STATED} is stated by the owner and cannot be measured. All else is from the report of the "
    "audit."
)


def as_markdown(report: AuditReport, facts: Mapping[str, str], name: str) -> str:
    """Return the card: YAML with the key ``privacy``, then text."""
    card = privacy_card(report, facts, name)
    front = as_yaml({"privacy": privacy_block(report, facts)})
    entry = as_yaml(registry_entry(report, facts))
    title = f"# Privacy card: {in_markdown(name)}"
    registry = (
        "## Entry of the OpenDP deployments registry\n\nAs far as it is known:\n\n"
        f"{_fenced(entry)}\n"
    )
    return f"---\n{front}---\n\n{title}\n\n{body(card, level=2)}\n{registry}"


def body(card: PrivacyCard, level: int) -> str:
    """Return the card's text, with headings of a level and below."""
    mark = "#" * level
    lines = [
        f"**{card.outcome}.** {in_markdown(card.verdict)} {in_markdown(card.meaning)}",
        "",
        _LEGEND,
        "",
        *_table(card.rows["guarantee"]),
        "",
        f"{mark} Is the claim true?",
        "",
        "| question | answer | certainty |",
        "|---|---|---|",
        *(
            f"| {a.question} | {a.sign} {in_markdown(a.answer)} | {in_markdown(a.certainty)} |"
            for a in card.answers
        ),
        "",
        " ".join(in_markdown(sentence) for sentence in card.epsilons),
        "",
        f"{mark} What this does not cover",
        "",
        *(f"- {in_markdown(item)}" for item in (*card.never, *card.not_examined)),
        "",
        f"{mark} Context",
        "",
        *_table(card.rows["context"]),
        "",
        f"{mark} Governance",
        "",
        *_table(card.rows["governance"]),
        "",
        f"{mark} Evidence",
        "",
        *(f"- {title}: {in_markdown(text)}" for title, text in card.evidence),
        "- Check it again: `lightning-audit check report.json`",
    ]
    return "\n".join(lines) + "\n"


def as_yaml(value: object) -> str:
    """Return plain values as YAML, in their order."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return text


def _table(rows: Sequence[CardRow]) -> Iterator[str]:
    yield "| | | asked by |"
    yield "|---|---|---|"
    for row in rows:
        sign = f"{STATED} " if row.stated and row.known else ""
        text = in_markdown(row.text) if row.known else f"*{row.text}*"
        yield f"| **{in_markdown(row.title)}** | {sign}{text} | {', '.join(row.asked_by)} |"


def _fenced(text: str) -> str:
    """Return text in a fence that none of its lines closes."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}yaml\n{text}{fence}"
