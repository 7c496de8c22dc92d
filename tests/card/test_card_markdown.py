"""The card as Markdown: YAML that a model card reads, and text that stays text."""

from __future__ import annotations

import pytest
import yaml
from checked_reports import HOSTILE, hostile, violated
from made_report import made_report
from markdown_it import MarkdownIt

from lightning_audit.card import FACTS, STATED, as_markdown, body, privacy_card
from lightning_audit.files import visible


def parts(text: str) -> tuple[dict[str, object], str]:
    """The YAML at the start, and the rest."""
    front, rest = text.removeprefix("---\n").split("\n---\n", 1)
    return yaml.safe_load(front), rest


def test_the_start_is_yaml_with_the_key_privacy() -> None:
    front, rest = parts(as_markdown(made_report(), {"harm": "low"}, "digits"))
    assert list(front) == ["privacy"]
    assert front["privacy"]["epsilon_claimed"] == 8.0
    assert rest.startswith("\n# Privacy card: digits\n")


def test_all_sections_and_tables_are_there_for_a_reader() -> None:
    html = MarkdownIt().enable("table").render(body(privacy_card(violated(), {}, "t"), level=2))
    assert html.count("<table>") == 4
    assert html.count("<em>not stated</em>") == len(FACTS)
    assert "Guarantee, claimed and refuted" in html


@pytest.mark.parametrize("text", [HOSTILE, "x" * 300, "a | b", "```\n---\n", "- x: {{ y }}"])
def test_foreign_text_is_shown_as_it_is(text: str) -> None:
    report = hostile()[0].report
    assert report is not None
    facts = dict.fromkeys(FACTS, visible(" ".join(text.split())))  # as they are read
    front, rest = parts(as_markdown(report, facts, text))
    assert front["privacy"]["stated_by_the_owner"] == facts
    page = MarkdownIt("commonmark", {"html": True}).enable("table")
    kinds = {t.type for token in page.parse(rest) for t in (token, *(token.children or ()))}
    assert not {kind for kind in kinds if kind.startswith(("html", "link", "image"))}
    rows = [line for line in rest.splitlines() if line.startswith("| **")]
    assert all(row.count(" | ") == 2 for row in rows)


def test_the_entry_of_the_registry_is_yaml_and_its_fence_is_not_closed_by_a_fact() -> None:
    facts = {"product": "weights ``` of a net", "curator": "us"}
    (fence,) = [
        token
        for token in MarkdownIt().parse(as_markdown(made_report(), facts, "t"))
        if token.type == "fence"
    ]
    entry = yaml.safe_load(fence.content)
    assert entry["deployment"]["product"]["description"] == "weights ``` of a net"


def test_what_the_owner_states_is_marked() -> None:
    text = body(privacy_card(made_report(), {"harm": "low", "unit": "a person"}, "t"), level=2)
    assert text.count(f"| {STATED} ") == 2
