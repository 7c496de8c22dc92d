from __future__ import annotations

import pytest
from checks_page import PAGE, markdown

from lightning_audit.checks.check import QUESTIONS, REGISTRY, Check


def test_docs_page_is_made_of_the_registry() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run `python docs/build/checks_page.py`"


def test_each_check_has_a_row_below_its_topic() -> None:
    _, *sections, findings = markdown().split("\n## ")
    assert findings.startswith("All findings\n")
    assert [section.split("\n")[0] for section in sections] == list(QUESTIONS)
    for check in REGISTRY.values():
        having = [
            section for section in sections if f"| `{check.name}` | {check.title} " in section
        ]
        assert [section.split("\n")[0] for section in having] == [check.topic]


def test_a_check_of_another_package_has_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "made.up", Check("made.up", "nothing that exists"))
    *_, others, findings = markdown().split("\n## ")
    assert others.startswith("Other packages\n")
    assert "| `made.up` | made.up | made.up | nothing that exists |  |\n" in others
    assert "| `made.up` | nothing that exists |\n" in findings
