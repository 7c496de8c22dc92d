from __future__ import annotations

from faults_page import PAGE, markdown


def test_docs_page_is_made_of_the_registry() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run `python docs/build/faults_page.py`"
