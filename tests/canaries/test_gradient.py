import copy
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_audit.canaries import BlockPair, Constant, Dirac, GradientCanary, Random, Spread
from lightning_audit.canaries.gradient import POOL, VISITED, Placement, default_mix, place
from lightning_audit.layout import Direction, TensorSlot

UNKNOWN = r"tensor='head\.bias'.*first\.weight.*first\.bias"
NO_COORDINATE = r"no trainable coordinate.*unfreeze"


def placed_by_name(canary: GradientCanary) -> Placement:
    return place([canary], named(("first.weight", (5, 5)), ("first.bias", (5,))), generator())


def test_the_default_mix_of_eight_is_the_documented_one():
    assert Counter(default_mix(8)) == Counter(
        {
            Dirac(tensor="largest"): 3,
            Dirac(tensor="last_bias"): 1,
            Dirac(tensor="each", moving=True): 1,
            Spread(): 2,
            BlockPair(): 1,
        }
    )
    assert not any(canary.moving for canary in (*default_mix(4), Spread(), Constant(), Random()))
    for count in (1, 2, 5, 8):
        assert default_mix(count) == default_mix(8)[:count]
    assert default_mix(19) == (default_mix(8) * 3)[:19]
    layout = named(
        ("0.weight", (64, 20)), ("0.bias", (64,)), ("1.weight", (10, 64)), ("b.bias", (10,))
    )
    placement = place(default_mix(8), layout, generator())
    assert placement.skipped == []
    assert Counter(placement.labels) == {
        "Dirac(0.weight)": 3,
        "Dirac(3 tensors, moving)": 1,
        "Dirac(b.bias)": 1,
        "Spread(4 tensors)": 2,
        "BlockPair(4 tensors)": 1,
    }


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Constant(moving=True), r"moving=True must be False .* use Random\(moving=True\)"),
        (lambda: Dirac(tensor="each"), "tensor='each' needs moving=True"),
        *(
            (lambda kind=kind: placed_by_name(kind(tensor="head.bias")), UNKNOWN)
            for kind in (Dirac, Constant, Random)
        ),
        (lambda: place(default_mix(8), [], generator()), NO_COORDINATE),
        (lambda: place(default_mix(8), [TensorSlot("w", (0, 4))], generator()), NO_COORDINATE),
        (
            lambda: place([], layout_of((3,)), generator()),
            r"canaries=\[\] have no trainable coordinate",
        ),
        (
            lambda: place(["Dirac"], layout_of((3,)), generator()),
            r"must hold Dirac, Spread, BlockPair, Constant or Random",
        ),
    ],
)
def test_canaries_that_cannot_be_are_refused_with_what_to_do(make, told):
    with pytest.raises(ValueError, match=told):
        make()


SHAPES = [(), (1,), (1, 1), (2,), (3,), (2, 2), (7,), (4, 3), (40,), (3, 2, 2, 2), (64, 3)]
PLACES = ["largest", "last_bias", "tensor_0.bias"]
MOVING = st.booleans()
CANARY = st.one_of(
    st.builds(Dirac, moving=MOVING, tensor=st.sampled_from(PLACES)),
    st.builds(Spread, moving=MOVING),
    st.builds(BlockPair, moving=MOVING),
    st.builds(Constant, tensor=st.sampled_from(PLACES)),
    st.builds(Random, moving=MOVING, tensor=st.sampled_from([None, *PLACES])),
)
SHAPE_LISTS = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6)
CANARY_LISTS = st.lists(CANARY, min_size=1, max_size=12)
SEED = st.integers(0, 2**32 - 1)
CASES = st.builds(
    lambda shapes, canaries, seed: (canaries, layout_of(*shapes), generator(seed)),
    SHAPE_LISTS,
    CANARY_LISTS,
    SEED,
)


def layout_of(*shapes: tuple[int, ...]) -> list[TensorSlot]:
    return [TensorSlot(f"tensor_{j}.bias", shape) for j, shape in enumerate(shapes)]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def dense(direction: Direction, layout: list[TensorSlot]) -> np.ndarray:
    """The direction as one long vector, by its definition and not by `Direction.dot`."""
    start = np.cumsum([0, *(slot.numel for slot in layout)])
    vector = np.zeros(start[-1])
    for part in direction.parts:
        assert len(np.unique(part.index)) == len(part.index)
        assert part.index.min() >= 0
        assert part.index.max() < layout[part.tensor].numel
        vector[start[part.tensor] + part.index] += part.value
    return vector


