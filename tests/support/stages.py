"""Which stage of the tests runs a case, and what a simulation of fewer runs may miss."""

import math
from collections.abc import Iterable
from typing import Any

import pytest
from scipy import stats


def staged(
    quick: Iterable[Any] = (), heavy: Iterable[Any] = (), nightly: Iterable[Any] = ()
) -> list[Any]:
    """Values for `pytest.mark.parametrize`, each in the stage that runs it; tuples are cases."""
    stages = ((quick, ()), (heavy, (pytest.mark.heavy,)), (nightly, (pytest.mark.nightly,)))
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)
        for values, marks in stages
        for value in values
    ]


def most_failures(runs: int, rate: float, whole: int) -> int:
    """Failures of ``runs`` that a test of this rate seldom exceeds.

    As seldom, by the exact binomial distribution, as ``whole`` runs of it exceed their rate by
    three standard errors: a simulation of fewer runs fails no oftener where nothing is wrong.
    """
    limit = math.floor(whole * rate + 3 * math.sqrt(whole * rate * (1 - rate)))
    if runs == whole:
        return limit
    return int(stats.binom.isf(stats.binom.sf(limit, whole, rate), runs, rate))
