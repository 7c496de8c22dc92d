from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lightning_audit.checks.sampling import NOT_POISSON, BatchCheck, sampling_results
from lightning_audit.results.audit_report import CheckResult

RECORDS, RATE = 512, 1 / 32


def check_of(batches: Any, records: int = RECORDS, rate: float = RATE) -> BatchCheck:
    check = BatchCheck(records, 1e-3)
    for t, batch in enumerate(batches):
        if t % 32 == 0:
            check.start_epoch()
        check.take(batch)
    return check


def results(check: BatchCheck, rate: float = RATE) -> dict[str, CheckResult]:
    found = sampling_results("unknown", "MySampler", None, rate, [], check)
    return {result.name: result for result in found}


def poisson(steps: int, rate: float = RATE, seed: int = 0) -> Iterator[list[int]]:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield np.flatnonzero(rng.random(RECORDS) < rate).tolist()


def shuffled(size: int = 16) -> Iterator[list[int]]:
    order = np.random.default_rng(0).permutation(RECORDS)
    for start in range(0, RECORDS, size):
        yield order[start : start + size].tolist()


def test_poisson_batches_of_an_unknown_sampler_are_found_to_agree() -> None:
    found = results(check_of(poisson(64)))
    assert [found[name].status for name in ("sampling.not_poisson", "sampling.rate")] == ["ok"] * 2
    assert "batches of MySampler agree with Poisson" in found["sampling.not_poisson"].message
    assert found["sampling.not_poisson"].share == NOT_POISSON.share


def test_a_shuffled_epoch_is_a_violation_with_what_to_write_instead() -> None:
    found = results(check_of(shuffled()))["sampling.not_poisson"]
    assert (found.status, found.kind) == ("violated", "accounting")
    assert "DPDataLoader.from_data_loader" in found.advice
    assert found.evidence["violated_at_step"] < 16


def test_a_few_batches_leave_it_open() -> None:
    found = results(check_of(poisson(4)))["sampling.not_poisson"]
    assert found.status == "not_run"
    assert "4 batches are too few or too small" in found.message


def test_batches_of_a_few_records_leave_it_open_however_many() -> None:
    found = results(check_of(poisson(300, rate=4 / RECORDS)), 4 / RECORDS)["sampling.not_poisson"]
    assert found.status == "not_run"


@pytest.mark.parametrize(("factor", "status"), [(1.5, "violated"), (1.0, "ok"), (0.5, "ok")])
def test_only_more_records_than_the_accountant_is_told_are_a_violation(
    factor: float, status: str
) -> None:
    found = results(check_of(poisson(128, rate=factor * RATE)))
    assert found["sampling.rate"].status == status
    assert found["sampling.not_poisson"].status == "ok"


def test_favoured_records_are_more_than_the_accountant_is_told() -> None:
    rng = np.random.default_rng(0)
    batches = (np.flatnonzero(rng.random(RECORDS // 4) < 4 * RATE) for _ in range(128))
    assert results(check_of(batches))["sampling.rate"].status == "violated"


def test_a_record_that_stands_twice_in_a_batch_is_a_violation() -> None:
    batches = [*poisson(64), [3, 4, 3]]
    found = results(check_of(batches))["sampling.not_poisson"]
    assert found.status == "violated"
    assert "contain a record twice" in found.message


@pytest.mark.parametrize(
    "batch", [["a", "b"], [(0, 1), (2, 3)], [-1, 2], [RECORDS], [0.5], iter([1, 2])]
)
def test_batches_that_are_no_record_numbers_are_left_open_with_the_reason(batch: Any) -> None:
    check = check_of([*poisson(64), batch, [1, 1]])
    found = results(check)["sampling.not_poisson"]
    assert found.status == "not_run"
    assert "not lists of record numbers" in found.message


def test_batches_of_tensors_and_empty_ones_are_read() -> None:
    batches = [torch.tensor(batch) for batch in poisson(60)]
    check = check_of([*batches, [], torch.tensor([], dtype=torch.long), [torch.tensor(3)]])
    assert check.obstacle == ""
    assert results(check)["sampling.not_poisson"].evidence["batches"] == 63


def test_rates_above_one_half_are_left_open() -> None:
    found = results(check_of(poisson(64, rate=0.6)), 0.6)["sampling.not_poisson"]
    assert found.status == "not_run"
    assert "too high to test" in found.message


def test_looks_at_the_rate_are_as_good_as_one() -> None:
    often, once = check_of([]), check_of(poisson(60, rate=1.3 * RATE))
    for batch in poisson(60, rate=1.3 * RATE):
        if often.batches % 32 == 0:
            often.start_epoch()
        often.take(batch)
        often.settle(RATE)
    once.settle(RATE)
    assert often._rate_wealth == pytest.approx(once._rate_wealth)


def test_threshold_is_that_of_the_share() -> None:
    found = results(check_of(shuffled()))["sampling.not_poisson"]
    assert found.log_e_value >= -math.log(0.01 * 1e-3)
