"""Samples and claims as arguments: what is taken, and what is refused in which words."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.stats.output_estimates import claim_of_both_orders, sample_pair
from lightning_audit.stats.tradeoff import SubsampledGaussianTradeoff


def test_samples_of_any_shape_are_rows_of_floats() -> None:
    p, q = sample_pair([True, False, True], [3, 4])
    assert p.tolist() == [[1.0], [0.0], [1.0]]
    assert q.tolist() == [[3.0], [4.0]]
    p, q = sample_pair(np.arange(12).reshape(2, 3, 2), np.zeros((5, 6)))
    assert (p.shape, q.shape) == ((2, 6), (5, 6))
    assert p[1].tolist() == [6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("samples_p", "samples_q", "message"),
    [
        ([1.0, np.nan], [1.0, 2.0], r"samples_p\[1\] is not finite \(1 of 2"),
        ([1.0, 1e200], [1.0, 2.0], "samples_p holds numbers beyond 1e.100"),
        ([1.0, 2.0], [1.0], r"samples_q has shape \(1,\), must hold at least 2"),
        (3.0, [1.0], r"samples_p has shape \(\), must hold at least 2"),
        ([1.0, 2.0], ["a", "b"], "samples_q has dtype <U1, must hold real"),
        (np.ones((5, 2)), np.ones(5), "2 numbers a sample and samples_q 1"),
        (np.ones((5, 0)), np.ones(5), "a sample must hold a number"),
    ],
)
def test_what_are_no_samples_is_refused(samples_p, samples_q, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_pair(samples_p, samples_q)


def test_a_claim_of_one_order_of_the_worlds_is_refused_where_it_says_so() -> None:
    both = SubsampledGaussianTradeoff(1.0, 0.1)
    assert claim_of_both_orders(both) is both
    for direction in ("add", "remove"):
        with pytest.raises(ValueError, match=f"direction '{direction}' only, must be of both"):
            claim_of_both_orders(SubsampledGaussianTradeoff(1.0, 0.1, direction))
