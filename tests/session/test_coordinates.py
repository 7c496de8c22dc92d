"""Where witnesses and canaries are read: everywhere they lie, once, also where they coincide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lightning_audit.canaries import Constant, Dirac, Random, Spread
from lightning_audit.canaries.gradient import GradientCanary, Placement, place
from lightning_audit.checks.probes import Witnesses, choose_witnesses
from lightning_audit.layout import TensorSlot
from lightning_audit.session.step import Coordinates

ROOMY = [TensorSlot("large", (40, 30)), TensorSlot("small", (5,)), TensorSlot("scalar", ())]
TINY = [TensorSlot("two", (2,)), TensorSlot("one", ()), TensorSlot("three", (3, 1))]
MIXES: dict[str, tuple[list[TensorSlot], list[GradientCanary]]] = {
    "sparse": (ROOMY, [Dirac(), Spread(), Dirac(moving=True), Dirac(tensor="small")]),
    "dense": (ROOMY, [Constant(), Random(), Random(moving=True)]),
    "tiny": (TINY, [Random(), Constant(), Random(moving=True)]),
    "filled": (TINY, [Dirac(tensor="two"), Dirac(tensor="two"), Dirac(tensor="one")]),
    "one coordinate": ([TensorSlot("one", ())], [Dirac()]),
}


def made(mix: str, seed: int = 0) -> tuple[Witnesses, Placement, Coordinates, np.random.Generator]:
    layout, canaries = MIXES[mix]
    rng = np.random.default_rng(seed)
    placement = place(canaries, layout, rng)
    witnesses = choose_witnesses(layout, placement.support(), rng)
    return witnesses, placement, Coordinates(witnesses, placement), rng


def gradients(mix: str, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal(slot.numel) for slot in MIXES[mix][0]]


def read(coordinates: Coordinates, tensors: Sequence[np.ndarray]) -> np.ndarray:
    """What the tap reads, in its order."""
    return np.concatenate([tensors[j][index] for j, index in coordinates.by_tensor.items()])


@pytest.mark.parametrize("mix", MIXES)
def test_coordinates_are_those_of_witnesses_and_canaries_sorted_and_once(mix: str) -> None:
    witnesses, placement, coordinates, _ = made(mix)
    support = placement.support()
    for j, index in coordinates.by_tensor.items():
        expected = set(witnesses.index[j].tolist()) | set(support.get(j, np.zeros(0)).tolist())
        assert index.tolist() == sorted(expected)
    assert coordinates.size == sum(map(len, coordinates.by_tensor.values()))
    assert set(coordinates.by_tensor) == set(range(len(MIXES[mix][0])))


@pytest.mark.parametrize("mix", MIXES)
def test_witnesses_are_found_among_what_is_read(mix: str) -> None:
    witnesses, _, coordinates, rng = made(mix)
    tensors = gradients(mix, rng)
    expected = [tensors[j][at] for j in sorted(witnesses.index) for at in witnesses.index[j]]
    assert read(coordinates, tensors)[coordinates.witness_at].tolist() == expected


@pytest.mark.parametrize("mix", ["tiny", "filled", "one coordinate"])
def test_in_tensors_that_canaries_fill_both_share_coordinates(mix: str) -> None:
    witnesses, placement, _, _ = made(mix)
    support = placement.support()
    shared = [np.intersect1d(witnesses.index[j], own).size for j, own in support.items()]
    assert max(shared) > 0


@pytest.mark.parametrize("mix", MIXES)
def test_products_are_inner_products_and_combinations_are_plain_loops(mix: str) -> None:
    _, placement, coordinates, rng = made(mix)
    for _ in range(3):  # moving canaries are elsewhere at each step
        directions, tensors = placement.draw(rng), gradients(mix, rng)
        located = coordinates.locate(directions)
        values = read(coordinates, tensors)
        expected = [
            sum(float(part.value @ tensors[part.tensor][part.index]) for part in d.parts)
            for d in directions
        ]
        products = located.products(values, len(directions))
        np.testing.assert_allclose(products, expected, rtol=1e-12, atol=1e-12)

        weights = rng.standard_normal(len(directions))
        sums = [np.zeros(slot.numel) for slot in MIXES[mix][0]]
        for weight, direction in zip(weights, directions, strict=True):
            for part in direction.parts:
                for index, value in zip(part.index, part.value, strict=True):
                    sums[part.tensor][index] += weight * value
        combined = located.combined(weights, coordinates.size)
        np.testing.assert_allclose(combined, read(coordinates, sums), rtol=1e-12, atol=1e-12)
        # Nothing of a canary lies outside what is read, so that all of it is taken out.
        norm = sum(float(s @ s) for s in sums)
        assert float(combined @ combined) == pytest.approx(norm, rel=1e-12)


def test_canaries_that_are_out_add_nothing() -> None:
    _, placement, coordinates, rng = made("sparse")
    located = coordinates.locate(placement.draw(rng))
    none = located.combined(np.zeros(len(placement)), coordinates.size)
    assert none.shape == (coordinates.size,)
    assert not none.any()


def test_moving_canaries_are_located_anew_and_fixed_ones_stay() -> None:
    _, placement, coordinates, rng = made("sparse")
    places: list[list[tuple[int, ...]]] = [[], [], [], []]
    for _ in range(20):
        located = coordinates.locate(placement.draw(rng))
        for row, found in enumerate(places):
            found.append(tuple(located.at[located.row == row].tolist()))
    assert [len(set(found)) > 1 for found in places] == [False, False, True, False]
