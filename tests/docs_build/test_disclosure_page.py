from __future__ import annotations

import dataclasses

import pytest
from disclosure_page import PAGE, markdown

from lightning_audit.checks.check import REGISTRY, Check
from lightning_audit.results.audit_report import AuditReport


def test_the_page_is_made_of_the_registry() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), (
        "run `python docs/build/disclosure_page.py`"
    )


def test_a_private_check_that_is_added_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Check("made.up", "nothing", weight=100, private=True, fine="fine", public=("rate",))
    monkeypatch.setitem(REGISTRY, "made.up", added)
    assert "| `made.up` | `log_e_value`: coarse | `rate` |\n" in markdown()


def test_every_field_of_a_report_has_a_row() -> None:
    names = {field.name for field in dataclasses.fields(AuditReport)}
    named = {"record", "other_records", "complete", "schema_version"}  # names and constants
    assert [name for name in sorted(names - named) if f"`{name}`" not in markdown()] == []
