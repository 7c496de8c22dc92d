from __future__ import annotations

import numpy as np

from lightning_audit.run.new_session import _coins


def tosses(seed: int, number: int) -> list[int]:
    return _coins(seed, number).integers(0, 2, 64).tolist()


def test_coins_are_a_function_of_the_seed_and_the_optimizers_number() -> None:
    assert tosses(5, 1) == tosses(5, 1)
    assert tosses(5, 2) == tosses(5, 2)
    different = {tuple(tosses(seed, number)) for seed in (5, 6) for number in (1, 2, 3)}
    assert len(different) == 6


def test_coins_of_different_optimizers_are_independent() -> None:
    first, second = (_coins(0, number).integers(0, 2, 100_000) for number in (1, 2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(100_000)
