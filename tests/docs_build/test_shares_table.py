from __future__ import annotations

import math

import pytest
from shares_table import PAGE, shown, table

from lightning_audit.checks.check import REGISTRY, Check, share, shares


def test_the_shares_that_the_page_shows_are_those_of_the_registry() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert shown(text) == table(), "run `python docs/build/shares_table.py`"


def test_the_table_has_every_share_once() -> None:
    rows = [line.strip("| \n").split(" | ") for line in table().splitlines()[2:]]
    named = [name for _, names in rows for name in names.split(", ")]
    assert sorted(named) == sorted(f"`{name}`" for name in (*shares(), *shares(warns=True)))
    told = math.fsum(float(share) * (names.count(",") + 1) for share, names in rows[:-1])
    assert told == pytest.approx(math.fsum(shares().values()), rel=1e-3)


def test_a_check_that_is_added_has_its_share_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "made.up", Check("made.up", "nothing", weight=7))
    assert f"| {share(REGISTRY['made.up']):.3g} | `made.up` |\n" in table()
