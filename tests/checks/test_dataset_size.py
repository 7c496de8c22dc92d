from __future__ import annotations

import dataclasses
import math

import pytest

from lightning_audit.checks.sampling import EXPECTED_BATCH_SIZE, Promise, batch_size_result
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.divergences import isotropic_pair_epsilon

PUBLIC = Promise(3.0, 1e-5)
PRIVATE = dataclasses.replace(PUBLIC, private_size=True)


def of_512(promise: Promise, coordinates: int = 100_000) -> CheckResult:
    """One record less, and the divisor is 15 and not 16."""
    result = batch_size_result(16, 512, 1 / 32, coordinates, promise)
    assert result is not None
    return result


def blocks(result: CheckResult) -> str:
    assert EXPECTED_BATCH_SIZE.blocks is not None
    return EXPECTED_BATCH_SIZE.blocks(result)


@pytest.mark.parametrize(
    ("expected", "records", "rate", "of_neighbours"),
    [
        (16, 512, 1 / 32, [15]),  # a round number of records: one less, and the divisor is smaller
        (255, 59_999, 1 / 235, []),
        (255, 60_159, 1 / 235, [256]),  # one more, and it is larger
    ],
)
def test_divisor_of_neighbouring_data_sets_is_told_and_never_fails(
    expected: int, records: int, rate: float, of_neighbours: list[int]
) -> None:
    result = batch_size_result(expected, records, rate, 10**9, PUBLIC)
    assert result is not None
    assert result.status == "ok"
    assert not blocks(result)
    assert result.evidence["of_neighbours"] == of_neighbours
    assert ("set expected_batch_size to a constant" in result.message) == bool(of_neighbours)
    assert ("epsilon_of_divisor" in result.evidence) == bool(of_neighbours)


def test_divisor_that_was_set_by_hand_is_not_remarked_upon() -> None:
    assert batch_size_result(20, 512, 1 / 32, 1000, PRIVATE) is None


@pytest.mark.parametrize("promise", [PUBLIC, PRIVATE])
def test_the_cost_is_that_of_telling_the_noise_of_both_divisors_apart(promise: Promise) -> None:
    cost = isotropic_pair_epsilon(15 / 16, 100_000, 1e-5)
    result = of_512(promise)
    assert result.evidence["epsilon_of_divisor"] == pytest.approx(cost, rel=1e-9)
    assert f"alone costs epsilon {cost:.4g} at delta 1e-05" in result.message


def test_of_two_neighbours_the_costlier_one_counts() -> None:
    result = batch_size_result(2, 4, 0.5, 50, PRIVATE)
    assert result is not None
    assert result.evidence["of_neighbours"] == [1]
    every = batch_size_result(4, 4, 1.0, 50, PRIVATE)
    assert every is not None
    assert every.evidence["of_neighbours"] == [3, 5]
    assert every.evidence["epsilon_of_divisor"] == isotropic_pair_epsilon(4 / 3, 50, 1e-5)


def test_a_private_number_of_records_is_violated_where_the_divisor_alone_costs_more() -> None:
    result = of_512(PRIVATE)
    assert (result.status, result.kind) == ("violated", "accounting")
    assert not blocks(result)
    assert "by 15, and the number of records is private: the different size of" in result.message
    assert result.message.endswith("(1e+05 parameters times steps), and 3 is claimed")
    assert "PrivacyClaim(expected_batch_size=...)" in result.advice


def test_a_cost_within_a_private_claim_is_neither_violated_nor_paid_for() -> None:
    result = of_512(PRIVATE, coordinates=10)
    assert result.evidence["epsilon_of_divisor"] < 3.0
    assert result.status == "ok"
    assert blocks(result)


def test_without_a_claim_nothing_is_violated() -> None:
    result = of_512(dataclasses.replace(PRIVATE, claimed_epsilon=None))
    assert result.status == "ok"
    assert blocks(result)


def test_a_divisor_that_no_record_changes_is_free_where_their_number_is_private() -> None:
    result = batch_size_result(255, 59_999, 1 / 235, 10**9, PRIVATE)
    assert result is not None
    assert result.status == "ok"
    assert not blocks(result)
    assert result.message == "one record more or less does not change the divisor of the gradients"


def test_replacing_a_record_costs_nothing() -> None:
    result = of_512(dataclasses.replace(PUBLIC, adjacency="replace_one"))
    assert result.status == "ok"
    assert "epsilon_of_divisor" not in result.evidence
    assert result.message.endswith("= 16, which replacing a record does not change")


def test_a_neighbour_without_a_divisor_is_told_apart_surely() -> None:
    result = batch_size_result(1, 1, 1.0, 10, PRIVATE)
    assert result is not None
    assert result.evidence["epsilon_of_divisor"] == math.inf
    assert result.status == "violated"


def test_before_the_first_step_nothing_is_spent() -> None:
    result = of_512(PRIVATE, coordinates=0)
    assert result.evidence["epsilon_of_divisor"] == 0.0
    assert result.status == "ok"
