from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from declared import fault_of

from lightning_audit.checks.accounting import ACCOUNTING
from lightning_audit.checks.check import Check
from lightning_audit.checks.sampling import (
    EXPECTED_BATCH_SIZE,
    NOT_POISSON,
    REPEATED,
    SAMPLING_RATE,
)


def divisor(cost: float, claimed: float | None, *, private: bool = True) -> dict[str, Any]:
    return {
        "private_dataset_size": private,
        "claimed_epsilon": claimed,
        "epsilon_of_divisor": cost,
    }


@pytest.mark.parametrize(
    ("check", "evidence", "fault"),
    [
        (ACCOUNTING, {"epsilon_spent": 2.9, "claimed_epsilon": 3.0}, None),
        (ACCOUNTING, {"epsilon_spent": 3.0, "claimed_epsilon": 3.0}, None),
        (ACCOUNTING, {"epsilon_spent": 3.5, "claimed_epsilon": 3.0}, "wrong_accounting"),
        (ACCOUNTING, {"epsilon_spent": math.inf, "claimed_epsilon": 3.0}, "wrong_accounting"),
        (
            ACCOUNTING,
            {"epsilon_spent": 6.0, "claimed_epsilon": 3.0, "epsilon_by_removal": 2.9},
            "replacement_accounted_as_removal",
        ),
        # The claim would not hold for a record more or less either.
        (
            ACCOUNTING,
            {"epsilon_spent": 8.0, "claimed_epsilon": 3.0, "epsilon_by_removal": 3.9},
            "wrong_accounting",
        ),
        (NOT_POISSON, {"poisson": True}, None),
        (NOT_POISSON, {"poisson": False}, "not_poisson"),
        (SAMPLING_RATE, {"loader_rate": 0.1005, "accounted_rate": 0.1}, None),
        (SAMPLING_RATE, {"loader_rate": 0.102, "accounted_rate": 0.1}, "sampled_too_often"),
        (SAMPLING_RATE, {"loader_rate": 0.05, "accounted_rate": 0.1}, None),
        (REPEATED, {"processes": 1}, None),
        (REPEATED, {"processes": 2}, "sampled_by_every_process"),
        (EXPECTED_BATCH_SIZE, divisor(5.0, 3.0, private=False), None),
        (EXPECTED_BATCH_SIZE, divisor(5.0, None), None),
        (EXPECTED_BATCH_SIZE, divisor(2.0, 3.0), None),
        (EXPECTED_BATCH_SIZE, divisor(5.0, 3.0), "divisor_tells_the_number_of_records"),
    ],
)
def test_what_is_wrong_and_which_fault_it_is(
    check: Check, evidence: dict[str, Any], fault: str | None
) -> None:
    assert fault_of(check, evidence) == fault


def test_unknown_sampling_blocks_a_pass_only_where_subsampling_is_accounted_for() -> None:
    blocks = NOT_POISSON.blocks
    assert blocks is not None
    unknown = NOT_POISSON.not_run("how it draws is unknown", {"accounted_rate": 0.1})
    assert blocks(unknown) == (
        "how it draws is unknown; if it does, set allow='sampling.not_poisson'"
    )
    assert blocks(dataclasses.replace(unknown, evidence={"accounted_rate": None})) == ""
    assert blocks(dataclasses.replace(unknown, status="ok")) == ""
    assert SAMPLING_RATE.blocks is None


def test_what_a_private_size_costs_within_the_claim_is_unpaid_and_blocks_a_pass() -> None:
    blocks = EXPECTED_BATCH_SIZE.blocks
    assert blocks is not None
    found = EXPECTED_BATCH_SIZE.judged(divisor(2.0, 3.0), "it tells", "", "")
    found = dataclasses.replace(found, advice="set it")
    assert blocks(found) == "it tells: the epsilon of both together is unknown; set it"
    public = divisor(2.0, 3.0, private=False)
    assert blocks(dataclasses.replace(found, evidence=public)) == ""
    assert blocks(dataclasses.replace(found, status="violated")) == ""
