from __future__ import annotations

import dataclasses
import re
from typing import Any

from checked_reports import checked, hostile, of_every_outcome, unreadable, violated
from made_report import made_report
from markdown_it import MarkdownIt

from lightning_audit.cli.formats import MARKER, MOST_BYTES, Remark, as_markdown

#: Tags that the page itself uses.
TAGS = {"details", "/details", "summary", "/summary", "b", "/b"}


def tokens(text: str) -> list[Any]:
    """The tokens of a Markdown parser with the tables of GitHub, inner ones too."""
    found = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [inner for token in found for inner in (token, *(token.children or []))]


def cells(text: str) -> list[list[str]]:
    rows: list[list[str]] = []
    for token, after in zip(found := tokens(text), found[1:], strict=False):
        if token.type == "tr_open":
            rows.append([])
        if token.type in ("td_open", "th_open"):
            rows[-1].append(after.content)
    return rows


def test_the_worst_training_is_the_first_row_of_the_table() -> None:
    head, *rows = cells(as_markdown(of_every_outcome()))
    assert head[:3] == ["training", "verdict", "proved ≥"]
    assert [row[0] for row in rows] == ["half", "short", "cut", "fine"]
    assert rows[0] == ["half", "❌ VIOLATION", "1.5", "3", "8", "100"]
    assert rows[2][2:] == ["-"] * 4


def test_the_headline_has_outcome_number_and_reason() -> None:
    first, second, *_ = as_markdown(of_every_outcome()).splitlines()
    assert first == MARKER
    reason = "Too little noise is added (noise)"
    assert second == f"### ❌ Privacy audit: VIOLATION (1 of 4 trainings): {reason}"
    remark = Remark("max-epsilon", "VIOLATION", "VIOLATION of --max-epsilon 2: epsilon spent 3")
    second = as_markdown([checked(made_report(), "lit", remark)]).splitlines()[1]
    assert second.endswith("VIOLATION (lit): VIOLATION of --max-epsilon 2: epsilon spent 3")


def test_the_lines_of_a_refusal_are_one_paragraph() -> None:
    text = as_markdown([unreadable("cut", "it contradicts itself:\n  steps is 7\nTrain again.")])
    assert text.splitlines()[1].endswith("INCONCLUSIVE (cut): it contradicts itself:")
    assert "<b>cut</b>: it contradicts itself: steps is 7 Train again." in text.splitlines()


def test_a_finding_has_severity_place_and_what_to_look_at() -> None:
    text = as_markdown([checked(violated())])
    assert "<details><summary><b>lit</b>: Too little noise is added</summary>" in text
    lists = [token.content for token in tokens(text) if token.type == "inline"]
    assert "**Severity:** critical: the guarantee is void" in lists
    assert "**Code:** Half.add_noise at src/half.py:41" in lists
    assert "**First seen:** after 8 of 100 steps" in lists


def test_foreign_text_makes_no_tag_link_mention_or_cell() -> None:
    text = as_markdown(hostile())
    found = tokens(text)
    html = " ".join(token.content for token in found if token.type.startswith("html_"))
    tags = {tag.split()[0] for tag in re.findall(r"<([^>]+)>", html.replace(MARKER, ""))}
    assert tags <= TAGS
    assert not {"link_open", "code_inline", "image", "fence"} & {token.type for token in found}
    assert "@" not in text
    assert {len(row) for row in cells(text)} == {6}
    assert text.replace("\n", "").isprintable()


def test_the_summary_of_many_findings_stays_below_the_limit_and_says_what_is_left_out() -> None:
    report = violated()
    long = "🙂" * 10_000
    checks = tuple(dataclasses.replace(c, message=long) for c in report.checks)
    every = [checked(dataclasses.replace(report, checks=checks), f"{i}") for i in range(700)]
    text = as_markdown(every)
    assert 0.9 * MOST_BYTES < len(text.encode()) < MOST_BYTES < 2**20
    shown = text.count("<details>")
    assert f"{700 - shown} more sections are left out." in text
    assert "200 more reports are left out." in text
