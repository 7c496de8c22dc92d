"""Numbers that come twice are told from numbers that agree by chance, on lattices too."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.checks.replayed_noise import (
    copied_entries,
    few_values,
    pair_rate,
    repeated_numbers,
)


def draws(*shapes: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, n)).astype(np.float32).astype(float) for n in shapes]


FAULTY = {
    "tiled": lambda z: np.tile(z[:, :50], (1, 40))[:, : z.shape[1]],
    "mirrored": lambda z: np.concatenate([z[:, :800], z[:, :800][:, ::-1]], 1),
    "of the other sign": lambda z: np.concatenate([z[:, :800], -z[:, :800]], 1),
    "rolled in the other draw": lambda z: np.stack([z[0], np.roll(z[0], 321)]),
    "on a lattice": lambda z: np.tile(np.round(20 * z[:, :400]), (1, 4)),
    "one number for a row": lambda z: np.repeat(z[:, :80], 20, axis=1),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_numbers_that_stand_at_several_places_are_found(kind: str) -> None:
    assert repeated_numbers([FAULTY[kind](draws(1600)[0]), *draws(64, seed=1)])


def test_a_tensor_that_has_the_numbers_of_another_is_found() -> None:
    one, other = draws(300, 300)
    other[:, 100:200] = one[:, :100]
    assert repeated_numbers([one, other], across=True)
    assert not repeated_numbers([one, other])


@pytest.mark.parametrize("grid", [None, 1.0, 0.05, 2.0**-7])
@pytest.mark.parametrize("sizes", [(8,), (40, 3), (5000, 64), (200_000,)])
def test_numbers_that_are_drawn_anew_are_not(grid: float | None, sizes: tuple[int, ...]) -> None:
    for seed in range(20 if sum(sizes) < 1e5 else 2):
        found = draws(*sizes, seed=seed)
        if grid is not None:
            found = [np.round(z / grid) * grid for z in found]
        assert repeated_numbers(found) == ""
        assert repeated_numbers(found, across=True) == ""


def test_masks_of_zeros_are_no_numbers() -> None:
    (z,) = draws(2000)
    z[:, ::2] = 0.0
    z[:, :500] = 0.0
    assert repeated_numbers([z]) == ""


def test_the_rate_of_pairs_is_that_of_all_pairs() -> None:
    numbers = np.array([1.0, -1.0, 2.0, 0.0, 3.0])
    assert pair_rate(numbers) == pytest.approx(1.0 / 6.0)
    assert pair_rate(np.zeros(3)) == 1.0


def test_few_values_count_only_beside_a_sum_of_many() -> None:
    rng = np.random.default_rng(0)
    noise = np.round(4 * rng.normal(size=3000)) / 4
    assert "values, and a release has others" in few_values(
        noise, noise + 0.01 * rng.normal(size=3000)
    )
    assert few_values(noise, noise + np.round(rng.normal(size=3000))) == ""
    fine = rng.normal(size=3000).astype(np.float32).astype(float)
    assert few_values(fine, fine + 0.01) == ""
    assert few_values(noise[:30], fine[:30]) == ""


def test_entries_that_are_copies_of_scattered_ones_are_counted() -> None:
    rng = np.random.default_rng(0)
    for copies in (0, 1, 40):
        draws = rng.normal(size=(12, 3000)).astype(np.float32)
        one, other = rng.permutation(3000)[: 2 * copies].reshape(2, copies)
        draws[:, other] = -draws[:, one]
        found = copied_entries(draws)
        assert found.startswith(f"{copies} of 3000 entries") if copies else not found


@pytest.mark.parametrize("draws", [4, 12, 24])
@pytest.mark.parametrize("unit", [1.0, 0.1, 1e-3])
def test_entries_of_noise_on_a_lattice_are_no_copies(draws: int, unit: float) -> None:
    noise = np.round(np.random.default_rng(1).normal(size=(draws, 20_000)) / unit) * unit
    assert not copied_entries(noise)


def test_entries_without_noise_are_no_copies() -> None:
    noise = np.random.default_rng(1).normal(size=(12, 500))
    noise[:, 100:200] = 0.0
    assert not copied_entries(noise)
