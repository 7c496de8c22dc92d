from __future__ import annotations

import pytest

from lightning_audit.checks.evidence import SHARES, WARNING_SHARES
from lightning_audit.checks.registry import REGISTRY, is_wrong


def test_every_check_by_e_process_is_registered() -> None:
    assert {*SHARES, *WARNING_SHARES} <= set(REGISTRY)


def test_a_rule_is_asked_only_of_a_check_that_has_one() -> None:
    with pytest.raises(KeyError, match="noise has an e-value"):
        is_wrong("noise", {})
    with pytest.raises(KeyError):
        is_wrong("no_dp", {})
