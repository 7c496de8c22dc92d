"""Batches count when their rate is known, and what cannot be read says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lightning_audit.checks.sampling import DrawnBatches

RECORDS, RATE = 500, 0.04


def poisson(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(RECORDS) < RATE).tolist() for _ in range(count)]


def taken(batches: list[Any], rate: float | None = RATE) -> DrawnBatches:
    drawn = DrawnBatches(RECORDS, 0.05)
    for batch in batches:
        drawn.take(batch)
    drawn.rate = rate
    return drawn


def test_new_batches_are_fine() -> None:
    found = taken(poisson(300)).result()
    assert found.status == "ok"


@pytest.mark.parametrize("known_first", [True, False])
def test_an_epoch_that_comes_again_is_found(known_first: bool) -> None:
    epoch = poisson(25)
    drawn = DrawnBatches(RECORDS, 0.05)
    drawn.rate = RATE if known_first else None
    for batch in (*epoch, *(list(reversed(b)) for b in epoch)):  # in any order
        drawn.take(batch)
    drawn.rate = RATE
    found = drawn.result()
    assert (found.status, found.evidence["of"]) == ("violated", "again")
    assert found.message.startswith("25 of 50 batches")


def test_records_in_every_batch_are_found() -> None:
    found = taken([sorted({*batch, 7}) for batch in poisson(60)]).result()
    assert (found.status, found.evidence["of"]) == ("violated", "favoured")


@pytest.mark.parametrize(
    ("batches", "rate", "why"),
    [
        ([["a"]], RATE, "not lists of record numbers"),
        ([[[1], [1, 2]]], RATE, "not lists of record numbers"),
        ([[RECORDS]], RATE, "not lists of record numbers"),
        ([iter([1])], RATE, "not lists of record numbers"),
        ([[1, 2]], None, "the sample rate is unknown"),
        ([[1, 2]], 1.0, "all records are taken"),
    ],
)
def test_what_cannot_be_told_says_why(batches: list[Any], rate: float | None, why: str) -> None:
    found = taken(batches, rate).result()
    assert found.status == "not_run"
    assert why in found.message


def test_empty_batches_are_batches() -> None:
    assert taken([[], [], [3]], 0.0005).result().status == "ok"
