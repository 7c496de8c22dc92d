from __future__ import annotations

import math

import pytest

from lightning_audit.checks.accounting import accounting_result, exceeds


@pytest.mark.parametrize(
    ("spent", "claimed", "status"),
    [
        (1.0, 1.0, "ok"),
        (0.5, 8.0, "ok"),
        (1.0099, 1.0, "ok"),  # composition's own inaccuracy: 1 %
        (1.0101, 1.0, "violated"),
        (8.079, 8.0, "ok"),
        (8.081, 8.0, "violated"),
        (0.02, 0.01, "violated"),
        (0.0099, 1e-9, "violated"),
        (math.inf, 8.0, "violated"),
    ],
)
def test_steps_may_cost_the_claim_and_the_inaccuracy_of_composition(
    spent: float, claimed: float, status: str
) -> None:
    result = accounting_result(spent, claimed, 1e-5, "the accountant")
    assert (result.status, result.kind) == (status, "accounting")
    assert exceeds(spent, claimed) == (status == "violated")
    assert bool(result.advice) == (status == "violated")


def test_numbers_of_the_comparison_are_told() -> None:
    result = accounting_result(9.0, 8.0, 1e-5, "the accountant")
    assert "epsilon 9 at delta 1e-05 as privacy loss distributions (spent)" in result.message
    assert result.message.endswith("the accountant says 8 (claimed)")
    assert result.evidence == {"epsilon_spent": 9.0, "claimed_epsilon": 8.0, "delta": 1e-5}


def test_what_replacing_costs_is_told_beside_what_removing_does() -> None:
    result = accounting_result(16.0, 8.0, 1e-5, "the accountant", 7.9)
    assert "epsilon 16 at delta 1e-05 if a record is replaced as privacy" in result.message
    assert result.evidence["epsilon_by_removal"] == 7.9
    assert "adding or removing one costs only 7.9, which is what Opacus'" in result.advice
    # Steps that cost too much in either way are wrong by their number.
    more = accounting_result(32.0, 8.0, 1e-5, "the accountant", 15.0)
    assert more.advice.startswith("stop earlier")


def test_steps_without_noise_are_told_to_get_some() -> None:
    advice = accounting_result(math.inf, 8.0, 1e-5, "the accountant").advice
    assert advice == "set noise_multiplier above 0"


@pytest.mark.parametrize(
    ("spent", "claimed", "why"),
    [(None, 8.0, "the sample rate is unknown"), (8.0, None, "no epsilon is claimed")],
)
def test_what_is_unknown_is_not_compared(
    spent: float | None, claimed: float | None, why: str
) -> None:
    result = accounting_result(spent, claimed, 1e-5, "the accountant")
    assert result.status == "not_run"
    assert why in result.message
