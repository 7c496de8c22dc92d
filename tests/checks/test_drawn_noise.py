"""Each family of tests sees its kind of noise, and none sees anything in noise as it should be."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from lightning_audit.checks.replayed_noise import (
    CERTAIN,
    FAMILIES,
    NOTHING,
    SCALE,
    SMALL,
    TENSOR,
    Draws,
    NoiseLook,
    draws_seen,
)

SHAPES = ((64, 16), (1, 64), (10, 64), (1, 10))
RNG = np.random.default_rng


def noise(count: int = 12, seed: int = 0, shapes: tuple[tuple[int, int], ...] = SHAPES):
    rng = RNG(seed)
    return [rng.normal(size=(count, *shape)).astype(np.float32).astype(float) for shape in shapes]


def drawn(tensors: list[np.ndarray], **given: object) -> dict[str, float]:
    names = [f"t{number}" for number in range(len(tensors))]
    released = [own[0] + 0.01 * RNG(9).normal(size=own[0].shape) for own in tensors]
    found = draws_seen(Draws(tensors, names, 1.0, with_rows=released, **given))
    assert all(seen.what for seen in found.values() if seen.log_e > 5.0)
    return {kind: seen.log_e for kind, seen in found.items()}


def each(change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    return [change(own.copy()) for own in noise()]


def some_small(own: np.ndarray) -> np.ndarray:
    own.reshape(len(own), -1)[:, ::50] *= 0.2
    return own


def first_row_small(own: np.ndarray) -> np.ndarray:
    own[:, 0] *= 0.3
    return own


def smoothed(own: np.ndarray) -> np.ndarray:
    flat = own.reshape(len(own), -1)
    return ((flat + 0.4 * np.roll(flat, 1, axis=1)) / math.sqrt(1.16)).reshape(own.shape)


def thin(own: np.ndarray) -> np.ndarray:
    count, rows, columns = own.shape
    if rows < 3:
        return own
    rng = RNG(1)
    return rng.normal(size=(count, rows, 2)) @ rng.normal(size=(count, 2, columns)) / math.sqrt(2)


def alike(own: list[np.ndarray]) -> list[np.ndarray]:
    own[1][:, 0] = own[2][:, 0]
    return own


def paired(own: list[np.ndarray], part: float = 0.9) -> list[np.ndarray]:
    """Entries of scattered pairs, of all tensors, that share most of their noise."""
    flat = np.concatenate([each.reshape(len(each), -1) for each in own], axis=1)
    order = RNG(3).permutation(flat.shape[1])[: flat.shape[1] // 2 * 2]
    one, other = order.reshape(2, -1)
    flat[:, other] = part * flat[:, one] + math.sqrt(1.0 - part**2) * flat[:, other]
    ends = np.cumsum([each[0].size for each in own])[:-1]
    parts = np.split(flat, ends, axis=1)
    return [each.reshape(shape.shape) for each, shape in zip(parts, own, strict=True)]


FAULTY = {
    "together": lambda: paired(noise(24)),
    "small": lambda: each(some_small),
    "scale": lambda: [0.9 * own for own in noise()],
    "small  ": lambda: [
        own * np.where(np.arange(own.shape[1]) == 0, 0.3, 1)[:, None] for own in noise()
    ],
    "neighbours": lambda: each(smoothed),
    "low_rank": lambda: each(thin),
    "tails": lambda: [
        RNG(j).laplace(scale=math.sqrt(0.5), size=o.shape) for j, o in enumerate(noise())
    ],
    "tensors": lambda: alike(noise()),
    "draws": lambda: [np.concatenate([own[:9], own[:3]]) for own in noise()],
    "few_values": lambda: [np.round(8 * own) / 8 for own in noise()],
    "one_value": lambda: [np.full_like(own, 0.7) for own in noise()],
    "twice": lambda: [np.tile(own[:, :, :5], (1, 1, 13))[:, :, : own.shape[2]] for own in noise()],
}


@pytest.mark.parametrize("kind", FAULTY)
def test_a_fault_is_seen_by_its_family(kind: str) -> None:
    assert drawn(FAULTY[kind]())[kind.strip()] > 14.0


@pytest.mark.parametrize("count", [4, 12, 24])
@pytest.mark.parametrize("more", ["nothing", "a mean", "larger", "sizes of its own"])
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(5)
def test_correct_noise_is_not_accused(count: int, more: str) -> None:
    # By simulation; the e-values are proved for independent normal noise of at least the claim.
    largest, total = 0.0, []
    for seed in range(60):
        rng, found = RNG(1000 + seed), noise(count, seed)
        if more == "a mean":
            found = [own + 3.0 * rng.normal(size=own.shape[1:]) for own in found]
        elif more == "larger":
            found = [5.0 * own for own in found]
        elif more == "sizes of its own":
            found = [own * rng.uniform(1.0, 3.0, own.shape[1:]) for own in found]
            # Rows of their own sizes have a spectrum of their own.
        seen = drawn(found)
        assert CERTAIN not in seen.values()
        largest = max(largest, max(seen.values()))
        total.append(np.mean(np.exp(list(seen.values()))))
    assert largest < 12.0
    assert np.mean(total) < 1.2


def test_a_part_that_goes_together_on_top_of_the_claimed_noise_is_no_fault() -> None:
    assert drawn([1.1 * own for own in paired(noise(24))])["together"] == 0.0


def test_what_is_made_of_the_noise_is_not_sized() -> None:
    seen = drawn([0.5 * own for own in noise()], sized=False)
    assert max(seen.values()) < 5.0


@pytest.mark.parametrize(("part", "told"), [(0.5, "25%"), (0.0, "")])
def test_a_part_that_all_draws_share_is_told_where_the_whole_is_as_claimed(
    part: float, told: str
) -> None:
    fixed = noise(1, seed=5)
    mixed = [
        part * f + math.sqrt(1 - part**2) * own for f, own in zip(fixed, noise(24), strict=True)
    ]
    names = ["a", "b", "c", "d"]
    said = Draws(mixed, names, 1.0).repeated_part
    assert bool(said) == bool(told)
    assert said[:1] == told[:1]
    assert Draws([0.8 * own for own in noise(24)], names, 1.0).repeated_part == ""


def test_every_family_may_be_asked_of_one_number() -> None:
    seen = drawn(noise(4, shapes=((1, 1),)))
    assert set(seen) == set(FAMILIES)
    assert max(seen.values()) < 5.0


def test_less_noise_in_every_tensor_is_told_from_less_in_one() -> None:
    names = ["a", "b", "c", "d"]
    seen = draws_seen(Draws([0.5 * own for own in noise()], names, 1.0))
    assert SMALL not in seen
    assert seen[SCALE].what == (
        "the noise of every tensor is at most 0.55 times the stated (99 % confidence at one look, "
        "for Gaussian noise)"
    )
    assert NoiseLook(seen).largest[0] == SCALE
    assert seen["tails"] == NOTHING  # which supposes noise of the claimed size
    first, *others = noise()
    seen = draws_seen(Draws([0.5 * first, *others], names, 1.0))
    assert seen[TENSOR].log_e > 14.0
    assert seen[TENSOR].what.startswith("the noise of `a` is at most 0.5")
    assert not {SCALE, SMALL} & set(seen)
    half_quiet = first.copy()
    half_quiet.reshape(len(first), -1)[:, ::2] *= 0.01
    seen = draws_seen(Draws([half_quiet, *others], names, 1.0))
    assert seen[SMALL].log_e > 14.0
    assert not {SCALE, TENSOR} & set(seen)


@pytest.mark.parametrize("factor", [0.85, 0.9])
def test_noise_that_is_small_in_many_small_tensors_is_small_in_all_of_them(factor: float) -> None:
    """As adapters of low rank have; none of them has numbers enough to tell alone."""
    shapes = ((4, 8),) * 24
    small = [factor * own for own in noise(4, seed=1, shapes=shapes)]
    alone = drawn(small[:1])
    assert alone[SMALL] < math.log(1000.0)
    seen = drawn(small)
    assert SCALE in seen
    assert seen[SCALE] > math.log(1000.0)
    assert seen["tails"] == NOTHING.log_e
    right = drawn(noise(4, seed=3, shapes=shapes))
    assert SCALE not in right
    assert right[SMALL] < math.log(100.0)