def is_dense(canary: GradientCanary) -> bool:
    return isinstance(canary, Constant | Random)


def coordinates(support: dict[int, np.ndarray]) -> set[tuple[int, int]]:
    return {(j, int(i)) for j, index in support.items() for i in index}


def as_bytes(direction: Direction) -> list[tuple[int, bytes, bytes]]:
    return [(p.tensor, p.index.tobytes(), p.value.tobytes()) for p in direction.parts]


@given(CASES)
def test_directions_are_orthonormal_within_their_support_and_fixed_ones_stay(case):
    _, layout, rng = case
    placement = place(*case)
    allowed, before = coordinates(placement.support()), placement.draw(rng)
    for _ in range(3):
        directions = placement.draw(rng)
        matrix = np.stack([dense(d, layout) for d in directions])
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(len(placement)), atol=1e-6)
        for item, direction, earlier in zip(placement.placed, directions, before, strict=True):
            assert coordinates({part.tensor: part.index for part in direction.parts}) <= allowed
            assert item.canary.moving or as_bytes(direction) == as_bytes(earlier)


@given(CASES)
def test_canaries_keep_their_order_and_sparse_ones_share_no_coordinate_with_others(case):
    canaries, placement = case[0], place(*case)
    left, rest = list(canaries), iter(canaries)
    for item in placement.placed:
        left.remove(item.canary)
        assert item.canary in rest
    assert len(placement) == len(placement.labels) == len(canaries) - len(placement.skipped)
    assert sorted(f"{c}" for c in left) == sorted(
        sentence.split(" was left out")[0] for sentence in placement.skipped
    )
    sparse = [coordinates(p.support) for p in placement.placed if not is_dense(p.canary)]
    others = [coordinates(p.support) for p in placement.placed if is_dense(p.canary)]
    taken: set[tuple[int, int]] = set().union(*sparse)
    assert len(taken) == sum(map(len, sparse))
    assert taken.isdisjoint(set().union(*others))


@given(CASES)
def test_one_seed_gives_one_placement(case):
    def run() -> tuple[Placement, list[object]]:
        canaries, layout, rng = copy.deepcopy(case)
        placement = place(canaries, layout, rng)
        return placement, [as_bytes(d) for _ in range(2) for d in placement.draw(rng)]

    (one, drawn), (two, drawn_again) = run(), run()
    assert (one.labels, one.skipped, drawn) == (two.labels, two.skipped, drawn_again)


def test_other_seeds_give_other_placements():
    layout = layout_of((100, 100), (100,))
    supports = {
        frozenset(coordinates(place(default_mix(8), layout, generator(seed)).support()))
        for seed in range(5)
    }
    assert len(supports) == 5


@pytest.mark.parametrize(
    "canary", [Dirac(moving=True), Spread(moving=True), BlockPair(moving=True), Random(moving=True)]
)
def test_moving_directions_change_between_draws(canary):
    rng = generator()
    placement = place([canary], layout_of((30, 10), (30, 10), (50,)), rng)
    drawn = {str(as_bytes(placement.draw(rng)[0])) for _ in range(20)}
    assert len(drawn) >= 10


def test_a_moving_dirac_chooses_among_a_bounded_pool():
    rng = generator()
    placement = place([Dirac(moving=True)], layout_of((1000,)), rng)
    seen = {int(placement.draw(rng)[0].parts[0].index[0]) for _ in range(600)}
    assert len(seen) == POOL
    assert {(0, i) for i in seen} == coordinates(placement.support())
    # A pool leaves half of a small tensor to others.
    placement = place([Dirac(moving=True)], layout_of((10,)), rng)
    assert len(coordinates(placement.support())) == 5


def test_a_dirac_that_visits_each_tensor_is_in_any_with_room_at_one_place_at_a_time():
    rng = generator()
    placement = place([Dirac(moving=True, tensor="each")], layout_of((40,), (7,), (3, 5)), rng)
    drawn = [placement.draw(rng)[0] for _ in range(200)]
    assert {len(direction.parts) for direction in drawn} == {1}
    seen = {(d.parts[0].tensor, int(d.parts[0].index[0])) for d in drawn}
    assert seen == coordinates(placement.support())
    assert Counter(tensor for tensor, _ in seen) == {0: VISITED, 2: VISITED}
    # Where no tensor has room it is one that moves in the largest.
    small = place([Dirac(moving=True, tensor="each")], layout_of((2,), (6,)), rng)
    assert list(small.support()) == [1]


