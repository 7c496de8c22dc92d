"""Differences of releases are told from rounding and from the steps of a lattice."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_audit.checks.replay import Answer
from lightning_audit.checks.replay_findings import Finding
from lightning_audit.replay.step_replay import (
    Replay,
    distance,
    equal_releases,
    hidden_by_noise,
    on_a_lattice,
    shift_by_more_draws,
    too_coarse,
)


def replay(*releases: torch.Tensor) -> Replay:
    return Replay(releases=list(releases))


def test_distance_is_that_of_all_steps_together() -> None:
    one = replay(torch.zeros(3), torch.zeros(2))
    other = replay(torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 4.0]))
    assert distance(one, other) == 5.0


def test_another_number_of_steps_or_no_number_at_all_is_as_far_as_can_be() -> None:
    one = replay(torch.zeros(2))
    assert distance(one, replay(torch.zeros(2), torch.zeros(2))) == math.inf
    assert distance(one, replay(torch.tensor([math.nan, 0.0]))) == math.inf
    assert distance(replay(), replay()) == 0.0


def test_equal_is_equal_to_the_bit() -> None:
    one, other = replay(torch.tensor([0.1])), replay(torch.tensor([0.1 + 1e-7]))
    assert equal_releases(one, one)
    assert not equal_releases(one, other)


@pytest.mark.parametrize(("rounding", "hidden"), [(0.0, False), (0.06, False), (0.07, True)])
def test_rounding_hides_a_sensitivity_where_it_adds_more_than_is_tolerated(
    rounding: float, hidden: bool
) -> None:
    assert bool(too_coarse(rounding, 2e-3)) == hidden


def test_integers_lie_on_a_lattice_and_normal_noise_does_not() -> None:
    noise = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    assert not on_a_lattice(noise)
    assert on_a_lattice((4 * noise).round())


@pytest.mark.parametrize(("norm", "seen"), [(1.0, 1.0), (3.0, 3.0)])
def test_the_shift_behind_a_lattice_is_seen_over_some_draws(norm: float, seen: float) -> None:
    size = 4000
    shift = torch.full((size,), norm / size**0.5, dtype=torch.float64)

    def draw(seed: int) -> list[Replay]:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(size, generator=generator, dtype=torch.float64)
        return [replay((4 * (noise + part)).round() / 4) for part in (shift, 0.0 * shift)]

    single = distance(*draw(0))
    assert single > 2.0 * norm
    assert shift_by_more_draws(draw, 0) == pytest.approx(seen, rel=0.25)


def test_a_line_says_what_came_of_a_question() -> None:
    far = Finding("without the first record", 1.2345, 1.0)
    assert Answer(7).describe() == "nothing found, 7 asked"
    assert Answer(reason="too small").describe() == "not asked: too small"
    assert Answer(7, (far,)).describe() == (
        "1 of 7: without the first record: 1.2 C, at most 1 C is allowed"
    )


def _hidden(norm: float, seed: int, sigma: float = 1.0, size: int = 1000, draws: int = 5) -> bool:
    generator = torch.Generator().manual_seed(seed)
    change = torch.randn(size, generator=generator, dtype=torch.float64)
    noise = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(draws)]
    return hidden_by_noise(norm * change / change.norm(), [sigma * n for n in noise], sigma, 1.0)


def test_a_change_is_hidden_by_noise_up_to_the_claimed_ratio_in_any_unit() -> None:
    # The limit is three standard errors: exceeded by 1 of 741 correct ones.
    assert sum(_hidden(1.0, seed) for seed in range(200)) >= 198
    assert not any(_hidden(1.3, seed) for seed in range(200))
    change, noise = torch.eye(3)[0].double(), [torch.zeros(3).double() for _ in range(5)]
    assert not hidden_by_noise(change, noise, 1.0, 1.0)
    assert not hidden_by_noise(change * math.nan, [torch.randn(3).double()] * 2, 1.0, 1.0)
    for unit in (1e-6, 1e6):
        noise = [unit * torch.randn(3, dtype=torch.float64) for _ in range(5)]
        assert not hidden_by_noise(100.0 * unit * change, noise, 1.0, 1.0)


def test_noise_elsewhere_hides_nothing() -> None:
    change = torch.zeros(100, dtype=torch.float64)
    change[:50] = 1.0
    noise = [torch.cat([torch.zeros(50), torch.randn(50)]).double() for _ in range(5)]
    assert not hidden_by_noise(change, noise, 1.0, 1.0)
