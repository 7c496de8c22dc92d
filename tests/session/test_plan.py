"""Where witnesses and canaries are read: everywhere they lie, once, also where they coincide."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightning_audit.canaries import Constant, Dirac, Random, Spread
from lightning_audit.canaries.gradient import GradientCanary, Placement, place
from lightning_audit.checks.probes import Witnesses, choose_witnesses
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.hooks.gradient_tap import CanaryRows
from lightning_audit.layout import Direction, Part, TensorSlot
from lightning_audit.record.store import DROPPED, EARLIER, INJECTED, NOT_PLANNED, Moves, Observation
from lightning_audit.session.plan import Coordinates, Located, Plan

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
def test_coordinates_are_those_of_witnesses_and_canaries_sorted_and_once(mix):
    witnesses, placement, coordinates, _ = made(mix)
    support = placement.support()
    for j, index in coordinates.by_tensor.items():
        expected = set(witnesses.index[j].tolist()) | set(support.get(j, np.zeros(0)).tolist())
        assert index.tolist() == sorted(expected)
    assert coordinates.size == sum(map(len, coordinates.by_tensor.values()))
    assert set(coordinates.by_tensor) == set(range(len(MIXES[mix][0])))


@pytest.mark.parametrize("mix", MIXES)
def test_witnesses_are_found_among_what_is_read(mix):
    witnesses, _, coordinates, rng = made(mix)
    tensors = gradients(mix, rng)
    expected = [tensors[j][at] for j in sorted(witnesses.index) for at in witnesses.index[j]]
    assert read(coordinates, tensors)[coordinates.witness_at].tolist() == expected


@pytest.mark.parametrize("mix", ["tiny", "filled", "one coordinate"])
def test_in_tensors_that_canaries_fill_both_share_coordinates(mix):
    witnesses, placement, _, _ = made(mix)
    support = placement.support()
    assert max([np.intersect1d(witnesses.index[j], own).size for j, own in support.items()]) > 0


@pytest.mark.parametrize("mix", MIXES)
def test_products_are_inner_products_and_combinations_are_plain_loops(mix):
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


def test_moving_canaries_are_located_anew_and_fixed_ones_stay():
    _, placement, coordinates, rng = made("sparse")
    places: list[list[tuple[int, ...]]] = [[], [], [], []]
    for _ in range(20):
        located = coordinates.locate(placement.draw(rng))
        for row, found in enumerate(places):
            found.append(tuple(located.at[located.row == row].tolist()))
    assert [len(set(found)) > 1 for found in places] == [False, False, True, False]


HALF = 0.5**0.5
#: Two canaries over six entries: the first and the third; the second.
LOCATED = Located(np.array([0, 0, 1]), np.array([0, 2, 1]), np.array([HALF, -HALF, 1.0]))
DIRECTIONS = [
    Direction((Part(0, np.array([0, 2]), np.array([HALF, -HALF])),)),
    Direction((Part(0, np.array([1]), np.array([1.0])),)),
]
CLAIM = StepClaim(noise_multiplier=1.0, max_grad_norm=3.0, scale=8.0)
PLAN = Plan(
    CLAIM, np.array([1.0, 0.0]), INJECTED, DIRECTIONS, LOCATED, CanaryRows(DIRECTIONS[:1]), added=1
)


def test_a_canary_that_was_taken_out_counts_as_read_where_it_came_out():
    values, rest = np.array([0.4, 7.0, 0.2, 5.0]), [HALF * 0.2, 7.0]
    assert PLAN.readings(values, None) == pytest.approx([1.0 + rest[0], rest[1]])
    dead = np.array([False, False, True, True])
    assert PLAN.readings(values, dead) == pytest.approx([0.5 + rest[0], rest[1]])
    assert replace(PLAN, status=NOT_PLANNED).readings(values, None).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("status", "meant", "recorded"),
    [(INJECTED, False, INJECTED), (INJECTED, True, EARLIER), (DROPPED, True, DROPPED)],
)
def test_the_record_says_which_part_was_drawn(status, meant, recorded):
    for earlier in (False, True):
        assert replace(PLAN, status=status, earlier=earlier, meant=meant).recorded == recorded


PLACEMENT = place([Dirac()], [TensorSlot("weight", (40,))], np.random.default_rng(0))
(AT,) = PLACEMENT.support()[0]
COORDINATES = Coordinates(Witnesses({0: np.setdiff1d(np.arange(40), [AT])[:6]}), PLACEMENT)
DRAWN = PLACEMENT.draw(np.random.default_rng(0))
USED = Plan(StepClaim(1.0, 1.0, 1.0), np.ones(1), INJECTED, DRAWN, COORDINATES.locate(DRAWN))
#: Among what is read.
CANARY = int(np.flatnonzero(COORDINATES.by_tensor[0] == AT)[0])


def values(witness: float, canary: float) -> np.ndarray:
    read = np.full(7, witness)
    read[CANARY] = canary
    return read


def seen_of(plan: Plan = USED, **more: Any) -> Observation:
    """What a plan's step shows."""
    read = {"values": values(2.0, 5.0), **more}
    return plan.completed(Observation(**read), read["values"], COORDINATES)


def test_each_is_read_along_the_canary_in_units_of_its_own_size():
    moves = Moves(values(-0.1, 0.3), np.zeros(7), None)
    rest, used, moved = seen_of(used=values(0.5, -1.0), moves=moves).along
    assert (rest, used) == (pytest.approx([2.5]), pytest.approx([-2.0]))
    # An update goes against the gradient.
    assert moved == pytest.approx([-3.0])


def test_what_was_not_seen_or_has_no_size_is_not_told():
    assert seen_of(used=values(0.0, 1.0)).along[1:] == (None, None)
    assert seen_of(values=values(0.0, 1.0)).along is None
    assert seen_of(replaced=True).along is None
    assert seen_of(USED.dropped()).along is None


def test_release_and_gradient_used_are_compared_where_the_release_was_read():
    release, used = seen_of(at_cut=True, used=values(0.5, 1.0)).followed
    assert (release.tolist(), used.tolist()) == ([2.0] * 6, [0.5] * 6)
    assert seen_of(at_cut=True).followed[1] is None
    assert seen_of().followed is seen_of(at_cut=True, replaced=True).followed is None


def test_zeros_are_told_apart_by_whether_a_canary_came_in():
    dead = np.zeros(7, dtype=bool)
    dead[CANARY] = True
    seen = seen_of(dead=dead)
    assert (seen.live.tolist(), seen.dead_canary, seen.dead_tensors) == ([0.0], True, False)
    assert not seen.dead_witnesses.any()
    out = seen_of(replace(USED, coins=np.zeros(1)), dead=dead)
    assert (out.dead_canary, out.live.tolist()) == (False, [0.0])
    assert seen_of(USED.dropped(), dead=dead).live.tolist() == [1.0]
