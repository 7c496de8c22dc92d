from __future__ import annotations

import pytest
import readme_rows
from readme_rows import PARTS, README, REPOSITORY, costs, made, shown, topics

from lightning_audit.checks.check import QUESTIONS, REGISTRY


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_readme_is_what_registry_and_docs_say(name: str) -> None:
    text = README.read_text(encoding="utf-8")
    assert shown(text, name) == PARTS[name](), "run `python docs/build/readme_rows.py`"


def test_what_is_made_replaces_the_parts_alone() -> None:
    text = README.read_text(encoding="utf-8")
    for name in PARTS:
        changed = text.replace(shown(text, name), "old\n")
        assert changed != text
        assert made(changed) == text


def test_the_topics_are_six_with_their_questions_and_titles_of_their_own_checks() -> None:
    _, _, *rows = topics().splitlines()
    assert len(rows) == len(QUESTIONS) == 6
    for row, (topic, question) in zip(rows, QUESTIONS.items(), strict=True):
        assert row.startswith(f"| {topic} | {question} | ")
        titles = row.split(" | ")[2].removesuffix(" |").split("; ")
        assert len(titles) >= 2
        assert set(titles) <= {c.failed_title for c in REGISTRY.values() if c.topic == topic}


def test_a_run_costs_its_steps_and_its_first_examination(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "| training | without an audit | audited, without the first examination | the first |"
    row = "| a net, 9 steps (needs `x`) | 10.0 s | 1.25 | 2.5 s |"
    (tmp_path / "benchmarks.md").write_text(f"{head}\n|---|---|---|---|\n{row}\n\nMore.\n")
    monkeypatch.setattr(readme_rows, "DOCS", tmp_path)
    assert costs().splitlines()[2:] == ["| a net, 9 steps | 10.0 s | 15.0 s | 1.5 |"]


def test_every_run_of_the_benchmarks_is_shown() -> None:
    page = (REPOSITORY / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = page.split("audited, without the first examination")[1].split("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(costs().splitlines()) - 2 > 0
