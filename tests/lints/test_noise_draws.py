from __future__ import annotations

import torch

from lightning_audit.lints.settings import STEPS, NoiseDraws, equal_draws


def numbers_of(seed: int, drawn: int) -> list[int]:
    """Of a process whose generator is seeded so, and that draws so many values a step."""
    draws, generator = NoiseDraws(), torch.Generator().manual_seed(seed)

    def state() -> str:
        return bytes(generator.get_state().tolist()).hex()

    for step in range(STEPS + 2):
        draws.start(state())
        if drawn:
            torch.randn(drawn, generator=generator)
        draws.end(step, state())
    return draws.numbers


def test_the_same_noise_in_two_of_three_processes_is_seen() -> None:
    assert equal_draws([numbers_of(1, 5), numbers_of(2, 5), numbers_of(1, 5)])


def test_one_process_that_adds_noise_for_all_is_not_accused_whatever_the_seeds() -> None:
    assert not equal_draws([numbers_of(1, 5), numbers_of(1, 0), numbers_of(1, 0)])


def test_noise_of_seeds_of_their_own_is_not_accused() -> None:
    assert not equal_draws([numbers_of(1, 5), numbers_of(2, 5)])


def test_a_generator_that_shows_no_state_tells_nothing() -> None:
    draws = NoiseDraws()
    draws.start(None)
    draws.end(0, None)
    assert draws.numbers == [0] * STEPS
