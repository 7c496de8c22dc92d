from __future__ import annotations

import pytest

from lightning_audit.checks.check import DECLARED, GUESSED_COINS, REGISTRY


def test_checks_of_any_report_are_found_by_name() -> None:
    assert DECLARED[GUESSED_COINS.name] is GUESSED_COINS
    assert DECLARED["noise"] is REGISTRY["noise"]
    assert GUESSED_COINS.name not in REGISTRY
    with pytest.raises(KeyError):
        DECLARED["unheard.of"]