@pytest.mark.parametrize("moving", [False, True])
def test_a_block_pair_is_plus_and_minus_at_one_place_of_like_tensors(moving):
    rng = generator(3)
    # The (9, 9) tensor is larger, but alone; the (4, 6) ones are the largest of one shape.
    layout = layout_of((3,), (4, 6), (9, 9), (3,), (4, 6))
    placement = place([BlockPair(moving=moving)], layout, rng)
    for _ in range(10):
        (direction,) = placement.draw(rng)
        plus, minus = direction.parts
        assert (plus.tensor, minus.tensor) == (1, 4)
        assert plus.index.tolist() == minus.index.tolist()
        np.testing.assert_allclose([*plus.value, *minus.value], [0.5**0.5, -(0.5**0.5)])


@pytest.mark.parametrize(
    "shapes", [((40,), (4, 3), (7,)), ((5,),), ((1,), (1, 1)), ((30, 3), (), (7,), (2, 2, 2))]
)
@pytest.mark.parametrize("canary", [BlockPair(), BlockPair(moving=True), Spread()])
def test_a_spread_has_one_coordinate_of_equal_weight_in_every_tensor(shapes, canary):
    """A lone block pair is one."""
    rng = generator()
    (direction,) = place([canary], layout_of(*shapes), rng).draw(rng)
    assert [part.tensor for part in direction.parts] == list(range(len(shapes)))
    assert {len(part.index) for part in direction.parts} == {1}
    weight = 1 / math.sqrt(len(shapes))
    np.testing.assert_allclose([float(part.value[0]) for part in direction.parts], weight)


def test_a_constant_weighs_all_coordinates_of_its_tensor_alike():
    (direction,) = place([Constant()], layout_of((3,), (4, 4)), generator()).draw(generator())
    (part,) = direction.parts
    assert part.tensor == 1
    np.testing.assert_allclose(part.value, np.full(16, 0.25))


def test_random_covers_all_tensors_or_the_named_one():
    layout = layout_of((3,), (4, 4))
    everywhere, named = place(
        [Random(), Random(tensor="tensor_0.bias")], layout, generator()
    ).placed
    assert {j: len(i) for j, i in everywhere.support.items()} == {0: 3, 1: 16}
    assert {j: len(i) for j, i in named.support.items()} == {0: 3}


def named(*names_and_shapes: tuple[str, tuple[int, ...]]) -> list[TensorSlot]:
    return [TensorSlot(name, shape) for name, shape in names_and_shapes]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (named(("0.weight", (4, 4)), ("0.bias", (4,)), ("1.bias", (2,)), ("n.weight", (9,))), 2),
        (named(("0.weight", (4, 4)), ("norm.weight", (4,)), ("1.weight", (4, 2))), 1),
        (named(("0.weight", (4, 4)), ("1.weight", (4, 2))), 1),
        (named(("0.bias", (4,)), ("attention.bias", (4, 4))), 0),
    ],
    ids=["last vector named bias", "last vector", "last tensor", "a matrix is no bias"],
)
def test_last_bias_is_the_last_vector_named_bias_else_the_last_vector_else_the_last_tensor(
    layout, expected
):
    assert list(place([Dirac(tensor="last_bias")], layout, generator()).support()) == [expected]


def test_largest_goes_on_to_the_next_tensor_when_the_largest_is_full():
    placement = place([Dirac()] * 3, layout_of((1,), (2,)), generator())
    assert [list(p.support) for p in placement.placed] == [[1], [1], [0]]
    assert placement.skipped == []


@pytest.mark.parametrize(
    ("canaries", "shape", "told"),
    [
        ([Dirac(tensor="last_bias")] * 3, (2,), "other canaries use every entry of its tensor"),
        ([Random(tensor="bias")] * 4, (3,), "others span its tensor"),
    ],
)
def test_a_small_tensor_leaves_a_canary_out_and_says_so(canaries, shape, told):
    placement = place(canaries, named(("w", (5, 5)), ("bias", shape)), generator())
    assert len(placement) == len(canaries) - 1
    (sentence,) = placement.skipped
    assert sentence.startswith(str(canaries[0]))
    assert told in sentence


def test_an_empty_tensor_beside_others_holds_no_canary():
    rng = generator()
    placement = place([Spread(), Random()], layout_of((0, 3), (4,)), rng)
    assert [list(p.support) for p in placement.placed] == [[1], [1]]
    assert [d.norm() for d in placement.draw(rng)] == pytest.approx([1.0, 1.0])
