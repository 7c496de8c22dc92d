from __future__ import annotations

import pytest
from checks_page import PAGE
from checks_table import table

from lightning_audit.checks.check import REGISTRY, Check


def test_the_docs_page_ends_with_the_table_of_the_registry() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.endswith(f"\n\n{table()}"), "run `python docs/build/checks_page.py`"


def test_a_check_that_is_added_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "made.up", Check("made.up", "nothing that exists"))
    assert "| `made.up` | nothing that exists |\n" in table()
