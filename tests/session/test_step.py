"""Where witnesses and canaries are read: everywhere they lie, once, also where they coincide."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_audit.canaries import Constant, Dirac, Random, Spread
from lightning_audit.canaries.gradient import GradientCanary, Placement, place
from lightning_audit.checks.probes import Witnesses, choose_witnesses
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.hooks.gradient_tap import Moves, Reading
from lightning_audit.layout import Direction, Part, TensorSlot
from lightning_audit.record.store import DROPPED, EARLIER, INJECTED, NOT_PLANNED, restore, snapshot
from lightning_audit.session.recorder import ReleasedShares
from lightning_audit.session.step import (
    Coordinates,
    Located,
    PlannedStep,
    ZeroEntries,
    used_release,
)

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


def test_canaries_that_are_out_add_nothing():
    _, placement, coordinates, rng = made("sparse")
    located = coordinates.locate(placement.draw(rng))
    none = located.combined(np.zeros(len(placement)), coordinates.size)
    assert none.shape == (coordinates.size,)
    assert not none.any()


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
PLAN = PlannedStep(CLAIM, np.array([1.0, 0.0]), DIRECTIONS, INJECTED, LOCATED)


def test_what_canaries_add_is_the_clipping_norm_over_the_divisor_along_those_that_are_in():
    assert PLAN.amounts(2.0, 4) == pytest.approx([1.5 * HALF, 0.0, -1.5 * HALF, 0.0])
    assert replace(PLAN, status=DROPPED).amounts(2.0, 4) is None
    assert replace(PLAN, coins=np.zeros(2)).amounts(2.0, 4) is None


def test_a_canary_that_was_taken_out_counts_as_read_where_it_came_out():
    values, rest = np.array([0.4, 7.0, 0.2, 5.0]), [HALF * 0.2, 7.0]
    assert PLAN.readings(values, None) == pytest.approx([1.0 + rest[0], rest[1]])
    dead = np.array([False, False, True, True])
    assert PLAN.readings(values, dead) == pytest.approx([0.5 + rest[0], rest[1]])
    assert replace(PLAN, status=NOT_PLANNED).readings(values, None).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("adds", [True, False])
def test_only_what_this_process_added_is_taken_out_of_its_sums(adds):
    sums = [torch.zeros(4)]
    replace(PLAN, adds=adds).take_out(sums)
    taken = [-3.0 * HALF, 0.0, 3.0 * HALF, 0.0] if adds else [0.0] * 4
    assert sums[0].tolist() == pytest.approx(taken)


def test_rows_turn_and_the_middle_one_is_shorter():
    directions = [Direction((Part(0, np.array([i]), np.ones(1)),)) for i in range(4)]
    coins = np.array([1.0, 0.0, 1.0, 1.0])
    plan = PlannedStep(CLAIM, coins, directions, INJECTED, turn=4, shorter=0.25)
    at = [(int(row.parts[0].index[0]), row.norm()) for row in plan.rows]
    assert at == [(2, 1.0), (3, 0.25), (0, 1.0)]
    # What is taken out of the clipped sum is the clipping norm of each, in the same order.
    assert [d.norm() for d in plan.chosen] == [1.0, 1.0, 1.0]
    assert replace(plan, adds=False).rows == []
    assert replace(plan, coins=np.zeros(4)).rows == []


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
USED = PlannedStep(StepClaim(1.0, 1.0, 1.0), np.ones(1), DRAWN, INJECTED, COORDINATES.locate(DRAWN))
#: Among what is read.
CANARY = int(np.flatnonzero(COORDINATES.by_tensor[0] == AT)[0])


def values(witness: float, canary: float) -> np.ndarray:
    read = np.full(7, witness)
    read[CANARY] = canary
    return read


def test_each_is_read_along_the_canary_in_units_of_its_own_size():
    start = np.zeros(7)
    reading = Reading(
        values(2.0, 5.0), used=values(0.5, -1.0), moves=Moves(values(-0.1, 0.3), start, None)
    )
    found = used_release(USED, reading, COORDINATES)
    assert (found.rest, found.used) == (pytest.approx([2.5]), pytest.approx([-2.0]))
    # An update goes against the gradient.
    assert found.moved == pytest.approx([-3.0])


def test_what_was_not_seen_or_has_no_size_is_not_told():
    found = used_release(USED, Reading(values(2.0, 5.0), used=values(0.0, 1.0)), COORDINATES)
    assert (found.used, found.moved) == (None, None)
    assert used_release(USED, Reading(values(0.0, 1.0)), COORDINATES) is None
    assert used_release(USED, Reading(values(2.0, 5.0), replaced=True), COORDINATES) is None
    assert (
        used_release(replace(USED, status=DROPPED), Reading(values(2.0, 5.0)), COORDINATES) is None
    )


def test_what_was_not_released_reads_as_the_claimed_noise():
    rng = np.random.default_rng(0)
    mask = np.arange(20_000) % 2 == 0
    filled = ZeroEntries(mask, True, np.ones(2), False).filled(np.full(20_000, 7.0), 3.0, rng)
    assert (filled[~mask] == 7.0).all()
    assert filled[mask].std() == pytest.approx(3.0, rel=0.05)


def test_a_canary_is_read_along_the_part_that_was_released():
    rng = np.random.default_rng(0)
    dead = ZeroEntries(np.zeros(1, bool), False, np.array([1.0, 0.25, 0.0]), True)
    read = dead.readings(np.array([2.0, 2.0, 0.0]), 5.0, rng)
    assert read[:2].tolist() == [2.0, 4.0]
    assert read[2] != 0.0


def test_shares_are_those_of_all_steps():
    shares = ReleasedShares((2, 2), 2)
    assert shares.canaries.tolist() == [1.0, 1.0]
    shares.update(None)
    shares.update(
        ZeroEntries(np.array([True, True, False, False]), True, np.array([0.0, 0.5]), True)
    )
    assert (shares.canaries.tolist(), shares.tensors.tolist()) == ([0.5, 0.75], [0.5, 1.0])
    assert restore(snapshot(shares)).tensors.tolist() == [0.5, 1.0]
