"""Draws of correlated noise are recovered, and what is not known of them is data for the tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_audit.checks.probes import Whitening
from lightning_audit.run.optimizers import to_arrays, to_tensors

C = (1.0, -0.5, -0.25)


def banded(draws: np.ndarray, coefficients: tuple[float, ...] = C) -> np.ndarray:
    """Noise of each step by its definition, draw by draw; ``[steps, n]``."""
    noise = np.zeros_like(draws)
    for t in range(len(draws)):
        for k, weight in enumerate(coefficients[: t + 1]):
            noise[t] += weight * draws[t - k]
    return noise


def draws(steps: int = 60, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((steps, width))


@pytest.mark.parametrize("coefficients", [C, (1.0, -1.0), (1.0, 0.2, 0.0, -0.7)])
def test_the_draws_of_each_step_come_back(coefficients: tuple[float, ...]) -> None:
    drawn, made = draws(), Whitening(coefficients)
    found = [made.draw(read) for read in banded(drawn, coefficients)]
    assert np.array(found) == pytest.approx(drawn, abs=1e-9)
    assert made.settled


def test_only_ratios_to_the_first_coefficient_count() -> None:
    drawn, made = draws(), Whitening((2.0, -1.0, -0.5))
    found = [made.draw(read) for read in banded(drawn)]
    assert np.array(found) == pytest.approx(drawn, abs=1e-9)


def test_a_rest_of_one_step_stands_beside_later_draws_as_the_response_says() -> None:
    drawn, made = draws(), Whitening(C)
    read = banded(drawn)
    read[10] += 3.0
    rest = np.array([made.draw(x) for x in read]) - drawn
    assert rest[:10] == pytest.approx(0.0, abs=1e-9)
    assert rest[10:13, 0] == pytest.approx([3.0, 1.5, 1.5])
    assert rest[-1] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("lost", ["not finite", "not read", "before"])
def test_draws_that_are_not_known_are_forgotten_after_some_steps(lost: str) -> None:
    drawn, made = draws(), Whitening(C)
    read, first = banded(drawn), 20
    if lost != "before":
        for x in read[:first]:
            made.draw(x)
        if lost == "not finite":
            assert np.isnan(made.draw(np.where(np.arange(5) == 2, np.nan, read[first]))).any()
        else:
            made.lose()
        first += 1
    else:
        made.begin_amid()
    settled, rest = [], []
    for t in range(first, 60):
        rest.append(np.abs(made.draw(read[t]) - drawn[t]).max())
        settled.append(made.settled)
    assert not settled[0]
    assert settled[-1]
    assert rest[0] > 0.1
    assert max(r for r, s in zip(rest, settled, strict=True) if s) < 0.05


def test_coefficients_that_sum_to_zero_never_forget() -> None:
    made = Whitening((1.0, -1.0))
    made.draw(np.ones(2))
    made.lose()
    for _ in range(5000):
        made.draw(np.ones(2))
    assert not made.settled


def test_where_nothing_was_released_nothing_was_drawn() -> None:
    made = Whitening(C)
    made.draw(np.array([1.0, 1.0]))
    assert made.draw(np.zeros(2), np.array([True, False])).tolist() == [0.0, 0.5]


def test_draws_go_on_from_a_checkpoint(tmp_path) -> None:
    drawn, made, again = draws(), Whitening(C), Whitening(C)
    read = banded(drawn)
    again.load(made.state())
    for x in read[:31]:
        made.draw(x)
    torch.save(to_tensors(made.state()), tmp_path / "state")
    again.load(to_arrays(torch.load(tmp_path / "state", weights_only=True)))
    assert [again.draw(x).tolist() for x in read[31:]] == [made.draw(x).tolist() for x in read[31:]]
