"""Calls of a function under equal random numbers, wherever these come from."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from lightning_audit.blackbox.probes import FrozenNoise, Released

ROWS, OTHERS = np.ones((4, 3)), np.zeros((3, 3))
MODULE_GENERATOR = np.random.default_rng(0)


def frozen(privatize: Any) -> FrozenNoise:
    return FrozenNoise(Released(privatize, [(3,)], True, 1.0, 1.0, "numpy"))


def of_the_module() -> np.ndarray:
    return MODULE_GENERATOR.normal(size=3)


class Method:
    """A function that has its generator in an attribute, and calls a method."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def noise(self) -> np.ndarray:
        return self.generator.normal(size=3) + of_the_module()

    def privatize(self, grads: np.ndarray) -> np.ndarray:
        return grads.sum(0) + self.noise()

    __call__ = privatize


def with_noise(noise: Any, grads: np.ndarray) -> np.ndarray:
    return grads.sum(0) + noise()


@pytest.mark.parametrize(
    "privatize",
    [
        functools.partial(with_noise, of_the_module),
        lambda grads: with_noise(of_the_module, grads),
        lambda grads: grads.sum(0) + sum(of_the_module() for _ in range(2)),
        Method(),
        Method().privatize,
        lambda grads: grads.sum(0) + np.random.normal(size=3) + torch.randn(3).numpy(),
    ],
    ids=["partial", "named", "inner", "object", "method", "global"],
)
def test_noise_cancels_wherever_its_generator_is(privatize: Any) -> None:
    held = frozen(privatize)
    assert held.obstacle(ROWS, 1) == ""
    assert held.difference(ROWS, OTHERS, 2) == pytest.approx(np.full(3, 4.0))
    assert not np.array_equal(held.release(ROWS, 3), held.release(ROWS, 4))


def test_what_is_not_repeatable_is_told() -> None:
    def fresh(grads: np.ndarray) -> np.ndarray:
        return grads.sum(0) + np.random.default_rng().normal(size=3)

    def constant(grads: np.ndarray) -> np.ndarray:
        return grads.sum(0) + np.random.default_rng(len(grads)).normal(size=3)

    assert "release different values" in frozen(fresh).obstacle(ROWS, 1)
    assert "does not depend on the generators" in frozen(constant).obstacle(ROWS, 1)


def test_another_number_of_draws_gives_no_difference() -> None:
    def privatize(grads: np.ndarray) -> np.ndarray:
        return grads.sum(0) + np.random.normal(size=(len(grads), 3)).sum(0)

    held = frozen(privatize)
    assert held.difference(ROWS, OTHERS, 1) is None
    assert held.difference(ROWS, np.zeros((4, 3)), 1) == pytest.approx(np.full(3, 4.0))


def test_a_function_goes_on_by_one_call_and_is_put_back_at_the_end() -> None:
    calls: list[int] = []

    def privatize(grads: np.ndarray) -> np.ndarray:
        calls.append(len(calls))
        return grads.sum(0) + np.random.normal(size=3)

    held = frozen(privatize)
    for _ in range(5):
        held.difference(ROWS, OTHERS, 0)
    assert calls == [0, 1, 2, 3, 4]
    held.put_back()
    assert calls == []
