"""Outputs of a mechanism are drawn in turn, checked, and refused with the call that failed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_audit.blackbox.mechanism import MechanismError, OutputSource


def source(mechanism) -> OutputSource:
    return OutputSource(mechanism, (0, 1), np.random.default_rng(2))


def after(calls: int, returned):
    """A mechanism that returns something else from some call on."""
    seen = []

    def mechanism(data, rng):
        seen.append(data)
        return rng.normal() if len(seen) <= calls else returned(data)

    return mechanism


def fails(data):
    raise KeyError("age")


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (after(0, fails), r"mechanism\(d0, rng\) raised KeyError: 'age' \(call 1\)\."),
        (after(7, fails), r"mechanism\(d1, rng\) raised KeyError: 'age' \(call 8\)\."),
        (after(4, lambda d: math.nan), r"mechanism\(d0, rng\) returned 1 of 1 numbers that are no"),
        (after(1, lambda d: np.ones(3)), r"d1, rng\) returned shape \(3,\) after \(\); outputs mu"),
        (after(0, lambda d: "text"), "returned str of dtype <U4 and shape .* return real numbers"),
        (after(0, lambda d: None), "returned NoneType of dtype object"),
        (after(0, lambda d: []), "returned list of dtype float64 and shape .0,.; return real"),
        (after(0, lambda d: [[1.0], [1.0, 2.0]]), "returned list: setting an array element"),
        (after(2, lambda d: -1e200), "returned numbers beyond 1e.100; rescale them .call 3"),
        (after(0, lambda d: 1j), "returned complex of dtype complex128"),
    ],
)
def test_what_is_wrong_with_a_mechanism_is_told(mechanism, message: str) -> None:
    with pytest.raises(MechanismError, match=message):
        source(mechanism).draw(5)


def test_outputs_of_both_data_sets_are_drawn_in_turn_from_one_generator() -> None:
    calls = []

    def mechanism(data, rng):
        calls.append(data)
        return [[data + rng.random(), 1], [2, 3]]

    drawn = source(mechanism)
    p, q = drawn.draw(3)
    assert calls == [0, 1, 0, 1, 0, 1]
    assert drawn.shape == (2, 2)
    assert p.shape == q.shape == (3, 2, 2)
    expected = np.random.default_rng(2).random(6)
    assert p[:, 0, 0] == pytest.approx(expected[::2])
    assert q[:, 0, 0] == pytest.approx(1 + expected[1::2])
