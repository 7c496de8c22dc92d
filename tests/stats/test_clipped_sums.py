"""What each gradient adds to a clipped sum is solved, or said to be unclear."""

from typing import Any

import numpy as np
import pytest

from lightning_audit.stats.clipped_sums import parts_of_sum


def rows_and_norms(count: int, entries: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, entries)) * rng.exponential(size=(count, 1))
    return rows, np.linalg.norm(rows, axis=1)


@pytest.mark.parametrize("seed", range(5))
def test_the_factors_are_those_of_any_clipping(seed):
    rows, norms = rows_and_norms(12, 100, seed)
    parts = np.random.default_rng(seed).uniform(0.2, 3.0, size=12)
    relation, found = parts_of_sum(rows, norms, (parts / norms) @ rows)
    assert relation == "linear"
    assert found == pytest.approx(parts, rel=1e-6)


def test_opacus_rule_needs_no_system():
    rows, norms = rows_and_norms(60, 20)  # which is not determined
    assert parts_of_sum(rows, norms, (1.0 / np.maximum(norms, 1.0)) @ rows)[0] == "rule"
    assert parts_of_sum(rows, norms, (2.0 / norms) @ rows)[0] == "unclear"


def test_what_is_not_made_of_the_rows_is_other_and_names_no_row():
    rows, norms = rows_and_norms(12, 100)
    strange = np.random.default_rng(9).normal(size=100)
    relation, found = parts_of_sum(rows, norms, rows.sum(axis=0) + 0.3 * strange)
    assert relation == "other"
    assert not found.any()


def test_copies_of_a_record_determine_no_factors():
    rows, norms = rows_and_norms(6, 100)
    twice, sizes = np.concatenate([rows, rows]), np.concatenate([norms, norms])
    assert parts_of_sum(twice, sizes, (3.0 / sizes) @ twice)[0] == "unclear"


def test_a_row_that_shows_at_no_entry_is_not_judged():
    rows, norms = rows_and_norms(6, 100)
    rows[2], norms[2] = 0.0, 1e6  # a canary's spike elsewhere
    relation, found = parts_of_sum(rows, norms, rows.sum(axis=0))
    assert relation in ("rule", "linear")
    assert found[2] == 0.0


def test_what_a_mask_hides_is_no_part_of_what_a_row_adds():
    rows, norms = rows_and_norms(6, 200)
    mask = np.arange(200) % 2
    own = np.linalg.norm(rows * mask, axis=1)
    relation, found = parts_of_sum(rows, norms, (1.0 / own) @ (rows * mask))
    assert relation == "linear"
    assert found.max() <= 1.0 + 1e-9
