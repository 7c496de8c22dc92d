"""The response of the recovered draws is the inverse of the matrix of coefficients."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg

from lightning_audit.stats.dependence import inverse_response, is_recoverable, steps_to_forget


def matrix(coefficients: tuple[float, ...], steps: int) -> np.ndarray:
    column = np.zeros(steps)
    column[: len(coefficients)] = coefficients[:steps]
    return linalg.toeplitz(column, np.zeros(steps))


@pytest.mark.parametrize("coefficients", [(1.0, -0.5, -0.25), (2.0, 0.3), (1.0, -1.0), (1.0, -2.0)])
def test_the_response_is_the_first_column_of_the_inverse(coefficients: tuple[float, ...]) -> None:
    inverse = np.linalg.inv(matrix(coefficients, 30))
    assert inverse_response(coefficients, 30) == pytest.approx(inverse[:, 0], rel=1e-9)


@pytest.mark.parametrize(
    ("coefficients", "recovered"),
    [
        ((1.0, -0.5, -0.25), True),
        ((1.0, -1.0), True),  # DP-FTRL: the noise of the sum so far is one draw
        ((1.0, -2.0, 1.0), True),
        ((1.0, 0.5), True),
        ((1.0, -1.1), False),
        ((0.5, -1.0), False),
        ((1.0, -1.0, -1.0), False),
    ],
)
def test_draws_are_recovered_where_no_rest_grows(
    coefficients: tuple[float, ...], recovered: bool
) -> None:
    assert is_recoverable(coefficients) is recovered


def test_square_root_factorisation_is_recoverable() -> None:
    """Of the prefix sums: of (1 - x)^(1/2), in full (Fichtenberger et al. 2023)."""
    k = np.arange(1, 500)
    full = np.cumprod([1.0, *(1.0 - 1.5 / k)])
    assert full[:3] == pytest.approx([1.0, -0.5, -0.125])
    assert is_recoverable(tuple(full))


def test_what_is_unknown_is_forgotten_when_it_is_said_to_be() -> None:
    c, steps = (1.0, -0.5, -0.25), 200
    forgets = steps_to_forget(c)
    assert forgets is not None
    # The first ten draws are not known: what is left of them in the later ones that are recovered.
    draws = np.random.default_rng(0).standard_normal((10, 400))
    full = matrix(c, steps)
    read = full[10:, :10] @ draws
    left = np.linalg.solve(full[10:, 10:], read)
    assert np.abs(left[:3]).max() > 0.5
    assert left[forgets:].std(axis=1).max() < 0.02
    assert steps_to_forget((1.0, -1.0)) is None
